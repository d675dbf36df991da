"""Routers and control together: of all requests one of ``rate`` is sampled."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from services.control.shared_rate import Progress, SharedRate
from services.router.trace_sampler import TraceSampler, TraceScope, TraceSettings

ROUTERS = "abc"


class Stack:
    """Samplers, and what is on its way between them and control."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.control = SharedRate()
        self.samplers = {name: TraceSampler() for name in ROUTERS}
        for sampler in self.samplers.values():
            scope = TraceScope(session=1, rate=rate)
            sampler.follow(TraceSettings(overall=scope))
        self.up: dict[str, deque[Progress]] = {name: deque() for name in ROUTERS}
        self.down: dict[str, deque[int]] = {name: deque() for name in ROUTERS}
        self.requests = self.sampled = 0

    def infer(self, router: str) -> None:
        self.requests += 1
        self.sampled += self.samplers[router].sample("m") is not None

    def tell(self, router: str) -> None:
        for each in self.samplers[router].progress():
            self.up[router].append(
                Progress(session=1, counted=each.counted, moves=each.moves)
            )

    def hear(self, router: str) -> None:
        if self.up[router]:
            told = self.up[router].popleft()
            for move in self.control.told(router, told, self.rate):
                self.down[move.router].append(move.by)

    def obey(self, router: str) -> None:
        if self.down[router]:
            self.samplers[router].move(1, self.down[router].popleft())

    def settle(self) -> None:
        """Let everything arrive that is on its way."""
        for _ in range(4):
            for router in ROUTERS:
                self.tell(router)
                while self.up[router]:
                    self.hear(router)
                for each in ROUTERS:
                    while self.down[each]:
                        self.obey(each)

    def counted(self, router: str) -> int:
        return self.samplers[router].counter_of("m").progress.counted


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["infer", "infer", "infer", "tell", "hear", "obey"]),
        st.sampled_from(ROUTERS),
    ),
    max_size=200,
)


@given(rate=st.integers(2, 12), steps=STEPS)
def test_no_request_is_lost_or_counted_twice_whenever_messages_come(
    rate: int, steps: list[tuple[str, str]]
) -> None:
    stack = Stack(rate)
    for action, router in steps:
        getattr(stack, action)(router)
        on_its_way = sum(map(sum, stack.down.values()))
        counted = sum(map(stack.counted, ROUTERS)) + on_its_way
        assert stack.sampled * rate + counted == stack.requests
    stack.settle()
    # Whoever comes next to a router that has enough is sampled.
    if stack.requests - stack.sampled * rate >= rate:
        assert max(map(stack.counted, ROUTERS)) >= rate


@given(rate=st.integers(2, 12), routers=st.lists(st.sampled_from(ROUTERS), max_size=99))
def test_no_trace_is_missed_and_none_is_too_many(rate: int, routers: list[str]) -> None:
    stack = Stack(rate)
    for router in routers:
        stack.infer(router)
        stack.settle()
        assert stack.sampled <= stack.requests // rate
    due = stack.requests // rate
    for router in ROUTERS:
        while stack.counted(router) >= rate:
            stack.infer(router)
    assert stack.sampled >= due
