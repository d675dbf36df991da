"""A scheduler on a stage: requests, instances and a clock, none of them real."""

from collections.abc import Callable
from dataclasses import dataclass, field

from protos import worker_pb2
from services.core.completion_queue import Timer
from services.core.model_config import ModelConfig
from services.router.pending_request import Execution
from services.router.queue_limits import QueueLimits
from services.router.retries import Isolation
from services.router.scheduler import Scheduler
from tests.unit.router.routes import route

MS = 1_000_000


class PuppetReactor:
    """Runs nothing until told."""

    def __init__(self) -> None:
        self.when_drained: list[Callable[[], None]] = []
        self.timers: list[Timer] = []

    def call_when_drained(self, callback: Callable[[], None]) -> None:
        if callback not in self.when_drained:
            self.when_drained.append(callback)

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when_ns, callback))
        return self.timers[-1]

    def drain(self) -> None:
        callbacks, self.when_drained = self.when_drained, []
        for callback in callbacks:
            callback()

    def fire(self, until_ns: int | None = None) -> None:
        """Call the timers that are due by then; by default all."""
        timers, self.timers = self.timers, []
        for timer in timers:
            if until_ns is not None and timer.when_ns > until_ns:
                self.timers.append(timer)
            elif timer.callback is not None:
                timer.callback()


@dataclass(eq=False)
class PuppetRequest:
    name: str
    rows: int = 1
    shape_key: object = ()
    enqueued_ns: int = 0
    priority: int = 0
    timeout_ns: int = 0
    attempts: int = 0
    body: bytes = b"x"
    open: bool = True
    outcome: list[object] = field(default_factory=list)

    def answer(self, message: bytes) -> None:
        self.outcome.append(message)
        self.open = False

    def fail(self, code: int, details: str) -> None:
        self.outcome.append((code, details))
        self.open = False


class PuppetInstance:
    """Holds what it is given."""

    worker = "w1"

    def __init__(self) -> None:
        self.held: list[Execution] = []
        self.closed = False

    def execute(self, execution: Execution) -> None:
        self.held.append(execution)

    def tell(self, notice: bytes) -> None:
        raise AssertionError(f"only sequences have something to tell: {notice!r}")

    def close(self) -> None:
        self.closed = True

    def names(self) -> list[list[str]]:
        return [[r.name for r in e.batch] for e in self.held]  # type: ignore[attr-defined]


@dataclass
class Stage:
    """A scheduler with everything around it."""

    scheduler: Scheduler
    reactor: PuppetReactor
    clock_ns: int = 0

    def enqueue(
        self, *names: str, rows: int = 1, priority: int = 0, timeout_ns: int = 0
    ) -> list[PuppetRequest]:
        requests = [
            PuppetRequest(
                n,
                rows,
                enqueued_ns=self.clock_ns,
                priority=priority,
                timeout_ns=timeout_ns,
            )
            for n in names
        ]
        for request in requests:
            self.scheduler.enqueue(request)
        self.reactor.drain()
        return requests

    def instance(self, worker: str = "w") -> PuppetInstance:
        instance = PuppetInstance()
        instance.worker = worker
        self.scheduler.attach(instance)
        return instance

    def advance(self, to_ns: int) -> None:
        """Let time pass, with the timers that are due until then."""
        self.clock_ns = to_ns
        self.reactor.fire(to_ns)
        self.reactor.drain()

    def lose(self, instance: PuppetInstance) -> None:
        """Have the worker of ``instance`` die."""
        held, instance.held = tuple(instance.held), []
        self.scheduler.detach(instance, held)
        self.reactor.drain()

    def part(self, instance: PuppetInstance) -> None:
        """Have ``instance`` leave in order, without beginning what it holds."""
        held, instance.held = tuple(instance.held), []
        self.scheduler.detach(instance, held, were_begun=False)
        self.reactor.drain()

    def complete(
        self, instance: PuppetInstance, *replies: worker_pb2.Reply, ms: int = 1
    ) -> None:
        timing = worker_pb2.BatchTiming(
            compute_input_ns=1, compute_infer_ns=ms * MS, compute_output_ns=2
        )
        message = worker_pb2.BatchResponse(timing=timing, reply=replies)
        execution = instance.held.pop(0)
        self.scheduler.completed(instance, execution, message.SerializeToString())


def staged(
    config: ModelConfig,
    limits: QueueLimits | None = None,
    isolation: Isolation | None = None,
    kind: type[Scheduler] = Scheduler,
) -> Stage:
    reactor = PuppetReactor()

    stages: list[Stage] = []

    def now_ns() -> int:
        return stages[0].clock_ns if stages else 0

    scheduler = kind(
        route(config),
        reactor,  # type: ignore[arg-type]
        now_ns,
        limits=limits,
        isolation=isolation,
    )
    stages.append(Stage(scheduler, reactor))
    return stages[0]


def response(content: bytes) -> worker_pb2.Reply:
    return worker_pb2.Reply(response=content)


def error(code: int, message: str) -> worker_pb2.Reply:
    return worker_pb2.Reply(error=worker_pb2.ReplyError(code=code, message=message))
