"""The module that models import, used as models use it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.worker.python_backend import start
from services.worker.python_backend.datatypes import BF16
from services.worker.python_backend.model.dlpack import _BFLOAT, _tensor_in
from services.worker.python_backend.model.metrics import MetricsReporter, report_to
from services.worker.python_backend.model.sender import (
    Deliver,
    InferenceResponseSender,
    ResponseStream,
)

sys.path.insert(0, str(Path(start.__file__).with_name("site")))
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

sys.path.pop(0)

NUMERIC = [
    np.bool_,
    *(np.int8, np.int16, np.int32, np.int64),
    *(np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, np.float32, np.float64),
]


def bf16(name: str = "x") -> Any:  # noqa: ANN401 - the module has no types here
    bits = np.array([0x3F80, 0x4000], np.uint16)
    return pb_utils.Tensor.in_memory(name, BF16, (2,), bits.data, 0)


@pytest.mark.parametrize("dtype", NUMERIC)
def test_a_tensor_goes_through_dlpack_without_a_copy(dtype: type) -> None:
    array: NDArray[Any] = np.array([[0, 1], [1, 0]], dtype)
    tensor = pb_utils.Tensor("a", array)
    back = pb_utils.Tensor.from_dlpack("b", tensor.to_dlpack())
    assert (back.name(), back.shape(), back.is_cpu()) == ("b", (2, 2), True)
    assert back.triton_dtype() == tensor.triton_dtype()
    assert np.shares_memory(back.as_numpy(), array)


@pytest.mark.parametrize("dtype", NUMERIC)
def test_a_tensor_is_an_exporter_and_takes_exporters(dtype: type) -> None:
    array: NDArray[Any] = np.array([0, 1], dtype)
    assert np.from_dlpack(pb_utils.Tensor("a", array)).tolist() == array.tolist()
    assert pb_utils.Tensor.from_dlpack("b", array).as_numpy().tolist() == array.tolist()


def test_bf16_has_no_array_but_a_capsule() -> None:
    tensor = bf16()
    with pytest.raises(pb_utils.TritonModelException, match="use to_dlpack"):
        tensor.as_numpy()
    capsule = tensor.to_dlpack()
    assert _tensor_in(capsule).dtype.code == _BFLOAT
    back = pb_utils.Tensor.from_dlpack("y", capsule)
    assert back.triton_dtype() == "TYPE_BF16"
    assert back.bits().tolist() == [0x3F80, 0x4000]


def test_what_is_not_in_c_order_is_refused() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="not contiguous"):
        pb_utils.Tensor.from_dlpack("x", np.ones((2, 3), np.float32).T)


def test_strings_have_no_capsule() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="BYTES"):
        pb_utils.Tensor("x", np.array([b"a"], object)).to_dlpack()


@pytest.mark.parametrize("data", [[1], 1, "a"])
def test_a_tensor_is_made_of_an_array(data: object) -> None:
    with pytest.raises(pb_utils.TritonModelException, match="must be given a numpy"):
        pb_utils.Tensor("x", data)


def test_an_array_of_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="complex64"):
        pb_utils.Tensor("x", np.ones(1, np.complex64))


@given(st.lists(st.binary(max_size=9)))
def test_encoded_strings_are_decoded(elements: list[bytes]) -> None:
    array = np.array([*elements, None], object)[:-1]
    encoded = pb_utils.serialize_byte_tensor(array)
    decoded = pb_utils.deserialize_bytes_tensor(encoded.item() if elements else b"")
    assert decoded.tolist() == elements


def test_types_are_translated() -> None:
    assert pb_utils.triton_string_to_numpy("TYPE_FP16") is np.float16
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert pb_utils.triton_to_numpy_type(8) is np.int32
    assert pb_utils.numpy_to_triton_type(np.float32) == 11
    assert pb_utils.numpy_to_triton_type(np.dtype("S3")) == 13


def test_tensors_are_found_by_name() -> None:
    tensors = [pb_utils.Tensor(name, np.ones(1, np.int8)) for name in "ab"]
    request = pb_utils.InferenceRequest(inputs=tensors, model_name="m")
    response = pb_utils.InferenceResponse(tensors)
    assert pb_utils.get_input_tensor_by_name(request, "b") is tensors[1]
    assert pb_utils.get_input_tensor_by_name(request, "c") is None
    assert pb_utils.get_output_tensor_by_name(response, "a") is tensors[0]


def test_configurations_are_read() -> None:
    config = {
        "input": [{"name": "a", "dims": [1]}],
        "output": [],
        "model_transaction_policy": {"decoupled": True},
    }
    assert pb_utils.get_input_config_by_name(config, "a") == {"name": "a", "dims": [1]}
    assert pb_utils.get_output_config_by_name(config, "a") is None
    assert pb_utils.using_decoupled_model_transaction_policy(config)
    assert not pb_utils.using_decoupled_model_transaction_policy({})


INPUT = {"name": "a", "data_type": "TYPE_INT8", "dims": [1]}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.set_max_batch_size(1), "configuration specified max_batch_size 2"),
        (lambda c: c.add_input({"name": "a"}), "is missing 'data_type' property"),
        (lambda c: c.add_input(INPUT | {"x": 1}), "contains property other than"),
        (
            lambda c: c.add_input(INPUT | {"dims": [2]}),
            r"expects dims \[2\] but .* \[1\]",
        ),
        (lambda c: c.set_dynamic_batching(), "specified sequence_batching"),
        (
            lambda c: c.set_model_transaction_policy({"decoupled": False}),
            "already set to 'True'",
        ),
    ],
)
def test_what_is_written_is_not_contradicted(
    change: Callable[[Any], None], text: str
) -> None:
    config = pb_utils.ModelConfig(
        {
            "name": "m",
            "max_batch_size": 2,
            "input": [INPUT],
            "sequence_batching": {},
            "model_transaction_policy": {"decoupled": True},
        }
    )
    with pytest.raises(ValueError, match=text):
        change(config)


def test_a_configuration_is_handed_out_as_a_copy() -> None:
    config = pb_utils.ModelConfig('{"name": "m"}')
    config.as_dict()["name"] = "other"
    config.add_output(INPUT)
    assert config.as_dict() == {"name": "m", "output": [INPUT]}


def test_a_counter_only_grows_and_a_gauge_does_not_observe() -> None:
    counter = pb_utils.MetricFamily("c", "", pb_utils.MetricFamily.COUNTER).Metric()
    gauge = pb_utils.MetricFamily("g", "", pb_utils.MetricFamily.GAUGE).Metric()
    counter.increment(2)
    gauge.set(5)
    gauge.increment(-1)
    assert (counter.value(), gauge.value()) == (2, 4)
    with pytest.raises(pb_utils.TritonModelException):
        counter.increment(-1)
    with pytest.raises(pb_utils.TritonModelException):
        counter.set(1)
    with pytest.raises(pb_utils.TritonModelException):
        gauge.observe(1)


def test_an_observation_is_counted_in_the_bucket_whose_bound_it_reaches() -> None:
    kind = pb_utils.MetricFamily.HISTOGRAM
    metric = pb_utils.MetricFamily("h", "", kind).Metric(buckets=[1, 2])
    for value in (0.5, 1, 1.5, 2, 3):
        metric.observe(value)
    assert metric.counts == [2, 2, 1]


@pytest.mark.parametrize("name", ["", "a-b", "1a", "a b"])
def test_a_name_that_no_page_could_have_is_refused(name: str) -> None:
    kind = pb_utils.MetricFamily.COUNTER
    with pytest.raises(pb_utils.TritonModelException):
        pb_utils.MetricFamily(name, "", kind)
    with pytest.raises(pb_utils.TritonModelException):
        pb_utils.MetricFamily("a", "", kind).Metric(labels={name: "b"})


def test_the_worker_is_told_of_a_change_and_not_of_metrics_that_are_gone() -> None:
    said: SimpleQueue[bytes] = SimpleQueue()
    family = pb_utils.MetricFamily("told", "t", pb_utils.MetricFamily.GAUGE)
    report_to(MetricsReporter(said.put))
    try:
        metric = family.Metric(labels={"a": "b"})
        metric.set(3)
        while told_of("told", said.get(timeout=10)) != [[{"a": "b"}, 3, [], [0]]]:
            continue
        del metric
        while told_of("told", said.get(timeout=10)) is not None:
            continue
    finally:
        report_to(None)


def told_of(name: str, report: bytes) -> object:
    found = [f["metrics"] for f in json.loads(report) if f["name"] == name]
    return found[0] if found else None


def sender_to(deliver: Deliver) -> InferenceResponseSender:
    return InferenceResponseSender(ResponseStream(deliver, lambda: None))


def test_after_the_final_flag_nothing_can_be_sent() -> None:
    said: list[tuple[object, bool]] = []
    sender = sender_to(lambda *what: said.append(what))
    response = pb_utils.InferenceResponse()
    sender.send(response)
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    with pytest.raises(pb_utils.TritonModelException, match="has been closed"):
        sender.send(response)
    assert said == [(response, False), (None, True)]


@pytest.mark.parametrize(("response", "flags"), [(None, 0), (None, 2), ("x", 1)])
def test_a_sender_refuses_what_says_nothing(response: object, flags: int) -> None:
    sender = sender_to(lambda *_: None)
    with pytest.raises(pb_utils.TritonModelException):
        sender.send(response, flags)  # type: ignore[arg-type]


def test_the_parameters_of_a_response_are_plain() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="found 'a': list"):
        pb_utils.InferenceResponse(parameters={"a": []})
