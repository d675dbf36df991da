"""The streams of the workers: who dialled in, and what each is executing."""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError

from protos import worker_pb2
from services.core.completion_queue import (
    NativeCall,
    NativeMetadata,
    StreamCall,
    metadata_values,
)
from services.core.errors import ModelNotReadyError
from services.core.memory_return import trim_after
from services.core.wire_format import aligned_length_prefix, length_prefix
from services.router.pending_request import Execution
from services.router.route_scheduler import (
    InstanceScheduler,
    RouteScheduler,
    StateTaker,
)
from services.router.state_notices import has_states
from services.router.streamed_replies import StreamedReplies, is_streamed

_log = structlog.get_logger(__name__)

SERVE_METHOD: Final = "/nereid.worker.WorkerDispatch/Serve"
_HELLO_KEY: Final = "nereid-instance-bin"
_REQUEST_FIELD: Final = 2
# From here on the worker does without a copy of a request that is alone.
_LARGE_BYTES: Final = 64 << 10
# Most elements have this many bytes.
_STEP: Final = 4
_INVALID_ARGUMENT: Final[int] = grpc.StatusCode.INVALID_ARGUMENT.value[0]
_CANCELLED: Final[int] = grpc.StatusCode.CANCELLED.value[0]
_FAREWELL: Final = worker_pb2.BatchResponse(farewell=True).SerializeToString()


ExecutionWatcher: TypeAlias = Callable[[Execution, bytes], None]
"""Is told of an execution and its answer, a serialized BatchResponse."""

_ASKS_TURN: Final = worker_pb2.BatchRequest(asks_turn=True).SerializeToString()
_PASSES_TURN: Final = worker_pb2.BatchRequest(passes_turn=True).SerializeToString()
_TURN: Final = worker_pb2.BatchResponse(turn=True).SerializeToString()

_LOST_TEXT: Final = "the worker was lost before its last response"


class InstanceStream(StreamCall):
    """One model instance of one worker, dialled in."""

    __slots__ = (
        "_executions",
        "_is_leaving",
        "_on_leave",
        "_scheduler",
        "_state_taker",
        "_streamed",
        "_streaming",
        "_take_arrived",
        "_watchers",
        "hello",
    )

    def __init__(  # noqa: PLR0917 - a call's three, then ours
        self,
        call: NativeCall,
        method: str,
        metadata: NativeMetadata,
        hello: worker_pb2.InstanceHello,
        on_leave: "Callable[[InstanceStream], None]",
        watchers: Sequence[ExecutionWatcher],
        take_arrived: Callable[[], None],
    ) -> None:
        """Greet the instance; it serves once ``serve`` gave it a scheduler."""
        super().__init__(call, method, metadata)
        self._on_leave = on_leave
        self._watchers = watchers
        self._take_arrived = take_arrived
        self.hello = hello
        self._scheduler: InstanceScheduler | None = None
        self._executions: deque[Execution] = deque()
        self._is_leaving = False
        self._streamed: StreamedReplies | None = None
        self._state_taker: StateTaker | None = None
        self._streaming = 0
        self.begin()
        # At once, so that one who leaves again before its route came is seen.
        self.read()

    @property
    def worker(self) -> str:
        """Whose instance it is."""
        return self.hello.worker_id

    def serve(self, scheduler: InstanceScheduler) -> None:
        """Execute the batches of ``scheduler`` from now on."""
        self._scheduler = scheduler
        if scheduler.route.config.decoupled:
            self._streamed = StreamedReplies(scheduler.statistics)
        if scheduler.route.config.checkpoints_states and isinstance(
            scheduler, StateTaker
        ):
            self._state_taker = scheduler
        scheduler.attach(self)

    def execute(self, execution: Execution) -> None:
        """Send the batch as one message: the clients' own bytes, joined."""
        parts = []
        for request in execution.batch:
            body = request.body
            parts.append(length_prefix(_REQUEST_FIELD, len(body)))
            parts.append(body)
        if len(parts[-1]) >= _LARGE_BYTES and len(execution.batch) == 1:
            # The worker then uses the tensor at its end where it is.
            parts[0] = aligned_length_prefix(_REQUEST_FIELD, len(parts[1]), _STEP)
        self._executions.append(execution)
        if self._streamed is not None:
            self._streamed.began(execution, self._tell_of_requests)
            self._tell_streaming()
        message = b"".join(parts)
        trim_after(message)
        self.send(message)

    def tell(self, notice: bytes) -> None:
        """Send what is no batch."""
        self.send(notice)

    def received(self, message: bytes) -> None:
        """Take the answer to the oldest batch, or what a decoupled model streams."""
        self.read()
        if message == _FAREWELL:
            self._is_leaving = True
            return
        trim_after(message)
        if self._streamed is not None and is_streamed(message):
            now_ns, at_ms = time.monotonic_ns(), time.time_ns() // 1_000_000
            self._streamed.take(message, now_ns, at_ms)
            self._tell_streaming()
            return
        if self._state_taker is not None and has_states(message):
            self._state_taker.take_states(self, message)
            return
        if self._scheduler is None or not self._executions:
            _log.error(
                "an instance answered unasked", instance=self.hello.instance_name
            )
            return
        self._take_arrived()
        execution = self._executions.popleft()
        for watch in self._watchers:
            watch(execution, message)
        self._scheduler.completed(self, execution, message)
        if self._streamed is not None:
            self._streamed.ended(message)
            self._tell_streaming()

    def half_closed(self) -> None:
        """End the stream: the worker takes the instance out of service."""
        self._leave()
        self.finish()

    def cancelled(self) -> None:
        """Let go of a worker that died or hung up."""
        self._leave()

    def close(self) -> None:
        """Send the instance away."""
        self._leave()
        self.finish(_CANCELLED, "the router no longer needs this instance")

    def _leave(self) -> None:
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            unanswered = tuple(self._executions)
            self._executions.clear()
            self._end_streamed(scheduler)
            scheduler.detach(self, unanswered, were_begun=not self._is_leaving)
        self._on_leave(self)

    def _tell_streaming(self) -> None:
        """Tell the scheduler how many more or fewer wait for streamed replies."""
        now = len(self._streamed) if self._streamed is not None else 0
        change, self._streaming = now - self._streaming, now
        if change and self._scheduler is not None:
            self._scheduler.streaming(change)

    def _tell_of_requests(self, notice: worker_pb2.BatchRequest) -> None:
        """Tell the worker that nobody waits for some replies, or a reader is slow."""
        if self._scheduler is not None:
            self.send(notice.SerializeToString())
        self._tell_streaming()

    def _end_streamed(self, scheduler: InstanceScheduler) -> None:
        """Answer those whose replies were lost on the way."""
        streamed, self._streamed = self._streamed, None
        if streamed is not None:
            streamed.lost(ModelNotReadyError(_LOST_TEXT))
        told, self._streaming = self._streaming, 0
        if told:
            scheduler.streaming(-told)


class LimitedInstanceStream(InstanceStream):
    """An instance whose worker says when it may execute: see LimitedScheduler."""

    __slots__ = ("_on_turn", "has_turn")

    def __init__(  # noqa: PLR0917 - as its base
        self,
        call: NativeCall,
        method: str,
        metadata: NativeMetadata,
        hello: worker_pb2.InstanceHello,
        on_leave: "Callable[[InstanceStream], None]",
        watchers: Sequence[ExecutionWatcher],
        take_arrived: Callable[[], None],
    ) -> None:
        """Greet the instance; it has no turn yet."""
        self._on_turn: Callable[[], None] | None = None
        self.has_turn = False
        super().__init__(
            call, method, metadata, hello, on_leave, watchers, take_arrived
        )

    @property
    def is_asking(self) -> bool:
        """Whether a turn has been asked for that has not come."""
        return self._on_turn is not None

    def ask(self, on_turn: Callable[[], None]) -> None:
        """Ask the worker for a turn, unless that is done; ``on_turn`` is called."""
        if self._on_turn is None:
            self._on_turn = on_turn
            self.send(_ASKS_TURN)

    def pass_turn(self) -> None:
        """Give a turn back: there is nothing to execute any more."""
        self.has_turn = False
        self.send(_PASSES_TURN)

    def execute(self, execution: Execution) -> None:
        """Send the batch, which takes the turn."""
        self.has_turn = False
        super().execute(execution)

    def received(self, message: bytes) -> None:
        """Take a turn, or what every instance says."""
        if message != _TURN:
            super().received(message)
            return
        self.read()
        on_turn, self._on_turn = self._on_turn, None
        if on_turn is not None and self._scheduler is not None:
            self.has_turn = True
            on_turn()


class Dispatcher:
    """Brings the instances that dial in together with their schedulers.

    Either may come first: a worker dials as soon as a model is loaded, the route
    to it comes from control.
    """

    def __init__(
        self, on_change: Callable[[], None], take_arrived: Callable[[], None]
    ) -> None:
        """Know nobody.

        Args:
            on_change: Told whenever an instance joins or leaves.
            take_arrived: Admits what has arrived, before an instance that has
                become free takes its next batch.
        """
        self._schedulers: dict[int, InstanceScheduler] = {}
        self._early: dict[int, list[InstanceStream]] = {}
        self._watchers: list[ExecutionWatcher] = []
        self._on_change = on_change
        self._take_arrived = take_arrived
        self._devices: Counter[str] = Counter()

    def has_gpu(self, index: int | None = None) -> bool:
        """Whether instances on a GPU serve here, or on that one; from any thread."""
        if index is not None:
            return self._devices[f"cuda:{index}"] > 0
        return any(n > 0 for label, n in [*self._devices.items()] if label != "cpu")

    def accept(
        self, call: NativeCall, method: str, metadata: NativeMetadata
    ) -> StreamCall:
        """Serve one call of WorkerDispatch.Serve."""
        raw = metadata_values(metadata).get(_HELLO_KEY, b"")
        try:
            hello = worker_pb2.InstanceHello.FromString(
                raw.encode() if isinstance(raw, str) else raw
            )
        except DecodeError:
            hello = worker_pb2.InstanceHello()
        kind = LimitedInstanceStream if hello.takes_turns else InstanceStream
        stream = kind(
            call,
            method,
            metadata,
            hello,
            self._left,
            self._watchers,
            self._take_arrived,
        )
        if not hello.generation:
            stream.finish(_INVALID_ARGUMENT, f"metadata '{_HELLO_KEY}' is missing")
            return stream
        scheduler = self._schedulers.get(hello.generation)
        if scheduler is None:
            self._early.setdefault(hello.generation, []).append(stream)
        else:
            self._begin(stream, scheduler)
        return stream

    @property
    def early(self) -> int:
        """How many instances wait for the route to their generation."""
        return sum(map(len, self._early.values()))

    def watch(self, watcher: ExecutionWatcher) -> None:
        """Show ``watcher`` every answer before its scheduler gets it."""
        self._watchers.append(watcher)

    def register(self, scheduler: InstanceScheduler) -> None:
        """Give ``scheduler`` the instances of its generation."""
        generation = scheduler.route.generation
        self._schedulers[generation] = scheduler
        for stream in self._early.pop(generation, ()):
            self._begin(stream, scheduler)

    def unregister(self, scheduler: RouteScheduler) -> None:
        """Forget ``scheduler``; it parts from its instances itself."""
        self._schedulers.pop(scheduler.route.generation, None)

    def _left(self, stream: InstanceStream) -> None:
        generation = stream.hello.generation
        early = self._early.get(generation, [])
        if stream in early:
            early.remove(stream)
            if not early:
                del self._early[generation]
        else:
            self._devices[stream.hello.device] -= 1
        self._on_change()

    def _begin(self, stream: InstanceStream, scheduler: InstanceScheduler) -> None:
        _log.info(
            "instance joined",
            instance=stream.hello.instance_name,
            worker=stream.hello.worker_id,
            device=stream.hello.device,
        )
        self._devices[stream.hello.device] += 1
        stream.serve(scheduler)
        self._on_change()
