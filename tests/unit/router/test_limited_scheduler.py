"""A scheduler whose instances take turns: puppets that get them from the test."""

from collections.abc import Callable
from functools import partial

import pytest

from services.core.model_config import DynamicBatching, InstanceGroup
from services.core.model_config_placement import (
    InstanceKind,
    RateLimiter,
    RateLimiterResource,
)
from services.router.limited_scheduler import LimitedScheduler, is_limited
from services.router.pending_request import Execution
from tests.unit.router.routes import add_sub, route
from tests.unit.router.stage import (
    MS,
    PuppetInstance,
    Stage,
    response,
)
from tests.unit.router.stage import staged as stage_of


class PuppetTaker(PuppetInstance):
    """Its turn comes when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.has_turn = False
        self.passed = 0
        self._on_turn: Callable[[], None] | None = None

    @property
    def is_asking(self) -> bool:
        return self._on_turn is not None

    def ask(self, on_turn: Callable[[], None]) -> None:
        assert not self.is_asking
        assert not self.has_turn
        self._on_turn = on_turn

    def pass_turn(self) -> None:
        assert self.has_turn
        self.has_turn = False
        self.passed += 1

    def execute(self, execution: Execution) -> None:
        assert self.has_turn, "executed out of turn"
        self.has_turn = False
        super().execute(execution)

    def turn(self) -> None:
        """Give it the turn it has asked for."""
        on_turn, self._on_turn = self._on_turn, None
        assert on_turn is not None, "a turn that nobody asked for"
        self.has_turn = True
        on_turn()


def staged(batching: DynamicBatching | None = None) -> Stage:
    config = add_sub(dynamic_batching=batching or DynamicBatching())
    return stage_of(config, kind=LimitedScheduler)


def asks(*instances: PuppetTaker) -> list[bool]:
    return [instance.is_asking for instance in instances]


def taker(stage: Stage) -> PuppetTaker:
    instance = PuppetTaker()
    stage.scheduler.attach(instance)
    return instance


def test_an_instance_is_asked_for_a_turn_only_when_there_is_a_request() -> None:
    stage = staged()
    instance = taker(stage)
    assert asks(instance) == [False]
    stage.enqueue("a")
    assert (asks(instance), instance.names()) == ([True], [])
    instance.turn()
    assert instance.names() == [["a"]]


def test_the_batch_grows_until_the_turn_comes() -> None:
    stage = staged()
    instance = taker(stage)
    stage.enqueue("a")
    stage.enqueue("b", "c")
    instance.turn()
    assert instance.names() == [["a", "b", "c"]]


def test_who_waits_for_a_turn_may_leave_or_expire() -> None:
    stage = staged()
    instance = taker(stage)
    gone, _ = stage.enqueue("gone", "b")
    stage.scheduler.forget(gone)
    instance.turn()
    assert instance.names() == [["b"]]


def test_a_turn_that_nobody_needs_any_more_is_given_back() -> None:
    stage = staged()
    instance = taker(stage)
    (gone,) = stage.enqueue("gone")
    stage.scheduler.forget(gone)
    instance.turn()
    assert (instance.passed, instance.names()) == (1, [])
    stage.enqueue("b")
    instance.turn()
    assert instance.names() == [["b"]]


def test_the_next_turn_is_asked_for_while_the_instance_executes() -> None:
    stage = staged()
    instance = taker(stage)
    stage.enqueue("a")
    instance.turn()
    assert asks(instance) == [False]
    stage.enqueue("b")
    assert asks(instance) == [True]
    instance.turn()
    assert instance.names() == [["a"]]  # one batch at a time
    stage.complete(instance, response(b"A"))
    assert instance.names() == [["b"]]


def test_a_turn_that_came_early_is_given_back_if_nobody_waits_in_the_end() -> None:
    stage = staged()
    instance = taker(stage)
    stage.enqueue("a")
    instance.turn()
    (gone,) = stage.enqueue("gone")
    instance.turn()
    stage.scheduler.forget(gone)
    stage.complete(instance, response(b"A"))
    assert instance.passed == 1


def test_every_instance_asks_and_who_comes_too_late_gives_its_turn_back() -> None:
    stage = staged()
    first, second = taker(stage), taker(stage)
    stage.enqueue("a")
    assert asks(first, second) == [True, True]
    second.turn()
    first.turn()
    assert (second.names(), first.passed) == ([["a"]], 1)


def test_an_instance_without_a_limit_beside_them_is_used_at_once() -> None:
    stage = staged()
    limited = taker(stage)
    stage.enqueue("a")
    free = stage.instance()
    assert free.names() == [["a"]]
    limited.turn()
    assert limited.passed == 1


def test_a_batch_that_waits_for_company_asks_for_no_turn_before() -> None:
    stage = staged(DynamicBatching(max_queue_delay_ns=5 * MS))
    instance = taker(stage)
    stage.enqueue("a")
    assert asks(instance) == [False]
    stage.advance(5 * MS)
    assert asks(instance) == [True]
    instance.turn()
    assert instance.names() == [["a"]]


def test_what_a_lost_instance_was_executing_asks_the_others() -> None:
    stage = staged()
    lost = taker(stage)
    stage.enqueue("a")
    lost.turn()
    other = taker(stage)
    stage.lose(lost)
    other.turn()
    assert other.names() == [["a"]]


def test_it_is_quiet_when_nothing_waits_and_nothing_executes() -> None:
    stage = staged()
    instance = taker(stage)
    quiet: list[str] = []
    stage.enqueue("a")
    stage.scheduler.when_quiet(partial(quiet.append, "quiet"))
    assert quiet == []
    instance.turn()
    assert quiet == []
    stage.complete(instance, response(b"A"))
    assert quiet == ["quiet"]


def test_waiting_for_a_turn_counts_as_waiting_in_the_queue() -> None:
    stage = staged()
    instance = taker(stage)
    stage.enqueue("a")
    assert stage.scheduler.waiting == 1
    stage.clock_ns = 7 * MS
    instance.turn()
    stage.complete(instance, response(b"A"))
    assert stage.scheduler.statistics.queue.ns == 7 * MS


@pytest.mark.parametrize(
    ("limiter", "limited"),
    [
        (None, False),
        (RateLimiter(priority=2), False),
        (RateLimiter(resources=(RateLimiterResource(name="r", count=1),)), True),
    ],
)
def test_only_models_that_need_resources_are_limited(
    limiter: RateLimiter | None, limited: bool
) -> None:
    group = InstanceGroup(name="g", kind=InstanceKind.CPU, rate_limiter=limiter)
    assert is_limited(route(add_sub(instance_groups=(group,)))) is limited
