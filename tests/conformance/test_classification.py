"""The classification extension by each door: labels of the largest elements."""

from collections.abc import Iterator
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(120)

HTTP, GRPC = tritonclient.http, tritonclient.grpc
CONFIG: Final = """
backend: "identity" max_batch_size: {rows}
input [ {{ name: "INPUT0" data_type: TYPE_{type} dims: [ 4 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_{type} dims: [ 4 ]
            label_filename: "labels.txt" }} ]
"""
LABELS: Final = "cat\ndog\nbird\n"
MODELS: Final = {
    "pets": ("FP32", 4),
    "one": ("FP32", 0),
    "counts": ("INT64", 4),
    "flags": ("BOOL", 4),
    "words": ("STRING", 4),
    "halves": ("FP16", 4),
    "brains": ("BF16", 4),
}
NO_ORDER: Final = {
    "flags": ("BOOL", np.zeros((1, 4), bool)),
    "words": ("BYTES", np.full((1, 4), b"x", np.object_)),
    "halves": ("FP16", np.zeros((1, 4), np.float16)),
    "brains": ("BF16", np.zeros((1, 4), ml_dtypes.bfloat16)),
}


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("pets")
    for name, (kind, rows) in MODELS.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "labels.txt").write_text(LABELS)
        config = CONFIG.format(type=kind, rows=rows)
        (folder / name / "config.pbtxt").write_text(config)
    with running_stack(folder) as running:
        yield running


@pytest.fixture(params=["grpc", "grpc through envoy", "rest binary", "rest json"])
def door(request: pytest.FixtureRequest, pets: Stack) -> "Door":
    return Door(pets, request.param)


class Door:
    """Asks for classes in one of the ways that there are."""

    def __init__(self, stack: Stack, kind: str) -> None:
        self.module = HTTP if kind.startswith("rest") else GRPC
        self.port = stack.grpc if kind == "grpc" else stack.http
        self.options = {"binary_data": False} if kind == "rest json" else {}

    def classes(
        self,
        model: str,
        values: np.ndarray[Any, Any],
        count: int,
        datatype: str = "FP32",
    ) -> list[Any]:
        """Return the strings that the answer has, as nested as they are."""
        tensor = self.module.InferInput("INPUT0", list(values.shape), datatype)
        tensor.set_data_from_numpy(values)
        binary = self.options if self.module is HTTP else {}
        wanted = self.module.InferRequestedOutput(
            "OUTPUT0", class_count=count, **binary
        )
        with self.module.InferenceServerClient(f"127.0.0.1:{self.port}") as client:
            answer = client.infer(model, [tensor], outputs=[wanted])
            found = answer.as_numpy("OUTPUT0")
        assert found.dtype == np.object_
        return [_texts(row) for row in found]


def _texts(found: Any) -> Any:  # noqa: ANN401 - strings, nested
    if isinstance(found, np.ndarray):
        return [_texts(one) for one in found]
    return found.decode() if isinstance(found, bytes) else str(found)


def test_each_row_of_a_batch_has_its_own_classes(door: Door) -> None:
    rows = np.array([[0.1, 0.9, 0.3, 0.3], [-4, -3, -2, -1]], np.float32)
    assert door.classes("pets", rows, 2) == [
        ["0.900000:1:dog", "0.300000:2:bird"],
        # Beyond the last label there is none.
        ["-1.000000:3", "-2.000000:2:bird"],
    ]


def test_a_model_without_batches_has_one_row(door: Door) -> None:
    values = np.array([5, 0, 7, 6], np.float32)
    assert door.classes("one", values, 3) == [
        "7.000000:2:bird",
        "6.000000:3",
        "5.000000:0:cat",
    ]


def test_more_classes_than_there_are_gives_all(door: Door) -> None:
    rows = np.array([[3, 1, 2, -(2**62)]], np.int64)
    assert door.classes("counts", rows, 100, "INT64") == [
        ["3:0:cat", "2:2:bird", "1:1:dog", f"{-(2**62)}:3"]
    ]


@pytest.mark.parametrize("model", NO_ORDER)
def test_what_has_no_order_has_no_classes(door: Door, model: str) -> None:
    datatype, values = NO_ORDER[model]
    with pytest.raises(InferenceServerException) as caught:
        door.classes(model, values, 1, datatype)
    assert str(caught.value.message()) == (
        f"class result not available for output due to unsupported type '{datatype}'"
    )
    assert caught.value.status() in {"400", "StatusCode.INVALID_ARGUMENT"}
