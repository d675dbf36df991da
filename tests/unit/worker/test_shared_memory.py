"""Shared memory mapped, read and written; requests whose tensors lie in it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from protos import inference_pb2
from services.core.errors import InternalError
from services.core.shared_memory_region import REGION_PARAMETER, SharedMemoryRegion
from services.worker.execution import Execution
from services.worker.shared_memory import gather, read_region, write_region
from tests.unit.worker.messages import (
    Answer,
    answers,
    batch,
    ints,
    request,
    signature,
)
from tests.unit.worker.puppets import ManualClock, PuppetBackend

A = ints(1, 2, 3, 4)
B = ints(10, 20, 30, 40)
PAGE = 4096


@pytest.fixture
def shared() -> Iterator[Callable[[bytes], str]]:
    """Create objects in shared memory; they are gone afterwards."""
    paths: list[Path] = []

    def create(content: bytes) -> str:
        key = f"/nereid-test-{uuid4().hex}"
        paths.append(Path(f"/dev/shm{key}"))  # noqa: S108
        paths[-1].write_bytes(content)
        return key

    yield create
    for path in paths:
        path.unlink()


def region(key: str, offset: int, byte_size: int) -> SharedMemoryRegion:
    return SharedMemoryRegion(key=key, offset=offset, byte_size=byte_size)


def content_of(key: str) -> bytes:
    return Path(f"/dev/shm{key}").read_bytes()  # noqa: S108


@pytest.mark.parametrize("offset", [0, 1, PAGE - 1, PAGE, PAGE + 1])
def test_a_region_is_read_and_written_from_its_first_byte_on(
    shared: Callable[[bytes], str], offset: int
) -> None:
    key = shared(bytes(offset) + b"abcdef" + bytes(9))
    assert bytes(read_region(region(key, offset, 6))) == b"abcdef"
    write_region(region(key, offset + 2, 4), b"XY")
    assert content_of(key) == bytes(offset) + b"abXYef" + bytes(9)


def test_nothing_is_read_of_an_empty_region(shared: Callable[[bytes], str]) -> None:
    assert bytes(read_region(region(shared(b""), 0, 0))) == b""


@pytest.mark.parametrize("key", ["/nereid-test-none", "", "/", "/..", "/a/../b"])
def test_a_region_that_is_not_here_is_an_error(key: str) -> None:
    with pytest.raises(InternalError, match="cannot be used by this worker"):
        read_region(region(key, 0, 1))


def test_memory_that_became_smaller_is_an_error(shared: Callable[[bytes], str]) -> None:
    key = shared(b"abc")
    with pytest.raises(InternalError, match="has become smaller"):
        read_region(region(key, 0, 4))
    with pytest.raises(InternalError, match="has become smaller"):
        write_region(region(key, 2, 2), b"x")


def test_inputs_of_one_object_are_not_copied(shared: Callable[[bytes], str]) -> None:
    key = shared(b"..aabbb")
    source, spans = gather((region(key, 4, 3), region(key, 2, 2)), b"", ())
    assert isinstance(source, memoryview)
    assert [bytes(source[a:b]) for a, b in spans] == [b"bbb", b"aa"]


def test_inputs_of_message_and_memory_are_joined(
    shared: Callable[[bytes], str],
) -> None:
    regions = (region(shared(b"aa"), 0, 2), None, region(shared(b"ccc"), 1, 2))
    source, spans = gather(regions, b"-bb-", ((0, 0), (1, 3), (3, 3)))
    assert [bytes(source[a:b]) for a, b in spans] == [b"aa", b"bb", b"cc"]


def run(*requests: inference_pb2.ModelInferRequest) -> list[Answer]:
    execution = Execution(signature(), PuppetBackend(), ManualClock())
    return answers(execution.run(batch(*requests)))


def shares(
    message: inference_pb2.ModelInferRequest, name: str, where: SharedMemoryRegion
) -> None:
    """Have the input or output ``name`` lie in shared memory."""
    for tensor in message.inputs:
        if tensor.name == name:
            tensor.parameters[REGION_PARAMETER].string_param = where.encode()
    for output in message.outputs:
        if output.name == name:
            output.parameters[REGION_PARAMETER].string_param = where.encode()


def test_a_request_is_answered_from_and_into_shared_memory(
    shared: Callable[[bytes], str],
) -> None:
    key = shared(A.tobytes() + B.tobytes() + bytes(16))
    message = request({"A": A, "B": B}, outputs=["SUM", "DIFF"])
    del message.raw_input_contents[:]
    shares(message, "A", region(key, 0, 16))
    shares(message, "B", region(key, 16, 16))
    shares(message, "SUM", region(key, 32, 16))
    plain = request({"A": A + 1, "B": B})
    mine, other = run(message, plain)
    assert mine.contents[0] == b""
    assert mine.shapes == ((1, 4), (1, 4))
    assert mine.array("DIFF").tolist() == (A - B).tolist()
    assert content_of(key)[32:] == (A + B).tobytes()
    assert other.array("SUM").tolist() == (A + 1 + B).tolist()


def test_some_inputs_may_lie_in_shared_memory(shared: Callable[[bytes], str]) -> None:
    message = request({"A": A, "B": B})
    del message.raw_input_contents[0]
    shares(message, "A", region(shared(A.tobytes()), 0, 16))
    (answer,) = run(message)
    assert answer.array("SUM").tolist() == (A + B).tolist()


def test_an_output_too_large_for_its_memory_fails_its_request_only(
    shared: Callable[[bytes], str],
) -> None:
    message = request({"A": A, "B": B}, outputs=["SUM"])
    shares(message, "SUM", region(shared(bytes(16)), 0, 15))
    failed, answered = run(message, request({"A": A, "B": B}))
    assert failed.error is not None
    assert "output 'SUM' (15 bytes) should be at least 16 bytes" in failed.error[1]
    assert answered.error is None


def test_memory_of_the_wrong_size_fails_its_request_only(
    shared: Callable[[bytes], str],
) -> None:
    message = request({"A": A, "B": B})
    del message.raw_input_contents[0]
    shares(message, "A", region(shared(A.tobytes()), 0, 12))
    failed, answered = run(message, request({"A": A, "B": B}))
    assert failed.error is not None
    assert answered.error is None


def test_classes_go_into_shared_memory_too(shared: Callable[[bytes], str]) -> None:
    key = shared(bytes(32))
    message = request({"A": A, "B": B}, outputs=["SUM"])
    message.outputs[0].parameters["classification"].int64_param = 1
    shares(message, "SUM", region(key, 0, 32))
    (answer,) = run(message)
    assert (answer.datatypes, answer.shapes) == (("BYTES",), ((1, 1),))
    assert content_of(key).startswith(b"\x04\x00\x00\x0044:3")
