"""Outputs of ONNX models in memory that is kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from services.core.datatype import DataType
from services.core.errors import BackendError
from services.core.model_config import ModelConfig
from services.worker.backend import InstancePlace
from services.worker.backends import onnxruntime_binding
from services.worker.backends.onnxruntime import OnnxModel, OnnxRuntime
from services.worker.backends.onnxruntime_binding import (
    OutputPlan,
    is_worth_it,
    output_plans,
)
from tests.unit.worker.onnx_models import config, source, write_model

KIB = 1 << 10
MIB = 1 << 20


def plans(
    of: ModelConfig, inputs: dict[str, list[Any]], outputs: dict[str, list[Any]]
) -> list[tuple[int | tuple[str, int], ...]]:
    return [plan.dims for plan in output_plans(of, inputs, outputs)]


TWO = config({"A": [-1], "B": [-1]}, {"Y": [-1]})


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ({"A": ["b", 3], "B": ["b", 4]}, {"Y": ["b", 9]}, [(("A", 0), 9)]),
        ({"A": ["b", "n"], "B": ["b", "m"]}, {"Y": ["m", "n"]}, [(("B", 1), ("A", 1))]),
        ({"A": [2, 3], "B": [2, 4]}, {"Y": [5]}, [(5,)]),
        ({"A": ["b", 3], "B": ["b", 4]}, {"Y": ["b", "unknown"]}, []),
        ({"A": [None, 3], "B": ["b", 4]}, {"Y": [None, 3]}, []),
    ],
)
def test_a_symbol_of_an_input_tells_an_outputs_length(
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    expected: list[tuple[int | tuple[str, int], ...]],
) -> None:
    assert plans(TWO, inputs, outputs) == expected


def test_text_cannot_be_foreseen() -> None:
    of = config({"X": [1]}, {"Y": [1]}, DataType.BYTES)
    assert plans(of, {"X": ["b", 1]}, {"Y": ["b", 1]}) == []


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "expected"),
    [
        ((("A", 0), 255), 1, False),
        ((("A", 0), 256), 1, True),
        ((("A", 0), 32), 8, True),
        ((("A", 0), 31), 8, False),
        ((256,), 0, True),
        ((("A", 1), 1), 0, True),
        ((("A", 0), ("A", 1)), 1, True),
    ],
)
def test_only_large_outputs_are_worth_it(
    dims: tuple[int | tuple[str, int], ...], max_batch_size: int, *, expected: bool
) -> None:
    plan = OutputPlan(name="Y", datatype=DataType.INT32, dims=dims)
    of = config({"A": [1]}, {"Y": [1]}, max_batch_size=max_batch_size)
    assert is_worth_it([plan], of, KIB) is expected


def wide(directory: Path, dims: Sequence[int | str] = ("b", "n")) -> OnnxModel:
    """Load a model whose two outputs are as large as its inputs."""
    write_model(
        directory,
        [("Add", ["A", "B"], ["SUM"]), ("Sub", ["A", "B"], ["DIFF"])],
        {"A": ["b", "n"], "B": ["b", "n"]},
        {"SUM": dims, "DIFF": dims},
    )
    of = config({"A": [-1], "B": [-1]}, {"SUM": [-1], "DIFF": [-1]})
    place = InstancePlace(name="m_0_0", group=0)
    (model,) = OnnxRuntime().load(source(directory, of), [place])
    return model


def pair(rows: int, columns: int, start: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    a = np.arange(start, start + rows * columns, dtype=np.int32)
    return {"A": a.reshape(rows, columns), "B": np.ones((rows, columns), np.int32)}


def assert_right(model: OnnxModel, inputs: dict[str, Any], *names: str) -> Any:  # noqa: ANN401
    found = model.execute(inputs, names)
    expected = {
        "SUM": inputs["A"] + inputs["B"],
        "DIFF": inputs["A"] - inputs["B"],
    }
    for name in names:
        assert np.array_equal(found[name], expected[name])
    return found


def test_large_outputs_come_to_the_same_memory(tmp_path: Path) -> None:
    model = wide(tmp_path)
    first = assert_right(model, pair(4, 1 << 17), "SUM", "DIFF")
    again = assert_right(model, pair(4, 1 << 17, start=5), "SUM", "DIFF")
    fewer = assert_right(model, pair(3, 1 << 17), "SUM", "DIFF")
    for name in ("SUM", "DIFF"):
        assert first[name].ctypes.data == again[name].ctypes.data
        assert first[name].ctypes.data == fewer[name].ctypes.data


def test_batches_of_any_size_and_choice_follow_each_other(tmp_path: Path) -> None:
    model = wide(tmp_path)
    for rows, columns in [(4, 1 << 17), (1, 3), (8, 1 << 17), (2, 1 << 18), (0, 4)]:
        assert_right(model, pair(rows, columns), "SUM", "DIFF")
        assert_right(model, pair(rows, columns, start=1), "DIFF")
        assert_right(model, pair(rows, columns, start=2), "DIFF", "SUM")


def test_memory_beyond_the_limit_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime_binding, "_KEPT_BYTES", 4 * MIB)
    model = wide(tmp_path)
    first = assert_right(model, pair(8, 1 << 17), "SUM", "DIFF")
    again = assert_right(model, pair(8, 1 << 17), "SUM", "DIFF")
    assert first["SUM"].ctypes.data != again["SUM"].ctypes.data


def test_a_failing_run_leaves_the_next_one_unharmed(tmp_path: Path) -> None:
    model = wide(tmp_path)
    unequal = {**pair(4, 1 << 17), "B": np.ones((4, 3), np.int32)}
    with pytest.raises(BackendError, match=r"^onnx runtime error \d+: "):
        model.execute(unequal, ["SUM", "DIFF"])
    assert_right(model, pair(4, 1 << 17), "SUM", "DIFF")


def test_a_file_that_declares_other_shapes_is_served_all_the_same(
    tmp_path: Path,
) -> None:
    write_model(
        tmp_path,
        [("Concat", ["A", "B"], ["Y"])],
        {"A": ["b", "n"], "B": ["b", "n"]},
        {"Y": ["b", "n"]},
        attributes={"axis": 1},
    )
    of = config({"A": [-1], "B": [-1]}, {"Y": [-1]})
    place = InstancePlace(name="m_0_0", group=0)
    with capture_logs() as lines:
        (model,) = OnnxRuntime().load(source(tmp_path, of), [place])
        for _ in range(2):
            inputs = pair(4, 1 << 18)
            found = model.execute(inputs, ["Y"])["Y"]
            assert np.array_equal(found, np.hstack([inputs["A"], inputs["B"]]))
    warnings = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert warnings == ["outputs are not of the shapes that the model's file declares"]
