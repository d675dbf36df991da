"""Requests that wait until their model is loaded."""

from dataclasses import dataclass, field

import grpc
import pytest

from services.core.errors import StoppingError
from services.router.waiting_room import WaitingRoom
from tests.unit.router.stage import PuppetRequest

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]


@dataclass
class Room:
    """A waiting room with a clock, and who was let in."""

    now_ns: int = 0
    let_in: list[str] = field(default_factory=list)
    room: WaitingRoom = field(init=False)

    def __post_init__(self) -> None:
        self.room = WaitingRoom(100, lambda: self.now_ns, most_requests=2)

    def enter(
        self, name: str, model: str = "m", size: int = 10, timeout: int = 0
    ) -> PuppetRequest:
        request = PuppetRequest(name)
        self.room.enter(
            request,
            model,
            size_bytes=size,
            go_on=lambda: self.let_in.append(name),
            timeout_ns=timeout,
        )
        return request


@pytest.fixture
def room() -> Room:
    return Room()


def test_everybody_goes_on_when_the_model_is_there_in_order(room: Room) -> None:
    for name, model in (("a", "m"), ("b", "n"), ("c", "m")):
        room.enter(name, model)
    assert list(room.room.wanted) == ["m", "n"]
    room.now_ns = 7
    room.room.let_in(lambda model: model == "m")
    assert room.let_in == ["a", "c"]
    assert list(room.room.wanted) == ["n"]
    assert room.room.waits == {"m": (2, 14)}


def test_who_finds_no_room_is_refused_at_once(room: Room) -> None:
    kept = [room.enter("a"), room.enter("b")]
    third = room.enter("c")
    large = room.enter("d", "n", size=81)
    assert all(not each.outcome for each in kept)
    for refused in (third, large):
        (outcome,) = refused.outcome
        assert "too many requests wait for model" in str(outcome)
    room.room.forget(kept[0])
    room.enter("e")
    assert not room.enter("f", "n", size=80).outcome


def test_a_client_that_leaves_is_forgotten_and_wants_nothing(room: Room) -> None:
    leaving = room.enter("a")
    room.room.forget(leaving)
    room.room.forget(leaving)
    assert room.room.wanted == ()
    room.room.let_in(lambda _: True)
    assert not room.let_in
    assert not leaving.outcome


def test_who_waited_long_enough_is_refused_and_others_wait_on(room: Room) -> None:
    late, patient = room.enter("a", timeout=5), room.enter("b")
    first: int | None = room.room.next_expiry_ns
    assert first == 5
    room.now_ns = 4
    room.room.expire()
    assert late.outcome == []
    room.now_ns = 5
    room.room.expire()
    assert late.outcome == [(UNAVAILABLE, "Request timeout expired")]
    assert patient.outcome == []
    assert room.room.next_expiry_ns is None


def test_a_refusal_and_a_stop_reach_everybody_concerned(room: Room) -> None:
    asked, other = room.enter("a"), room.enter("b", "n")
    room.room.refuse("m", "no room")
    assert asked.outcome == [(UNAVAILABLE, "no room")]
    assert other.outcome == []
    room.room.refuse_all(StoppingError("bye"))
    assert other.outcome == [(UNAVAILABLE, "bye")]
    assert room.room.wanted == ()
