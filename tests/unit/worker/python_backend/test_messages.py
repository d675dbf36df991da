import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.python_backend import messages, shared_memory
from services.worker.python_backend.frames import Frame, FrameSocket, Kind
from services.worker.python_backend.messages import (
    CallMessage,
    ReplyMessage,
    TensorPlace,
)

sizes = st.integers(0, 2**40)
tensors = st.builds(
    TensorPlace,
    slot=st.integers(0, 9),
    datatype=st.integers(1, 14),
    offset=sizes,
    size=sizes,
    shape=st.lists(sizes, max_size=4).map(tuple),
)
places = st.lists(tensors, max_size=3).map(tuple)
calls = st.builds(
    CallMessage,
    request_id=st.text(max_size=9),
    details=st.text(max_size=9),
    outputs=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    inputs=places,
)
replies = st.none() | st.builds(
    ReplyMessage,
    code=st.integers(0, 16),
    text=st.text(max_size=9),
    parameters=st.text(max_size=9),
    outputs=places,
)


@given(batch=sizes, batch_calls=st.lists(calls, max_size=4))
def test_calls_come_out_as_they_went_in(
    batch: int, batch_calls: list[CallMessage]
) -> None:
    body = messages.pack_calls(batch, batch_calls)
    assert messages.unpack_calls(body) == (batch, batch_calls)


@given(
    numbers=st.lists(sizes, max_size=3),
    answers=st.lists(replies, max_size=4),
    tail=st.binary(max_size=9),
)
def test_replies_come_out_as_they_went_in(
    numbers: list[int], answers: list[ReplyMessage | None], tail: bytes
) -> None:
    body = messages.pack_replies(numbers, answers) + tail
    *found, payload = messages.unpack_replies(body, len(numbers))
    assert (*found, bytes(payload)) == (numbers, answers, tail)


@given(st.lists(st.integers(0, 1000), max_size=9))
def test_places_are_aligned_and_apart(wanted: list[int]) -> None:
    offsets, total = shared_memory.places(wanted)
    assert all(offset % shared_memory.ALIGNMENT == 0 for offset in offsets)
    for size, offset, after in zip(wanted, offsets, [*offsets, total][1:], strict=True):
        assert offset + size <= after


def pair() -> tuple[FrameSocket, FrameSocket]:
    ours, theirs = socket.socketpair()
    return FrameSocket(ours), FrameSocket(theirs)


def test_frames_are_told_apart_however_they_arrive() -> None:
    ours, theirs = socket.socketpair()
    receiver = FrameSocket(theirs)
    sender = FrameSocket(ours)
    for body in (b"", b"one", b"x" * 1000):
        sender.send(Kind.DONE, body)
    found = [receiver.receive() for _ in range(3)]
    assert [frame.body for frame in found] == [b"", b"one", b"x" * 1000]


def test_a_frame_larger_than_the_sockets_buffer_arrives_whole() -> None:
    sender, receiver = pair()
    body = os.urandom(5 << 20)
    thread = threading.Thread(target=sender.send, args=(Kind.EXECUTE, body))
    thread.start()
    assert receiver.receive() == Frame(Kind.EXECUTE, body, ())
    thread.join()


def test_memory_is_passed_on_and_seen_by_both() -> None:
    sender, receiver = pair()
    arena, descriptor = shared_memory.create(100)
    sender.send(Kind.LOG, b"before")
    sender.send(Kind.EXECUTE, b"", (descriptor,))
    os.close(descriptor)
    assert receiver.receive().descriptors == ()
    adopted = shared_memory.adopt(receiver.receive().descriptors[0])
    arena.memory[7:10] = b"abc"
    assert adopted.size == arena.size
    assert adopted.memory[7:10] == b"abc"


def test_what_was_sent_before_the_end_is_received() -> None:
    sender, receiver = pair()
    sender.send(Kind.DONE, b"last")
    sender.hang_up()
    assert receiver.receive().body == b"last"
    with pytest.raises(EOFError):
        receiver.receive()
