"""The demo models are what their configurations say."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from demo.build import SIMPLE_CONFIG, SIMPLE_WIDTH, build
from demo.onnx_model import add_sub_model


def test_the_written_model_is_valid_onnx() -> None:
    onnx.checker.check_model(add_sub_model(width=4), full_check=True)


@pytest.mark.parametrize("rows", [1, 8])
def test_the_written_model_adds_and_subtracts(rows: int) -> None:
    session = onnxruntime.InferenceSession(add_sub_model(width=3))
    first = np.arange(3 * rows, dtype=np.int32).reshape(rows, 3)
    second = np.full((rows, 3), 2**31 - 1, dtype=np.int32)
    added, subtracted = session.run(None, {"INPUT0": first, "INPUT1": second})
    np.testing.assert_array_equal(added, first + second)
    np.testing.assert_array_equal(subtracted, first - second)


def test_the_names_and_widths_of_model_and_configuration_agree() -> None:
    graph = onnx.load_from_string(add_sub_model(width=SIMPLE_WIDTH)).graph
    for value in (*graph.input, *graph.output):
        shape = value.type.tensor_type.shape.dim
        assert (shape[0].dim_param, shape[1].dim_value) == ("batch", 16)
        assert (
            f'name: "{value.name}" data_type: TYPE_INT32 dims: [ 16 ]' in SIMPLE_CONFIG
        )


def test_a_model_appears_whole_and_replaces_a_broken_one(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    (repository / "simple" / "1").mkdir(parents=True)
    build("simple", repository)
    assert (repository / "simple" / "config.pbtxt").read_text() == SIMPLE_CONFIG
    assert (repository / "simple" / "1" / "model.onnx").stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == ["models"]
