"""The replies of a decoupled model: any number to a request, at any time.

They are told apart by the place of the request: the batch, counted on its stream,
and its index there. Pure but for what it hands to the requests themselves.

Source: protos/worker.proto, StreamedReply.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeGuard, runtime_checkable

import grpc

from protos import worker_pb2
from services.core.backlog import Pace
from services.core.errors import ServingError, UnsupportedError
from services.core.statistics_fields import FailureReason, ResponsePhase
from services.core.wire_format import WireFormatError
from services.router.batch_response import Timing, timing_of
from services.router.pending_request import Execution, PendingRequest, refuse
from services.router.statistics import ModelStatistics, failure_reason

_STREAMED_TAG: Final = b"\x1a"
_DECOUPLED_TEXT: Final = "a decoupled model cannot be a step of this request"
_INTERNAL: Final[int] = grpc.StatusCode.INTERNAL.value[0]


@runtime_checkable
class DecoupledRequest(PendingRequest, Protocol):
    """A request whose door takes any number of responses.

    While a model works on it, these are set: ``withdraw`` is to be called if its
    client leaves, ``pace`` while it reads more slowly than it is answered.
    """

    withdraw: Callable[[], None] | None
    pace: Pace | None

    def respond(self, message: bytes | None, *, final: bool) -> None:
        """Give the client one response; None only says that nothing more comes."""
        ...

    def respond_with_error(self, code: int, details: str) -> None:
        """Give the client an error, after which more may come."""
        ...


class HeldRequest(Protocol):
    """A request that wants to hear of the end of its execution, too."""

    def hold(self) -> None:
        """Hear that the last response comes before that."""
        ...

    def release(self) -> None:
        """Hear, once after each ``hold``, that the execution has ended, or is lost."""
        ...


@dataclass(slots=True)
class _Open:
    """A request that has not had its last response."""

    request: DecoupledRequest
    dispatched_ns: int
    last_ns: int
    responses: int = 0
    # Of its execution, once that has ended.
    timing: Timing | None = None


def takes_many(request: PendingRequest) -> TypeGuard[DecoupledRequest]:
    """Tell whether the door of ``request`` takes more than one response."""
    return hasattr(request, "respond")


def hears_of_end(request: object) -> TypeGuard[HeldRequest]:
    """Tell whether ``request`` wants to hear of the end of its execution."""
    return hasattr(request, "hold")


def clipped(timing: Timing, span_ns: int) -> Timing:
    """Return as much of an execution's phases as lies in its first ``span_ns``.

    A request that has its last response while its execution goes on took no part in
    the rest of it.
    """
    input_ns = min(timing[0], span_ns)
    infer_ns = min(timing[1], span_ns - input_ns)
    return input_ns, infer_ns, min(timing[2], span_ns - input_ns - infer_ns)


def is_streamed(message: bytes) -> bool:
    """Tell a message of streamed replies from the end of an execution."""
    return message.startswith(_STREAMED_TAG)


class StreamedReplies:
    """The requests that one instance of a decoupled model has in hand."""

    __slots__ = (
        "_batches",
        "_early",
        "_executing",
        "_held",
        "_now_ns",
        "_open",
        "_statistics",
    )

    def __init__(
        self,
        statistics: ModelStatistics,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Begin with a new stream; count in ``statistics``."""
        self._statistics = statistics
        self._now_ns = now_ns
        self._batches = 0
        self._executing: deque[int] = deque()
        self._open: dict[tuple[int, int], _Open] = {}
        # By batch: how long those took that were done before their execution was; ns.
        self._early: dict[int, list[int]] = {}
        self._held: dict[int, list[HeldRequest]] = {}

    def __len__(self) -> int:
        """Return how many requests have not had their last response."""
        return len(self._open)

    def began(
        self,
        execution: Execution,
        tell: Callable[[worker_pb2.BatchRequest], None],
    ) -> None:
        """Remember the requests of a batch that is being sent.

        Args:
            execution: The batch.
            tell: Sends a notice: of a request whose client leaves, or reads slowly.
        """
        number = self._batches
        self._batches += 1
        self._executing.append(number)
        for index, request in enumerate(execution.batch):
            if not takes_many(request):
                self._refuse(request, UnsupportedError(_DECOUPLED_TEXT))
                continue
            place = worker_pb2.RequestPlace(batch=number, request=index)

            def leave(place: worker_pb2.RequestPlace = place) -> None:
                found = self._open.pop((place.batch, place.request), None)
                if found is not None:
                    self._left(found)
                    tell(worker_pb2.BatchRequest(cancelled=[place]))

            def pace(
                is_slow: bool,  # noqa: FBT001 - a callback
                place: worker_pb2.RequestPlace = place,
            ) -> None:
                if (place.batch, place.request) not in self._open:
                    return
                if is_slow:
                    tell(worker_pb2.BatchRequest(paused=[place]))
                else:
                    tell(worker_pb2.BatchRequest(resumed=[place]))

            now_ns = execution.dispatched_ns
            before = self._withdrawn(request)
            request.withdraw, request.pace = leave, pace
            if before is not None:
                before.timing = None
            self._open[number, index] = before or _Open(request, now_ns, now_ns)

    def ended(self, message: bytes) -> None:
        """Forget the requests of the oldest execution that its end has answered.

        Args:
            message: That end, a BatchResponse, which has been handed out.
        """
        number = self._executing.popleft()
        try:
            timing, _ = timing_of(message)
        except (WireFormatError, IndexError):
            timing = (0, 0, 0)  # everyone has been told that it cannot be read
        for span_ns in self._early.pop(number, ()):
            self._statistics.computed(clipped(timing, span_ns))
        self._release(number)
        for place in [p for p in self._open if p[0] == number]:
            found = self._open[place]
            found.timing = timing
            if not found.request.open:
                self._close(place)

    def take(self, message: bytes, now_ns: int, at_ms: int) -> None:
        """Hand out what a message of streamed replies has.

        Raises:
            DecodeError: it is no BatchResponse.
        """
        for streamed in worker_pb2.BatchResponse.FromString(message).streamed:
            place = (streamed.batch, streamed.request)
            found = self._open.get(place)
            if found is None:
                continue  # its client left
            self._count(found, streamed, now_ns)
            if streamed.final:
                self._close(place)
                self._hold(found, streamed.batch)
            self._hand_out(found, streamed)
            if streamed.final:
                self._done(found, streamed.batch, now_ns, at_ms)

    def _done(self, found: _Open, batch: int, now_ns: int, at_ms: int) -> None:
        """Count a request that has had its last response."""
        self._statistics.streamed(
            rows=found.request.rows,
            queue_ns=found.dispatched_ns - found.request.enqueued_ns,
            success_ns=now_ns - found.request.enqueued_ns,
            at_ms=at_ms,
        )
        if found.timing is not None:
            self._statistics.computed(found.timing)
        else:
            span_ns = now_ns - found.dispatched_ns
            self._early.setdefault(batch, []).append(span_ns)

    def lost(self, error: ServingError) -> None:
        """Refuse the requests that had responses, or would only have streamed ones.

        Those of an execution that had not ended and had no response may run again.
        """
        executing = frozenset(self._executing)
        for number in tuple(self._held):
            self._release(number)
        for place, found in tuple(self._open.items()):
            found.request.withdraw = found.request.pace = None
            if found.responses or place[0] not in executing:
                self._refuse(found.request, error)
        self._open.clear()

    def _refuse(self, request: PendingRequest, error: ServingError) -> None:
        elapsed_ns = self._now_ns() - request.enqueued_ns
        self._statistics.failed(elapsed_ns, failure_reason(error))
        refuse(request, error)

    def _left(self, found: _Open) -> None:
        """Count a request whose client has left."""
        now_ns = self._now_ns()
        cancelled = {ResponsePhase.CANCEL: now_ns - found.last_ns}
        self._statistics.responded(found.responses, cancelled)
        elapsed_ns = now_ns - found.request.enqueued_ns
        self._statistics.failed(elapsed_ns, FailureReason.CANCELED)

    def _hold(self, found: _Open, batch: int) -> None:
        request = found.request
        if found.timing is None and hears_of_end(request):
            self._held.setdefault(batch, []).append(request)
            request.hold()

    def _release(self, batch: int) -> None:
        for request in self._held.pop(batch, ()):
            request.release()

    def _withdrawn(self, request: DecoupledRequest) -> _Open | None:
        """Take out what is known of a request that is executed again, if it is."""
        if request.withdraw is None:
            return None
        for place, found in self._open.items():
            if found.request is request:
                return self._open.pop(place)
        return None

    def _close(self, place: tuple[int, int]) -> None:
        request = self._open.pop(place).request
        request.withdraw = request.pace = None

    def _hand_out(self, found: _Open, streamed: worker_pb2.StreamedReply) -> None:
        outcome = streamed.reply.WhichOneof("outcome")
        request = found.request
        if outcome == "response":
            request.respond(streamed.reply.response, final=streamed.final)
            return
        if outcome == "error":
            error = streamed.reply.error
            if streamed.final:
                request.fail(error.code or _INTERNAL, error.message)
                return
            request.respond_with_error(error.code or _INTERNAL, error.message)
        if streamed.final:
            request.respond(None, final=True)

    def _count(
        self, found: _Open, streamed: worker_pb2.StreamedReply, now_ns: int
    ) -> None:
        spent_ns = now_ns - found.last_ns
        found.last_ns = now_ns
        outcome = streamed.reply.WhichOneof("outcome")
        if outcome is None:
            phases = {ResponsePhase.EMPTY_RESPONSE: spent_ns}
        else:
            ended = (
                ResponsePhase.SUCCESS if outcome == "response" else ResponsePhase.FAIL
            )
            output_ns = min(streamed.compute_output_ns, spent_ns)
            phases = {
                ResponsePhase.COMPUTE_INFER: spent_ns - output_ns,
                ResponsePhase.COMPUTE_OUTPUT: output_ns,
                ended: spent_ns,
            }
        self._statistics.responded(found.responses, phases)
        if not found.responses and outcome is not None:
            self._statistics.first_response(now_ns - found.request.enqueued_ns)
        found.responses += 1
