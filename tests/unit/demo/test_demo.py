"""The demo models are what their configurations say."""

import subprocess
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import onnxruntime
import pytest

from demo.build import build
from demo.models import MODELS, QUICKSTART, SIMPLE_CONFIG, SIMPLE_WIDTH
from demo.onnx_graph import Graph
from demo.onnx_model import add_sub_model
from demo.packages import Packages


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
    assert build(["simple"], repository) == 0
    assert (repository / "simple" / "config.pbtxt").read_text() == SIMPLE_CONFIG
    assert (repository / "simple" / "1" / "model.onnx").stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_the_quickstart_builds_few_models() -> None:
    assert set(QUICKSTART) < set(MODELS)
    assert QUICKSTART == ("simple", "magika")


def test_a_model_that_cannot_be_fetched_leaves_nothing_behind_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: Path, __: Packages) -> None:
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setitem(cast("dict[str, object]", MODELS), "magika", refuse)
    assert build(["magika", "simple"], tmp_path / "models") == 1
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["simple"]
    assert "without magika" in capsys.readouterr().err


def small_model() -> bytes:
    """Return a model with every kind of attribute: ``y = LayerNorm(x)[:, 1:]``."""
    graph = Graph("small")
    x = graph.take("x", "float32", ("n", 3))
    graph.give("y", "float32", ("n", 2))
    ones, zeros = (graph.weight(np.full(3, v, np.float32)) for v in (1, 0))
    normal = graph.node("LayerNormalization", x, ones, zeros, epsilon=1e-3, axis=-1)
    turned = graph.node("Transpose", normal, perm=(1, 0))
    rest = graph.node("Slice", turned, graph.shape(1), graph.shape(3), graph.shape(0))
    graph.node("Transpose", rest, output="y", perm=(1, 0))
    return graph.model()


def test_a_written_graph_with_weights_and_attributes_computes() -> None:
    onnx.checker.check_model(small_model(), full_check=True)
    session = onnxruntime.InferenceSession(small_model())
    x = np.array([[1, 2, 6], [0, 0, 3]], np.float32)
    (y,) = session.run(None, {"x": x})
    deviation = np.sqrt(x.var(axis=1, keepdims=True) + 1e-3)
    expected = ((x - x.mean(axis=1, keepdims=True)) / deviation)[:, 1:]
    np.testing.assert_allclose(y, expected, rtol=1e-5)
