"""Ten thousand requests, with all that can happen to them at once.

Requests come and give up, workers die and come back, devices run out of memory,
timeouts end and one request in a hundred is deadly. Whatever happens, each gets
exactly one outcome, only the deadly ones are blamed, and the counts add up.
"""

import random
from collections import Counter

import pytest

from services.core.model_config import DynamicBatching, QueuePolicy
from services.core.statistics_fields import FailureReason, failure_field
from services.router.queue_limits import QueueLimits
from services.router.retries import Isolation
from tests.unit.router.routes import add_sub
from tests.unit.router.stage import (
    MS,
    PuppetInstance,
    PuppetRequest,
    Stage,
    error,
    response,
    staged,
)

REQUESTS = 10_000
SECOND = 1_000_000_000
INTERNAL, RESOURCE_EXHAUSTED = 13, 8
DEADLY = b"deadly"


class World:
    """A stage, its living instances and everyone who ever asked."""

    def __init__(self, seed: int, batching: DynamicBatching) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self.stage: Stage = staged(
            add_sub(dynamic_batching=batching),
            QueueLimits(no_worker_timeout_ns=SECOND),
            Isolation(),
        )
        self.living: list[PuppetInstance] = []
        self.requests: list[PuppetRequest] = []
        self.workers = 0

    def ask(self) -> None:
        number = len(self.requests)
        is_deadly = self.chance.random() < 0.01
        request = PuppetRequest(
            "deadly" if is_deadly else "harmless",
            self.chance.randint(1, 3),
            enqueued_ns=self.stage.clock_ns,
            priority=self.chance.randint(0, 2),
            body=(DEADLY if is_deadly else b"") + number.to_bytes(4, "big"),
        )
        self.requests.append(request)
        self.stage.scheduler.enqueue(request)

    def give_up(self) -> None:
        request = self.chance.choice(self.requests[-50:])
        if request.open:
            request.open = False
            request.outcome.append("left")
            self.stage.scheduler.forget(request)

    def join(self) -> None:
        if len(self.living) < 4:
            self.workers += 1
            self.living.append(self.stage.instance(f"w{self.workers}"))

    def kill(self, instance: PuppetInstance) -> None:
        self.living.remove(instance)
        self.stage.lose(instance)

    def finish(self) -> None:
        """Let one execution come to its end."""
        busy = [instance for instance in self.living if instance.held]
        if not busy:
            return
        instance = self.chance.choice(busy)
        batch = instance.held[0].batch
        if any(r.body.startswith(DEADLY) for r in batch):
            self.kill(instance)
        elif len(batch) > 2 and self.chance.random() < 0.05:
            full = error(RESOURCE_EXHAUSTED, "out of memory")
            self.stage.complete(instance, *[full] * len(batch))
        else:
            self.stage.complete(instance, *[response(r.body) for r in batch])

    def pass_time(self) -> None:
        self.stage.advance(self.stage.clock_ns + self.chance.randint(0, 2 * MS))

    def turn(self) -> None:
        actions = (self.ask, self.finish, self.pass_time, self.join, self.give_up)
        self.chance.choices(actions, (10, 8, 4, 2, 1))[0]()
        self.stage.reactor.drain()

    def end(self) -> None:
        """Let everyone come to an end."""
        for _ in range(REQUESTS):
            if self.stage.scheduler.is_quiet:
                return
            self.join()
            self.finish()
            self.pass_time()
        raise AssertionError("it never became quiet")


@pytest.mark.parametrize(
    "batching",
    [
        DynamicBatching(),
        DynamicBatching(preserve_ordering=True, max_queue_delay_ns=MS),
        DynamicBatching(
            priority_levels=2,
            default_priority_level=1,
            preferred_batch_sizes=(4,),
            default_queue_policy=QueuePolicy(
                default_timeout_ns=10 * MS, max_queue_size=40
            ),
        ),
    ],
    ids=["plain", "in order", "policies"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_request_leaves_exactly_once(
    seed: int, batching: DynamicBatching
) -> None:
    world = World(seed, batching)
    while len(world.requests) < REQUESTS:
        world.turn()
    world.end()
    counted: Counter[str] = Counter()
    for request in world.requests:
        (outcome,) = request.outcome
        if isinstance(outcome, bytes):
            assert outcome == request.body
            counted["success.count"] += 1
        else:
            is_blamed = isinstance(outcome, tuple) and outcome[0] == INTERNAL
            assert not is_blamed or request.name == "deadly"
            counted["quarantined"] += is_blamed
    taken = world.stage.scheduler.statistics.take()
    assert taken is not None
    counts = taken.counts
    assert counts["success.count"] + counts["fail.count"] == REQUESTS
    reasons = (failure_field(reason) for reason in FailureReason)
    assert sum(counts.get(each, 0) for each in reasons) == counts["fail.count"]
    assert world.stage.scheduler.waiting == 0
    assert counts["quarantined"] == counted["quarantined"] > 0
    if batching.preserve_ordering:
        # An answer counts as such also if its client leaves before its turn.
        assert counts["success.count"] >= counted["success.count"] > REQUESTS // 4
    else:
        assert counts["success.count"] == counted["success.count"] > REQUESTS // 4
