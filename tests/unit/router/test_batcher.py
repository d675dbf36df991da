"""The batcher: who goes together, and when."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.batcher import Batcher, BatchPolicy

MS = 1_000_000


@dataclass(slots=True, eq=False)
class Request:
    name: object
    rows: int = 1
    shape_key: object = ()
    enqueued_ns: int = 0
    priority: int = 0
    timeout_ns: int = 0
    body: bytes = b"x"


def filled(policy: BatchPolicy, *requests: Request) -> Batcher[Request]:
    batcher: Batcher[Request] = Batcher(policy)
    for request in requests:
        batcher.enqueue(request)
    return batcher


def names(batch: tuple[Request, ...]) -> list[object]:
    return [request.name for request in batch]


def test_without_a_delay_what_is_there_goes_at_once() -> None:
    batcher = filled(BatchPolicy(max_batch_size=8), Request("a"), Request("b"))
    assert names(batcher.step(0).batch) == ["a", "b"]
    assert batcher.step(0).wake_ns is None


def test_waits_for_company_until_the_oldest_is_overdue() -> None:
    policy = BatchPolicy(max_batch_size=8, max_queue_delay_ns=5 * MS)
    batcher = filled(
        policy, Request("a", enqueued_ns=2 * MS), Request("b", enqueued_ns=6 * MS)
    )
    waiting = batcher.step(7 * MS - 1)
    assert (waiting.batch, waiting.wake_ns) == ((), 7 * MS)
    assert names(batcher.step(7 * MS).batch) == ["a", "b"]


def test_a_full_batch_does_not_wait() -> None:
    policy = BatchPolicy(max_batch_size=2, max_queue_delay_ns=5 * MS)
    batcher = filled(policy, Request("a"), Request("b"), Request("c"))
    assert names(batcher.step(0).batch) == ["a", "b"]
    assert batcher.step(0).batch == ()


def test_rows_are_counted_not_requests() -> None:
    policy = BatchPolicy(max_batch_size=4)
    batcher = filled(policy, Request("a", 3), Request("b", 2), Request("c", 1))
    assert names(batcher.step(0).batch) == ["a"]
    assert names(batcher.step(0).batch) == ["b", "c"]


def test_different_shapes_never_share_a_batch() -> None:
    policy = BatchPolicy(max_batch_size=8, max_queue_delay_ns=5 * MS)
    batcher = filled(
        policy, Request("a", shape_key=10), Request("b", shape_key=20, enqueued_ns=MS)
    )
    assert names(batcher.step(0).batch) == ["a"]
    assert batcher.step(0).wake_ns == 6 * MS


def test_a_preferred_size_goes_without_waiting() -> None:
    policy = BatchPolicy(
        max_batch_size=8, preferred_batch_sizes=(4,), max_queue_delay_ns=5 * MS
    )
    batcher = filled(policy, *(Request(i) for i in range(3)))
    assert batcher.step(0).batch == ()
    batcher.enqueue(Request(3))
    assert len(batcher.step(0).batch) == 4


def test_no_batch_is_larger_than_the_largest_preferred_size() -> None:
    policy = BatchPolicy(max_batch_size=64, preferred_batch_sizes=(4, 8))
    batcher = filled(policy, *(Request(i) for i in range(13)))
    sizes = [len(batcher.step(0).batch) for _ in range(3)]
    assert sizes == [8, 4, 1]


def test_a_request_larger_than_every_preferred_size_goes_alone() -> None:
    policy = BatchPolicy(max_batch_size=64, preferred_batch_sizes=(4,))
    batcher = filled(policy, Request("big", 16), Request("small"))
    assert names(batcher.step(0).batch) == ["big"]


def test_without_dynamic_batching_each_request_goes_alone() -> None:
    policy = BatchPolicy(max_batch_size=8, max_requests=1)
    batcher = filled(policy, Request("a"), Request("b"))
    assert batcher.is_full
    assert [names(batcher.step(0).batch) for _ in range(2)] == [["a"], ["b"]]


def test_a_request_that_was_given_up_is_not_sent() -> None:
    gone = Request("gone")
    batcher = filled(BatchPolicy(max_batch_size=8), gone, Request("a"))
    assert batcher.remove(gone)
    assert not batcher.remove(gone)
    assert names(batcher.step(0).batch) == ["a"]


@pytest.mark.parametrize("sizes", [(0,), (9,), (4, 4), (8, 4)])
def test_preferred_sizes_that_no_batch_can_have_are_refused(
    sizes: tuple[int, ...],
) -> None:
    with pytest.raises(ValueError, match="preferred"):
        BatchPolicy(max_batch_size=8, preferred_batch_sizes=sizes)


policies = st.builds(
    BatchPolicy,
    max_batch_size=st.just(8),
    max_requests=st.sampled_from([0, 1]),
    preferred_batch_sizes=st.sampled_from([(), (4,), (2, 6), (8,)]),
    max_queue_delay_ns=st.sampled_from([0, 5]),
)
arrivals = st.lists(
    st.tuples(st.integers(1, 8), st.sampled_from("xy"), st.integers(0, 3)),
    max_size=30,
)


@given(policies, arrivals)
def test_every_request_leaves_once_in_order_and_no_batch_breaks_a_rule(
    policy: BatchPolicy, arrivals: list[tuple[int, str, int]]
) -> None:
    batcher: Batcher[Request] = Batcher(policy)
    now, left, sent = 0, [], []
    for index, (rows, shape, gap) in enumerate(arrivals):
        now += gap
        request = Request(index, rows, shape, now)
        left.append(request)
        batcher.enqueue(request)
        sent.append(batcher.step(now).batch)
    while len(batcher):
        step = batcher.step(now)
        sent.append(step.batch)
        if not step.batch:
            assert step.wake_ns is not None
            assert step.wake_ns > now
            now = step.wake_ns
    assert [r for batch in sent for r in batch] == left
    assert (batcher.rows, batcher.size_bytes) == (0, 0)
    for batch in filter(None, sent):
        assert len({request.shape_key for request in batch}) == 1
        assert len(batch) == 1 or sum(r.rows for r in batch) <= policy.largest_batch
        assert policy.max_requests == 0 or len(batch) == 1
