"""Sequences: bound to a slot, in their order, ended by END or by silence."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import InvalidRequestError
from services.router.sequence_policy import SequencePolicy
from services.router.sequencer import Sequencer

MS = 1_000_000


@dataclass(slots=True, eq=False)
class Request:
    correlation_id: int | str
    starts: bool = False
    ends: bool = False
    enqueued_ns: int = 0
    name: object = None
    timeout_ns: int = 0
    number: int = 0


def policy(**fields: object) -> SequencePolicy:
    settings: dict[str, object] = {
        "model": "seq",
        "slots": 2,
        "max_batch_size": 2,
        "keeps_slots": True,
        "max_idle_ns": 1000 * MS,
    }
    return SequencePolicy(**{**settings, **fields})  # type: ignore[arg-type]


def sequencer(instances: str = "A", **fields: object) -> Sequencer[Request, str]:
    made: Sequencer[Request, str] = Sequencer(policy(**fields))
    for instance in instances:
        made.add_instance(instance)
    return made


def start(correlation_id: int | str, at_ns: int = 0) -> Request:
    return Request(correlation_id, starts=True, enqueued_ns=at_ns)


def rows(
    made: Sequencer[Request, str], now_ns: int = 0, idle: str = "A"
) -> list[tuple[str, list[int | str | None]]]:
    return [
        (d.instance, [r.correlation_id if r else None for r in d.rows])
        for d in made.step(now_ns, idle).dispatches
    ]


def test_a_request_without_an_id_is_refused() -> None:
    for nothing in (0, ""):
        with pytest.raises(InvalidRequestError) as caught:
            sequencer().enqueue(start(nothing))
        assert str(caught.value) == (
            "inference request to model 'seq' must specify a non-zero or non-empty "
            "correlation ID"
        )


def test_a_sequence_that_was_not_started_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        sequencer().enqueue(Request(77))
    assert str(caught.value) == (
        "inference request for sequence 77 to model 'seq' must specify the START flag "
        "on the first request of the sequence"
    )


def test_after_its_end_a_sequence_must_be_started_again() -> None:
    made = sequencer()
    made.enqueue(Request(1, starts=True, ends=True))
    with pytest.raises(InvalidRequestError, match="START flag"):
        made.enqueue(Request(1))
    made.enqueue(start(1))
    assert len(made) == 2


def test_a_sequence_keeps_its_row_and_empty_rows_are_told() -> None:
    made = sequencer()
    made.enqueue(start(1))
    made.enqueue(start(2))
    assert rows(made) == [("A", [1, 2])]
    made.enqueue(Request(2))
    assert rows(made) == [("A", [None, 2])]
    made.enqueue(Request(1))
    assert rows(made) == [("A", [1])]


def test_requests_of_a_sequence_go_one_after_the_other() -> None:
    made = sequencer()
    for name in "abc":
        made.enqueue(Request(1, starts=name == "a", name=name))
    names = [made.step(0, "A").dispatches[0].requests[0].name for _ in range(3)]
    assert names == ["a", "b", "c"]
    assert made.step(0, "A").dispatches == ()


def test_a_sequence_stays_on_its_instance() -> None:
    made = sequencer("AB", slots=1, max_batch_size=1)
    made.enqueue(start(1))
    made.enqueue(start(2))
    where = {row[0]: name for name, row in rows(made, idle="AB")}
    for _ in range(3):
        made.enqueue(Request(1))
        made.enqueue(Request(2))
        again = {row[0]: name for name, row in rows(made, idle="AB")}
        assert again == where


def test_sequences_without_a_slot_wait_until_one_ends() -> None:
    made = sequencer(slots=1, max_batch_size=1)
    made.enqueue(start(1))
    made.enqueue(start(2))
    assert rows(made) == [("A", [1])]
    assert rows(made) == []
    made.enqueue(Request(1, ends=True))
    assert rows(made) == [("A", [1])]
    assert rows(made) == [("A", [2])]


def test_new_sequences_go_where_most_slots_are_free() -> None:
    made = sequencer("AB")
    for correlation_id in (1, 2, 3, 4):
        made.enqueue(start(correlation_id))
    assert rows(made, idle="AB") == [("A", [1, 3]), ("B", [2, 4])]


def test_a_silent_sequence_ends_and_makes_room() -> None:
    made = sequencer(slots=1, max_batch_size=1, max_idle_ns=10 * MS)
    made.enqueue(start(1))
    assert rows(made) == [("A", [1])]
    assert made.step(9 * MS, "A").wake_ns == 10 * MS
    made.enqueue(start(2, at_ns=9 * MS))
    assert rows(made, 10 * MS) == [("A", [2])]
    with pytest.raises(InvalidRequestError, match="START flag"):
        made.enqueue(Request(1))


def test_a_sequence_with_a_waiting_request_does_not_fall_silent() -> None:
    made = sequencer(max_idle_ns=10 * MS)
    made.enqueue(start(1))
    assert rows(made, 50 * MS) == [("A", [1])]


def test_a_second_start_begins_the_sequence_anew_in_its_slot() -> None:
    made = sequencer()
    made.enqueue(start(1))
    made.enqueue(start(1))
    assert rows(made) == [("A", [1])]
    assert rows(made) == [("A", [1])]


def test_the_direct_strategy_waits_for_utilization_up_to_its_delay() -> None:
    made = sequencer(minimum_utilization=1.0, max_queue_delay_ns=5 * MS)
    made.enqueue(start(1))
    step = made.step(0, "A")
    assert (step.dispatches, step.wake_ns) == ((), 5 * MS)
    assert rows(made, 5 * MS) == [("A", [1])]
    made.enqueue(Request(1, enqueued_ns=6 * MS))
    made.enqueue(start(2, at_ns=6 * MS))
    assert rows(made, 6 * MS) == [("A", [1, 2])]


def test_the_oldest_strategy_takes_the_oldest_of_many_candidates() -> None:
    made = sequencer(slots=4, max_batch_size=2, keeps_slots=False)
    for correlation_id, at_ns in ((1, 3), (2, 1), (3, 2)):
        made.enqueue(start(correlation_id, at_ns))
    assert rows(made, 9) == [("A", [2, 3])]
    assert rows(made, 9) == [("A", [1])]


def test_the_oldest_strategy_sends_a_preferred_size_at_once() -> None:
    made = sequencer(
        slots=4,
        max_batch_size=4,
        keeps_slots=False,
        preferred_batch_sizes=(2,),
        max_queue_delay_ns=5 * MS,
    )
    made.enqueue(start(1))
    assert rows(made) == []
    made.enqueue(start(2))
    made.enqueue(start(3))
    assert rows(made) == [("A", [1, 2])]
    assert made.step(0, "A").wake_ns == 5 * MS


def test_a_cancelled_request_ends_its_sequence() -> None:
    made = sequencer()
    first, second = start(1), Request(1)
    made.enqueue(first)
    made.enqueue(second)
    assert made.cancel(first) == (second,)
    assert len(made) == 0
    assert made.cancel(first) == ()
    with pytest.raises(InvalidRequestError, match="START flag"):
        made.enqueue(Request(1))


def test_a_lost_instance_ends_its_sequences_but_not_the_backlog() -> None:
    made = sequencer(slots=1, max_batch_size=1)
    waiting = start(1)
    made.enqueue(waiting)
    made.enqueue(start(2))
    assert made.remove_instance("A").lost == (waiting,)
    with pytest.raises(InvalidRequestError, match="START flag"):
        made.enqueue(Request(1))
    made.add_instance("B")
    assert rows(made, idle="B") == [("B", [2])]


def test_draining_forgets_every_sequence() -> None:
    made = sequencer(slots=1, max_batch_size=1)
    requests = [start(1), start(2)]
    for request in requests:
        made.enqueue(request)
    assert made.drain() == tuple(requests)
    made.enqueue(start(3))
    assert rows(made) == [("A", [3])]


operations = st.lists(
    st.tuples(st.integers(1, 5), st.booleans(), st.booleans(), st.integers(0, 3)),
    max_size=60,
)


@given(operations, st.booleans(), st.integers(1, 3))
def test_no_request_is_lost_or_overtakes_another_of_its_sequence(  # noqa: C901
    operations: list[tuple[int, bool, bool, int]], keeps_slots: bool, slots: int
) -> None:
    made = sequencer("AB", slots=slots, max_batch_size=slots, keeps_slots=keeps_slots)
    accepted: dict[int, list[int]] = {}
    sent: dict[int, list[int]] = {}
    rows_of: dict[int, tuple[str, int]] = {}
    now = 0

    def advance(idle: str) -> None:
        for dispatch in made.step(now, idle).dispatches:
            seen = [r.correlation_id for r in dispatch.requests]
            assert len(set(seen)) == len(seen) <= slots
            for row, request in enumerate(dispatch.rows):
                if request is None:
                    continue
                assert isinstance(request.correlation_id, int)
                assert isinstance(request.name, int)
                sent.setdefault(request.correlation_id, []).append(request.name)
                if keeps_slots and not request.starts:
                    assert rows_of[request.correlation_id] == (dispatch.instance, row)
                rows_of[request.correlation_id] = (dispatch.instance, row)

    for number, (correlation_id, starts, ends, gap) in enumerate(operations):
        now += gap
        request = Request(correlation_id, starts, ends, now, number)
        try:
            made.enqueue(request)
        except InvalidRequestError:
            continue
        accepted.setdefault(correlation_id, []).append(number)
        advance("A" if number % 2 else "AB")
    for correlation_id in tuple(accepted):
        try:
            made.enqueue(Request(correlation_id, ends=True, enqueued_ns=now, name=-1))
        except InvalidRequestError:
            continue
        accepted[correlation_id].append(-1)
    for _ in range(len(operations) + 10):
        advance("AB")
    assert sent == accepted
    assert len(made) == 0


def test_direct_sequences_are_held_until_slots_and_backlog_are_filled() -> None:
    made = sequencer(
        "AB", slots=1, max_batch_size=1, hold_until=3, backlog_hold_until=2
    )
    for correlation_id in (1, 2):
        made.enqueue(start(correlation_id))
    made.enqueue(Request(1))
    assert rows(made, idle="AB") == []
    made.enqueue(start(3))
    assert rows(made, idle="AB") == []
    made.enqueue(start(4))
    assert rows(made, idle="AB") == [("A", [1]), ("B", [2])]
    # Once is enough.
    assert rows(made, idle="AB") == [("A", [1])]


def test_the_backlog_alone_holds_nothing() -> None:
    made = sequencer(backlog_hold_until=2)
    made.enqueue(start(1))
    assert rows(made) == [("A", [1])]


def test_the_oldest_strategy_holds_each_instance_by_its_own_sequences() -> None:
    made = sequencer("AB", keeps_slots=False, hold_until=2, backlog_hold_until=9)
    for correlation_id in (1, 2):
        made.enqueue(start(correlation_id))
        made.enqueue(Request(correlation_id))
    assert rows(made, idle="AB") == []
    made.enqueue(start(3))
    assert rows(made, idle="AB") == [("A", [1, 3])]
    made.enqueue(start(4))
    assert rows(made, idle="AB") == [("A", [1]), ("B", [2, 4])]


def test_a_lost_instance_holds_nobody_back_when_it_returns() -> None:
    made = sequencer(hold_until=2)
    made.enqueue(start(1))
    made.remove_instance("A")
    made.add_instance("A")
    made.enqueue(start(2))
    assert rows(made) == []
    made.enqueue(start(3))
    assert rows(made) == [("A", [2, 3])]


def ended(made: Sequencer[Request, str]) -> list[tuple[str | None, int]]:
    return sorted(made.take_ended(), key=str)


def test_each_life_of_a_sequence_has_a_number_and_is_told_when_it_is_over() -> None:
    made = sequencer()
    first, again, last = start(1), start(1), Request(1, ends=True)
    for request in (first, again, last):
        made.enqueue(request)
    assert [r.number for r in (first, again, last)] == [1, 2, 2]
    rows(made)
    assert ended(made) == []
    rows(made)
    assert ended(made) == [("A", 1)]
    rows(made)
    assert ended(made) == [("A", 2)]


def test_a_life_that_was_never_executed_leaves_no_state() -> None:
    made = sequencer()
    request = start(1)
    made.enqueue(request)
    made.cancel(request)
    assert ended(made) == []


def test_silence_and_cancellation_end_a_life_too() -> None:
    made = sequencer("A", max_idle_ns=10)
    for correlation_id in (1, 2):
        made.enqueue(start(correlation_id))
    rows(made)
    missed = Request(2)
    made.enqueue(missed)
    made.cancel(missed)
    assert ended(made) == [("A", 2)]
    rows(made, now_ns=10)
    assert ended(made) == [("A", 1)]


def test_a_request_that_is_cancelled_while_it_is_executed_ends_its_sequence() -> None:
    made = sequencer(slots=1, max_batch_size=1)
    first, second = start(1), Request(1)
    made.enqueue(first)
    made.enqueue(second)
    rows(made)
    made.enqueue(start(2))
    assert made.cancel(first) == (second,)
    assert 1 not in made
    assert not made.completed(first)
    assert rows(made) == [("A", [2])]


def test_a_cancelled_request_that_was_answered_ends_nothing() -> None:
    made = sequencer()
    first = start(1)
    made.enqueue(first)
    rows(made)
    made.completed(first)
    assert made.cancel(first) == ()
    assert 1 in made


def test_a_timeout_ends_a_sequence_that_waits_for_a_slot_and_no_other() -> None:
    made = sequencer(slots=1, max_batch_size=1)
    bound = Request(1, starts=True, timeout_ns=5)
    late = Request(2, starts=True, timeout_ns=9)
    sooner = Request(2, enqueued_ns=1, timeout_ns=4)
    patient = start(3)
    for request in (bound, late, sooner, patient):
        made.enqueue(request)
    step = made.step(4, "")
    assert (step.expired, step.wake_ns) == ((), 5)
    assert made.step(5, "").expired == (late, sooner)
    assert made.step(1000, "").expired == ()
    assert 2 not in made
    assert len(made) == 2


def test_the_timeout_counts_no_longer_once_there_is_a_slot() -> None:
    made = sequencer("", slots=1, max_batch_size=1)
    made.enqueue(Request(1, starts=True, timeout_ns=5))
    made.add_instance("A")
    assert made.step(6, "").expired == ()
    assert rows(made, now_ns=6) == [("A", [1])]


def iterative() -> Sequencer[Request, str]:
    return sequencer(slots=1, max_batch_size=1, is_iterative=True)


def test_what_a_model_wants_back_is_its_next_request_without_start() -> None:
    made = iterative()
    request = start(1)
    made.enqueue(request)
    made.enqueue(start(2))
    for _ in range(3):
        assert rows(made) == [("A", [1])]
        assert made.completed(request, again=True)
        assert (request.starts, request.ends) == (False, False)
    assert rows(made) == [("A", [1])]
    assert not made.completed(request)
    assert 1 not in made
    assert rows(made) == [("A", [2])]


def test_a_sequence_that_was_cancelled_takes_nothing_back() -> None:
    made = iterative()
    request = start(1)
    made.enqueue(request)
    rows(made)
    made.cancel(request)
    assert not made.completed(request, again=True)
    assert rows(made) == []


def resumable(instances: str = "A") -> Sequencer[Request, str]:
    return sequencer(instances, slots=1, max_batch_size=1, is_resumable=True)


def test_a_sequence_that_may_resume_begins_with_what_was_being_executed() -> None:
    made = resumable()
    first, second, other = start(1), Request(1), start(2)
    for request in (first, second, other):
        made.enqueue(request)
    rows(made)
    orphans = made.remove_instance("A", may_resume=True)
    assert orphans.lost == ()
    (sequence,) = orphans.homeless
    assert list(sequence.requests) == [first, second]
    assert sequence.held == 1
    made.resume(sequence)
    made.add_instance("B")
    assert rows(made, idle="B") == [("B", [1])]


def test_the_last_request_keeps_its_slot_until_it_is_answered() -> None:
    made = resumable()
    only = Request(1, starts=True, ends=True)
    made.enqueue(only)
    made.enqueue(start(2))
    rows(made)
    assert 1 in made
    made.completed(only)
    assert 1 not in made
    assert rows(made) == [("A", [2])]


def test_a_sequence_that_is_given_up_returns_all_that_waited() -> None:
    made = resumable()
    first, second = start(1), Request(1)
    made.enqueue(first)
    made.enqueue(second)
    rows(made)
    (sequence,) = made.remove_instance("A", may_resume=True).homeless
    assert made.give_up(sequence) == (first, second)
    assert made.give_up(sequence) == ()
    made.resume(sequence)
    made.add_instance("A")
    assert rows(made) == []
