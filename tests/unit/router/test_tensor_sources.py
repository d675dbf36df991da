"""Requests in the form that workers know, whatever form the client chose."""

import pytest

from protos import inference_pb2 as pb
from services.core.errors import InvalidRequestError, ModelNotFoundError
from services.core.shared_memory_region import REGION_PARAMETER, SharedMemoryRegion
from services.router.request_split import split_request
from services.router.shared_memory_registry import SharedMemoryRegistry
from services.router.tensor_sources import normal_sources
from tests.unit.router.routes import Request, add_sub_request

PLACE = SharedMemoryRegion(key="/data", offset=100, byte_size=256)
Parameter = pb.InferParameter


def registry() -> SharedMemoryRegistry:
    regions = SharedMemoryRegistry(is_allowed=True, size_of=lambda _: 1000)
    regions.register("r", PLACE)
    return regions


def share(
    tensor: Request.InferInputTensor | Request.InferRequestedOutputTensor,
    *,
    offset: int = 0,
    byte_size: int = 64,
) -> None:
    tensor.parameters["shared_memory_region"].string_param = "r"
    tensor.parameters["shared_memory_offset"].int64_param = offset
    tensor.parameters["shared_memory_byte_size"].int64_param = byte_size


def normal(request: pb.ModelInferRequest) -> tuple[pb.ModelInferRequest, list[object]]:
    body = request.SerializeToString()
    found = normal_sources(*split_request(body), body, registry())
    return Request.FromString(found.body), list(found.contents)


def test_raw_contents_are_left_as_they_are() -> None:
    request = add_sub_request(outputs=[Request.InferRequestedOutputTensor(name="O")])
    body = request.SerializeToString()
    found = normal_sources(*split_request(body), body, registry())
    assert found.body is body
    assert found.contents == [bytes(64), bytes(64)]


def test_the_worker_is_told_where_shared_tensors_are() -> None:
    request = add_sub_request(
        outputs=[Request.InferRequestedOutputTensor(name="OUTPUT0")],
        raw_input_contents=[b"b" * 64],
    )
    share(request.inputs[0], offset=8)
    share(request.outputs[0], offset=128)
    told, contents = normal(request)
    first = SharedMemoryRegion(key="/data", offset=108, byte_size=64)
    assert contents == [first, b"b" * 64]
    assert list(told.raw_input_contents) == [b"b" * 64]
    assert dict(told.inputs[0].parameters) == {
        REGION_PARAMETER: Parameter(string_param=first.encode())
    }
    assert told.outputs[0].parameters[REGION_PARAMETER].string_param == "228:64::/data"
    assert SharedMemoryRegion.decode(first.encode()) == first


def test_an_output_alone_may_be_shared() -> None:
    request = add_sub_request(
        outputs=[Request.InferRequestedOutputTensor(name="OUTPUT0")]
    )
    share(request.outputs[0])
    told, contents = normal(request)
    assert told.outputs[0].parameters[REGION_PARAMETER].string_param == "100:64::/data"
    assert contents == list(told.raw_input_contents) == [bytes(64), bytes(64)]


def test_typed_contents_beside_shared_memory_become_raw() -> None:
    request = add_sub_request(raw_input_contents=[])
    share(request.inputs[0])
    request.inputs[1].contents.int_contents.extend(range(16))
    told, contents = normal(request)
    assert len(told.raw_input_contents) == 1
    assert contents[1] == told.raw_input_contents[0]
    assert not told.inputs[1].HasField("contents")


def refusal(request: pb.ModelInferRequest) -> str:
    with pytest.raises((InvalidRequestError, ModelNotFoundError)) as caught:
        normal(request)
    return str(caught.value)


def test_no_client_names_a_place_itself() -> None:
    request = add_sub_request(outputs=[Request.InferRequestedOutputTensor(name="O")])
    for tensor in (request.inputs[1], request.outputs[0]):
        tensor.parameters[REGION_PARAMETER].string_param = "0:8::/secret"
        assert refusal(request) == "parameter 'nereid_shared_memory' is reserved"
        tensor.parameters.clear()


@pytest.mark.parametrize("key", ["shared_memory_offset", "shared_memory_byte_size"])
def test_a_place_without_a_region_is_refused(key: str) -> None:
    request = add_sub_request()
    request.inputs[0].parameters[key].int64_param = 1
    assert f"'{key}' can not be specified without" in refusal(request)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("shared_memory_region", "string_param"),
        ("shared_memory_offset", "int64_param"),
        ("shared_memory_byte_size", "int64_param"),
    ],
)
def test_parameters_of_another_type_are_refused(key: str, expected: str) -> None:
    request = add_sub_request()
    share(request.inputs[0])
    request.inputs[0].parameters[key].bool_param = True
    assert refusal(request).endswith(f"tensor 'INPUT0', expected {expected}.")


def test_a_region_without_a_size_is_refused() -> None:
    request = add_sub_request()
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"
    assert "'shared_memory_byte_size' must be specified" in refusal(request)


def test_contents_and_shared_memory_at_once_are_refused() -> None:
    request = add_sub_request(raw_input_contents=[bytes(64)])
    share(request.inputs[0])
    request.inputs[0].contents.int_contents.append(1)
    assert refusal(request).startswith("unexpected 'content' provided")


def test_raw_contents_for_a_shared_tensor_are_one_too_many() -> None:
    request = add_sub_request()
    share(request.inputs[0])
    assert refusal(request).startswith("expected 1 raw_input_contents")


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (Parameter(string_param="3"), "expected int64_param"),
        (Parameter(int64_param=-1), "expected >= 0"),
        (Parameter(uint64_param=2**32), "expected >= 0"),
    ],
)
def test_a_number_of_classes_that_is_none_is_refused(
    parameter: pb.InferParameter, message: str
) -> None:
    request = add_sub_request(outputs=[Request.InferRequestedOutputTensor(name="O")])
    request.outputs[0].parameters["classification"].CopyFrom(parameter)
    assert refusal(request).endswith(message)


def test_classes_in_shared_memory_are_refused() -> None:
    request = add_sub_request(outputs=[Request.InferRequestedOutputTensor(name="O")])
    share(request.outputs[0])
    request.outputs[0].parameters["classification"].int64_param = 2
    assert refusal(request).startswith("output can't set both")
