"""Ragged batches: together, everyone gets what it would get alone."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import BackendError
from services.core.model_config import (
    BatchInput,
    BatchInputKind,
    BatchOutput,
    BatchOutputKind,
    ModelConfig,
    ModelInput,
    ModelOutput,
)
from services.worker.backend import (
    AnyBackend,
    BackendCall,
    BackendReply,
    RequestTensor,
    Tensors,
)
from services.worker.ragged_backend import RaggedBackend, with_ragged_batches
from services.worker.request_details import NO_DETAILS
from services.worker.signature import Signature

CONFIG = ModelConfig(
    name="ragged",
    max_batch_size=64,
    inputs=(
        ModelInput(
            name="x", datatype=DataType.FP32, dims=(-1,), allow_ragged_batch=True
        ),
        ModelInput(name="scale", datatype=DataType.FP32, dims=(1,)),
    ),
    outputs=(
        ModelOutput(name="sum", datatype=DataType.FP32, dims=(1,)),
        ModelOutput(name="scaled", datatype=DataType.FP32, dims=(-1,)),
    ),
    batch_inputs=(
        BatchInput(
            kind=BatchInputKind.ITEM_SHAPE_FLATTEN,
            target_names=("lengths",),
            datatype=DataType.INT32,
            source_input="x",
        ),
    ),
    batch_outputs=(
        BatchOutput(
            kind=BatchOutputKind.SCATTER_WITH_INPUT_SHAPE,
            target_names=("scaled",),
            source_input="x",
        ),
    ),
)
SIGNATURE = Signature.from_config(CONFIG, 1)


class RaggedModel:
    """Sums and scales each row; keeps the shapes it was called with."""

    def __init__(self) -> None:
        self.shapes: list[dict[str, tuple[int, ...]]] = []
        self.surplus = 0

    def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        del output_names
        self.shapes.append({name: array.shape for name, array in inputs.items()})
        ends = np.cumsum(inputs["lengths"])
        rows = np.split(inputs["x"], ends)[:-1]
        scales = inputs["scale"][:, 0]
        sums = [row.sum(dtype=np.float32) for row in rows]
        scaled = [row * scale for row, scale in zip(rows, scales, strict=True)]
        surplus = np.zeros(self.surplus, np.float32)
        return {
            "sum": np.array(sums, np.float32).reshape(-1, 1),
            "scaled": np.concatenate([*scaled, surplus]),
        }

    def unload(self) -> None:
        return


def call(
    x: np.ndarray, scale: float = 2.0, outputs: tuple[int, ...] = (0, 1)
) -> BackendCall:
    scales = np.full((len(x), 1), scale, np.float32)
    tensors = tuple(
        RequestTensor(slot, array.shape, memoryview(array.tobytes()))
        for slot, array in enumerate((x, scales))
    )
    return BackendCall("", tensors, outputs, NO_DETAILS)


def results(answer: object) -> list[np.ndarray]:
    assert isinstance(answer, BackendReply)
    return [
        np.frombuffer(t.data, t.datatype.numpy_dtype).reshape(t.shape)
        for t in answer.tensors
    ]


def ragged(model: AnyBackend, config: ModelConfig = CONFIG) -> RaggedBackend:
    made = with_ragged_batches(model, config, Signature.from_config(config, 1))
    assert isinstance(made, RaggedBackend)
    return made


sizes = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), min_size=1)


@given(sizes)
def test_together_everyone_gets_what_it_would_get_alone(
    shapes: list[tuple[int, int]],
) -> None:
    rng = np.random.default_rng(len(shapes))
    requests = [rng.integers(-9, 9, size).astype(np.float32) for size in shapes]
    model = RaggedModel()
    backend = ragged(model)
    calls = [call(x, scale) for scale, x in enumerate(requests)]
    together = backend.execute_requests(calls)
    assert len(model.shapes) == 1
    for one, answer in zip(calls, together, strict=True):
        (alone,) = backend.execute_requests([one])
        for expected, got in zip(results(alone), results(answer), strict=True):
            assert expected.shape == got.shape
            np.testing.assert_array_equal(expected, got)
    for scale, (x, answer) in enumerate(zip(requests, together, strict=True)):
        total, scaled = results(answer)
        np.testing.assert_array_equal(total, x.sum(axis=1, keepdims=True))
        np.testing.assert_array_equal(scaled, x * scale)


def test_a_ragged_input_has_one_dimension_the_others_have_rows() -> None:
    model = RaggedModel()
    calls = [call(np.ones(shape, np.float32)) for shape in ((1, 3), (2, 4), (1, 5))]
    ragged(model).execute_requests(calls)
    assert model.shapes == [{"x": (16,), "scale": (4, 1), "lengths": (4,)}]


def test_only_the_outputs_asked_for_come() -> None:
    x = np.ones((1, 3), np.float32)
    first, second = ragged(RaggedModel()).execute_requests(
        [call(x, outputs=(1,)), call(x, outputs=(0,))]
    )
    assert isinstance(first, BackendReply)
    assert isinstance(second, BackendReply)
    assert [t.slot for t in first.tensors] == [1]
    assert [t.slot for t in second.tensors] == [0]


def test_a_batch_output_of_another_size_is_an_error_that_names_both() -> None:
    model = RaggedModel()
    model.surplus = 1
    calls = [call(np.ones((1, n), np.float32)) for n in (3, 4)]
    with pytest.raises(BackendError, match=r"expected 7 elements .* produced 8"):
        ragged(model).execute_requests(calls)


def test_texts_are_laid_end_to_end_too() -> None:
    config = ModelConfig(
        name="texts",
        max_batch_size=8,
        inputs=(
            ModelInput(
                name="x", datatype=DataType.BYTES, dims=(-1,), allow_ragged_batch=True
            ),
        ),
        outputs=(ModelOutput(name="y", datatype=DataType.BYTES, dims=(-1,)),),
        batch_outputs=(
            BatchOutput(
                kind=BatchOutputKind.SCATTER_WITH_INPUT_SHAPE,
                target_names=("y",),
                source_input="x",
            ),
        ),
    )

    class Echo:
        def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
            del output_names
            assert inputs["x"].ndim == 1
            return {"y": inputs["x"]}

        def unload(self) -> None:
            return

    words = [[b"a", b"bcd"], [b""], [b"ef", b"g", b"h"]]
    calls = [
        BackendCall(
            "",
            (RequestTensor(0, (1, len(row)), memoryview(byte_tensor.encode(row))),),
            (0,),
            NO_DETAILS,
        )
        for row in words
    ]
    answers = ragged(Echo(), config).execute_requests(calls)
    for row, answer in zip(words, answers, strict=True):
        assert isinstance(answer, BackendReply)
        (tensor,) = answer.tensors
        assert tensor.shape == (1, len(row))
        assert byte_tensor.decode(tensor.data) == row


def test_a_model_that_does_not_batch_is_described_all_the_same() -> None:
    config = ModelConfig(
        name="single",
        inputs=(
            ModelInput(
                name="x", datatype=DataType.FP32, dims=(-1, 2), allow_ragged_batch=True
            ),
        ),
        outputs=(
            ModelOutput(name="n", datatype=DataType.INT32, dims=(1,)),
            ModelOutput(name="y", datatype=DataType.FP32, dims=(-1, 2)),
        ),
        batch_inputs=(
            BatchInput(
                kind=BatchInputKind.ELEMENT_COUNT,
                target_names=("count",),
                datatype=DataType.INT32,
                source_input="x",
            ),
        ),
        batch_outputs=(
            BatchOutput(
                kind=BatchOutputKind.SCATTER_WITH_INPUT_SHAPE,
                target_names=("y",),
                source_input="x",
            ),
        ),
    )

    class Count:
        def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
            del output_names
            return {"n": inputs["count"], "y": inputs["x"]}

        def unload(self) -> None:
            return

    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    tensor = RequestTensor(0, x.shape, memoryview(x.tobytes()))
    wanted = BackendCall("", (tensor,), (0, 1), NO_DETAILS)
    (answer,) = ragged(Count(), config).execute_requests([wanted])
    n, y = results(answer)
    assert n.tolist() == [6]
    np.testing.assert_array_equal(y, x)


def test_a_model_without_ragged_tensors_stays_as_it_is() -> None:
    model: AnyBackend = RaggedModel()
    assert with_ragged_batches(model, ModelConfig(name="plain"), SIGNATURE) is model


def test_a_backend_that_takes_requests_one_by_one_gets_them_as_they_are() -> None:
    class OneByOne:
        def execute_requests(
            self, calls: Sequence[BackendCall]
        ) -> Sequence[BackendReply]:
            del calls
            return []

        def unload(self) -> None:
            return

    model: AnyBackend = OneByOne()
    assert with_ragged_batches(model, CONFIG, SIGNATURE) is model
