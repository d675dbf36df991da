"""One batch for a decoupled backend: answers come when they like."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from services.core.clock import Clock
from services.core.errors import ServingError
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    DecoupledBackend,
    Pace,
    PacedBackend,
    Rescheduled,
)
from services.worker.outlet import Outlet
from services.worker.reply_encoder import Part, encode_error
from services.worker.request_codec import (
    EMPTY_REPLY,
    AnswerEncoder,
    RequestDecoder,
    timing,
)
from services.worker.request_execution import failure_of
from services.worker.request_reader import Request
from services.worker.signature import Signature
from services.worker.watchdog import HungError

_INTERNAL: Final = 13  # google.rpc.Code


class StreamedExecution:
    """Runs batches on one backend; replies may outlive their execution."""

    def __init__(
        self, signature: Signature, backend: DecoupledBackend, clock: Clock
    ) -> None:
        """Begin with nothing learned."""
        self._signature = signature
        self._backend = backend
        self._paced = backend if isinstance(backend, PacedBackend) else None
        self._now_ns = clock.now_ns
        self._decoder = RequestDecoder(signature)
        self._encoder = AnswerEncoder(signature)

    def run(self, message: bytes, outlet: Outlet) -> bytes:
        """Return the BatchResponse that ends the execution of a BatchRequest.

        Args:
            message: Of one batch.
            outlet: Takes streamed replies until one is final for each request.

        Raises:
            WireFormatError: the message is no BatchRequest.
            HungError: the execution was ended.
        """
        started_ns = self._now_ns()
        requests = self._decoder.decode(message)
        calls = self._decoder.calls(requests)
        decoded_ns = self._now_ns()
        batch = _StreamedBatch(self._encoder, outlet, requests, self._now_ns)
        failures = iter(batch.end(self._execute(calls, batch)))
        executed_ns = self._now_ns()
        parts: list[Part] = []
        for one in requests:
            if not isinstance(one, Request):
                parts.append(encode_error(one))
                continue
            failure = next(failures)
            if failure is None:
                parts.append(EMPTY_REPLY)
            else:
                parts += self._encoder.reply(one, failure)
        spent = timing(
            decoded_ns - started_ns,
            executed_ns - decoded_ns,
            self._now_ns() - executed_ns,
        )
        return b"".join((spent, *parts))

    def _execute(
        self, calls: list[BackendCall], batch: "_StreamedBatch"
    ) -> Sequence[BackendFailure | Rescheduled | None]:
        if not calls:
            return ()
        try:
            if self._paced is not None:
                outcome = self._paced.execute_paced(
                    calls, batch.deliver, batch.cancel_with, batch.pace_with
                )
            else:
                outcome = self._backend.execute_decoupled(
                    calls, batch.deliver_in_time, batch.cancel_with
                )
        except HungError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: it becomes a reply
            return [failure_of(error, self._signature)] * len(calls)
        if len(outcome) != len(calls):
            text = f"{len(calls)} requests were begun with {len(outcome)} outcomes"
            return [BackendFailure(_INTERNAL, text)] * len(calls)
        return outcome


class _StreamedBatch:
    """The requests of one batch that are still being answered."""

    def __init__(
        self,
        encoder: AnswerEncoder,
        outlet: Outlet,
        requests: Sequence[Request | ServingError],
        now_ns: Callable[[], int],
    ) -> None:
        self._encoder = encoder
        self._now_ns = now_ns
        self._outlet = outlet
        self._lock = threading.Lock()
        self._is_executed = False
        # By the number of the call: the request's place in the batch, and itself.
        self._open = dict(
            enumerate(
                (place, one)
                for place, one in enumerate(requests)
                if isinstance(one, Request)
            )
        )
        self._of_call = {call: place for call, (place, _) in self._open.items()}
        self._calls = {place: call for call, place in self._of_call.items()}

    def deliver(
        self,
        call: int,
        answer: BackendAnswer | None,
        is_final: bool,  # noqa: FBT001 - a callback
    ) -> None:
        """Send an answer to a call, if it is open; from any thread."""
        with self._lock:
            found = self._open.get(call)
            if found is None:
                return
            if is_final:
                del self._open[call]
            place, request = found
            message = self._encoder.streamed(
                (self._outlet.number, place),
                request,
                answer,
                is_final=is_final,
                now_ns=self._now_ns,
            )
            self._outlet.send(message, place)
            self._close_if_done()

    def deliver_in_time(
        self,
        call: int,
        answer: BackendAnswer | None,
        is_final: bool,  # noqa: FBT001 - a callback
    ) -> None:
        """Do the same when the reader has room for it."""
        if not is_final and call in self._open:
            self._outlet.wait_for_room(self._of_call[call])
        self.deliver(call, answer, is_final)

    def cancel_with(self, cancel: Callable[[int], None]) -> None:
        """Pass the router's cancellations on, by the numbers of the calls."""

        def of_place(place: int) -> None:
            cancel(self._calls[place])

        self._outlet.on_cancel(tuple(self._calls), of_place)

    def pace_with(self, pace: Pace) -> None:
        """Pass the router's pauses on, by the numbers of the calls."""

        def of_place(place: int, is_slow: bool) -> None:  # noqa: FBT001 - a callback
            pace(self._calls[place], is_slow)

        self._outlet.on_pause(tuple(self._calls), of_place)

    def end(
        self, outcome: Sequence[BackendFailure | Rescheduled | None]
    ) -> list[BackendFailure | Rescheduled | None]:
        """Close the calls that have failed, or come again; return what is left to say.

        For each of them, in their order.
        """
        with self._lock:
            failures = [
                failure if call in self._open else None
                for call, failure in enumerate(outcome)
            ]
            for call, failure in enumerate(failures):
                if failure is not None:
                    del self._open[call]
            self._is_executed = True
            self._close_if_done()
        return failures

    def _close_if_done(self) -> None:
        if self._is_executed and not self._open:
            self._outlet.close()
