"""The batcher and its queue against a second, naive model of the documented rules.

The model keeps one list and sorts it anew for every question. It is written from
Triton's documentation of the dynamic batcher and its queue policies, with our one
deviation: a batch never outgrows the largest preferred size, however late it is.

NEREID_RANDOM_QUEUES sets how many random queues both are asked about.
"""

import os
import random
from dataclasses import dataclass, field
from typing import Final

from services.core.model_config import DynamicBatching, QueuePolicy, TimeoutAction
from services.router.batcher import Batcher, BatchPolicy
from services.router.request_queue import RequestQueue, needs_policies

QUEUES: Final = int(os.environ.get("NEREID_RANDOM_QUEUES", "3000"))
MOST_ROWS: Final = 8


@dataclass(slots=True, eq=False)
class Request:
    number: int
    rows: int
    shape_key: object
    enqueued_ns: int
    priority: int
    timeout_ns: int
    body: bytes = b""


@dataclass(slots=True)
class Waiting:
    request: Request
    level: int
    expires_ns: int | None
    late: int | None = None


@dataclass(slots=True)
class NaiveModel:
    batching: DynamicBatching
    waiting: list[Waiting] = field(default_factory=list)
    lates: int = 0

    def policy(self, level: int) -> QueuePolicy:
        default = self.batching.default_queue_policy
        return self.batching.priority_queue_policies.get(level, default)

    def enqueue(self, request: Request) -> bool:
        """Tell whether the request may wait."""
        level = request.priority
        if not 1 <= level <= self.batching.priority_levels:
            level = self.batching.default_priority_level
        policy = self.policy(level)
        same = [w for w in self.waiting if w.level == level]
        if policy.max_queue_size and len(same) >= policy.max_queue_size:
            return False
        timeout_ns = policy.default_timeout_ns
        if policy.allow_timeout_override and request.timeout_ns:
            timeout_ns = min(timeout_ns, request.timeout_ns)
        expires_ns = request.enqueued_ns + timeout_ns if timeout_ns else None
        self.waiting.append(Waiting(request, level, expires_ns))
        return True

    def expire(self, now_ns: int) -> list[Request]:
        """Return who is rejected; who is delayed becomes late."""
        overdue = [
            w
            for w in self.waiting
            if w.late is None and w.expires_ns is not None and w.expires_ns <= now_ns
        ]
        overdue.sort(key=lambda w: (w.expires_ns or 0, w.request.number))
        rejected = []
        for w in overdue:
            if self.policy(w.level).timeout_action is TimeoutAction.DELAY:
                self.lates += 1
                w.late = self.lates
            else:
                rejected.append(w.request)
                self.waiting.remove(w)
        return rejected

    def order(self) -> list[Request]:
        def key(w: Waiting) -> tuple[int, bool, int]:
            return w.level, w.late is not None, w.late or w.request.number

        return [w.request for w in sorted(self.waiting, key=key)]

    def step(self, now_ns: int) -> list[Request]:
        everyone = self.order()
        preferred = self.batching.preferred_batch_sizes
        most = max(preferred) if preferred else MOST_ROWS
        fitting = [
            everyone[:n]
            for n in range(1, len(everyone) + 1)
            if n == 1
            or (
                sum(r.rows for r in everyone[:n]) <= most
                and len({r.shape_key for r in everyone[:n]}) == 1
            )
        ]
        if not fitting:
            return []
        best = [b for b in fitting if sum(r.rows for r in b) in preferred]
        largest = fitting[-1]
        cannot_grow = (
            len(largest) < len(everyone) or sum(r.rows for r in largest) >= most
        )
        due_ns = min(r.enqueued_ns for r in largest) + self.batching.max_queue_delay_ns
        if best:
            return self.take(best[-1])
        if cannot_grow or now_ns >= due_ns:
            return self.take(largest)
        return []

    def take(self, batch: list[Request]) -> list[Request]:
        self.waiting = [w for w in self.waiting if w.request not in batch]
        return batch


def random_policy(chance: random.Random) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=chance.choice(list(TimeoutAction)),
        default_timeout_ns=chance.choice([0, 3, 6]),
        allow_timeout_override=chance.random() < 0.5,
        max_queue_size=chance.choice([0, 0, 1, 3]),
    )


def random_batching(chance: random.Random) -> DynamicBatching:
    levels = chance.choice([0, 1, 3])
    return DynamicBatching(
        preferred_batch_sizes=chance.choice([(), (4,), (2, 6), (3, 5, 8)]),
        max_queue_delay_ns=chance.choice([0, 4]),
        priority_levels=levels,
        default_priority_level=chance.randint(1, levels) if levels else 0,
        default_queue_policy=random_policy(chance),
        priority_queue_policies={
            level: random_policy(chance)
            for level in range(1, levels + 1)
            if chance.random() < 0.5
        },
    )


def play(seed: int) -> None:
    """Ask both about one random queue and compare every answer."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    batching = random_batching(chance)
    model = NaiveModel(batching)
    policies: RequestQueue[Request] = RequestQueue(batching)
    policy = BatchPolicy(
        max_batch_size=MOST_ROWS,
        preferred_batch_sizes=batching.preferred_batch_sizes,
        max_queue_delay_ns=batching.max_queue_delay_ns,
    )
    batcher = Batcher(policy, policies if needs_policies(batching) else None)
    now_ns = 0
    for number in range(chance.randint(5, 25)):
        now_ns += chance.choice([0, 0, 1, 2, 5])
        assert list(batcher.expire(now_ns)) == model.expire(now_ns), seed
        kind = chance.random()
        if kind < 0.65:
            request = Request(
                number,
                chance.randint(1, 3),
                chance.choice("xxxy"),
                now_ns,
                chance.choice([0, 0, 1, 2, 3, 9]),
                chance.choice([0, 0, 2, 9]),
            )
            is_welcome = batcher.has_room(request)
            assert is_welcome == model.enqueue(request), seed
            if is_welcome:
                batcher.enqueue(request)
        elif kind < 0.75 and model.waiting:
            gone = chance.choice(model.waiting).request
            model.take([gone])
            assert batcher.remove(gone), seed
        else:
            step = batcher.step(now_ns)
            assert list(step.batch) == model.step(now_ns), seed
            assert step.wake_ns is None or step.wake_ns > now_ns, seed
        assert list(batcher._queue) == model.order(), seed
        assert batcher.rows == sum(r.rows for r in batcher._queue), seed
    assert set(batcher.drain()) == {w.request for w in model.waiting}, seed


def test_random_queues_are_scheduled_as_the_documented_rules_say() -> None:
    for seed in range(QUEUES):
        play(seed)
