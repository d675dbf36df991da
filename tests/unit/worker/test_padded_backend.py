"""Requests of different lengths, padded, executed together and cut back."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.datatype import DataType
from services.core.errors import ConfigError
from services.core.model_config import ModelConfig, ModelInput, ModelOutput
from services.core.model_config_padding import (
    CutOutput,
    GeneratedInput,
    LengthOf,
    PaddedInput,
    Padding,
)
from services.worker.backend import (
    AnyBackend,
    Backend,
    BackendCall,
    BackendReply,
    ModelSource,
    RequestTensor,
    Tensors,
)
from services.worker.device import parse_device
from services.worker.model_metrics import Families, ModelMetrics
from services.worker.padded_backend import PaddedBackend, with_padding
from services.worker.request_details import NO_DETAILS
from services.worker.signature import Signature

DEVICE = parse_device("cpu")
OF = LengthOf(name="x", dim=0)
CONFIG = ModelConfig(
    name="masked",
    max_batch_size=64,
    inputs=(
        ModelInput(name="x", datatype=DataType.FP32, dims=(-1,)),
        ModelInput(name="mask", datatype=DataType.FP32, dims=(-1,)),
        ModelInput(name="n", datatype=DataType.INT32, dims=(1,)),
    ),
    outputs=(
        ModelOutput(name="sum", datatype=DataType.FP32, dims=(1,)),
        ModelOutput(name="double", datatype=DataType.FP32, dims=(-1,)),
        ModelOutput(name="length", datatype=DataType.INT32, dims=(1,)),
    ),
    padding=Padding(
        inputs=(PaddedInput(name="x", dims=(0,), value=7.0),),
        mask=GeneratedInput(name="mask", of=OF),
        lengths=GeneratedInput(name="n", of=OF),
        outputs=(CutOutput(name="double", dim=0, of=OF),),
    ),
)
SIGNATURE = Signature.from_config(CONFIG, 1)


class MaskedModel:
    """Minds its mask; keeps the shapes it was called with."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        del output_names
        x, mask = inputs["x"], inputs["mask"]
        self.shapes.append(x.shape)
        assert (x[mask == 0] == 7.0).all()
        return {
            "sum": (x * mask).sum(axis=1, keepdims=True, dtype=np.float32),
            "double": x * 2,
            "length": inputs["n"],
        }

    def unload(self) -> None:
        return


def call(x: np.ndarray) -> BackendCall:
    tensor = RequestTensor(0, x.shape, memoryview(x.tobytes()))
    return BackendCall("", (tensor,), (0, 1, 2), NO_DETAILS)


def results(answer: object) -> list[np.ndarray]:
    assert isinstance(answer, BackendReply)
    return [
        np.frombuffer(t.data, t.datatype.numpy_dtype).reshape(t.shape)
        for t in answer.tensors
    ]


def padded(model: Backend, config: ModelConfig = CONFIG) -> PaddedBackend:
    made = with_padding(model, config, SIGNATURE)
    assert isinstance(made, PaddedBackend)
    return made


lengths = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), min_size=1)


@given(lengths)
def test_together_everyone_gets_what_it_would_get_alone(
    sizes: list[tuple[int, int]],
) -> None:
    rng = np.random.default_rng(len(sizes))
    requests = [rng.random(size, dtype=np.float32) for size in sizes]
    model = MaskedModel()
    backend = padded(model)
    together = backend.execute_requests([call(x) for x in requests])
    assert len(model.shapes) == 1
    for x, answer in zip(requests, together, strict=True):
        total, double, length = results(answer)
        np.testing.assert_allclose(total[:, 0], x.sum(axis=1), rtol=1e-5)
        np.testing.assert_array_equal(double, x * 2)
        assert length[:, 0].tolist() == [x.shape[1]] * x.shape[0]


def test_a_batch_is_padded_to_its_longest_request() -> None:
    model = MaskedModel()
    calls = [call(np.ones((1, n), np.float32)) for n in (2, 5)]
    padded(model).execute_requests(calls)
    assert model.shapes == [(2, 5)]


def test_a_batch_is_padded_to_its_bucket() -> None:
    assert CONFIG.padding is not None
    buckets = Padding(
        inputs=CONFIG.padding.inputs,
        buckets=(4, 8),
        mask=CONFIG.padding.mask,
        lengths=CONFIG.padding.lengths,
    )
    model = MaskedModel()
    backend = PaddedBackend(model, SIGNATURE, buckets)
    backend.execute_requests([call(np.ones((1, 5), np.float32))])
    assert model.shapes == [(1, 8)]


def test_what_is_padding_is_counted_from_when_it_is_shown() -> None:
    backend = padded(MaskedModel())
    calls = [call(np.ones((1, n), np.float32)) for n in (2, 5)]
    backend.execute_requests(calls)  # a warm-up
    metrics = ModelMetrics()
    source = ModelSource(
        config=CONFIG,
        version=3,
        directory="",
        device=DEVICE,
        metrics=metrics.of("masked", 3),
    )
    backend.show(source)
    backend.execute_requests(calls)
    backend.execute_requests(calls[:1])
    told: list[Families] = []
    metrics.tell(lambda shown: told.append(shown.families))
    backend.unload()
    metrics.tell(lambda shown: told.append(shown.families))
    shown, gone = told
    found = {family.name: family.metrics[0] for family in shown}
    assert found["nereid_batch_elements_total"].value == 2 * 5 + 2
    assert found["nereid_padded_elements_total"].value == 3
    labels = found["nereid_padded_elements_total"].labels
    assert labels == {"model": "masked", "version": "3"}
    assert gone == ()


def test_only_the_outputs_asked_for_come() -> None:
    x = np.ones((1, 3), np.float32)
    tensor = RequestTensor(0, x.shape, memoryview(x.tobytes()))
    wanted = BackendCall("", (tensor,), (1,), NO_DETAILS)
    (answer,) = padded(MaskedModel()).execute_requests([wanted])
    assert isinstance(answer, BackendReply)
    assert [t.slot for t in answer.tensors] == [1]


def test_a_model_that_declares_nothing_stays_as_it_is() -> None:
    model: AnyBackend = MaskedModel()
    assert with_padding(model, ModelConfig(name="plain"), SIGNATURE) is model


def test_a_backend_that_takes_requests_one_by_one_cannot_be_padded() -> None:
    class OneByOne:
        def execute_requests(
            self, calls: Sequence[BackendCall]
        ) -> Sequence[BackendReply]:
            del calls
            return []

        def unload(self) -> None:
            return

    with pytest.raises(ConfigError, match="one by one"):
        with_padding(OneByOne(), CONFIG, SIGNATURE)
