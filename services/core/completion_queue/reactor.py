"""The loop: one thread, one completion queue, timers, and a way to wake it."""

import contextlib
import heapq
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import structlog
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from services.core.completion_queue.client_stream import ClientStream

_log = structlog.get_logger(__name__)

_EVENTS_BEFORE_FORCED_DRAIN: Final = 64
# One empty poll may only mean that C-core looked at one socket of several: with two
# the batches at concurrency 8 grew from 3.3 to 6.3 requests.
_EMPTY_POLLS_WHEN_DRAINED: Final = 2
_ROUNDS_WHEN_DRAINED: Final = 2
# Below this a timer is met by polling: C-core would be up to 1 ms late.
_POLLED_WAIT_NS: Final = 2_000_000
_POLL_SLEEP_NS: Final = 50_000


class Timer:
    """A call promised for a time; ``cancel`` takes it back."""

    __slots__ = ("callback", "is_rough", "when_ns")

    def __init__(
        self, when_ns: int, callback: Callable[[], None], *, is_rough: bool = False
    ) -> None:
        """Promise ``callback`` for monotonic ``when_ns``, or roughly then."""
        self.when_ns = when_ns
        self.is_rough = is_rough
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Forget the callback."""
        self.callback = None

    def __lt__(self, other: "Timer") -> bool:
        """Order by time, for the heap."""
        return self.when_ns < other.when_ns


class Reactor:
    """One thread that serves one completion queue."""

    def __init__(self) -> None:
        """Create the queue and the call that other threads wake it with."""
        self.queue = cygrpc.CompletionQueue()
        self._timers: list[Timer] = []
        self._when_drained: dict[Callable[[], None], None] = {}
        self._running = True
        self._waker = _retained_call(self.queue)

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the loop's thread; safe from any thread or signal."""
        self._waker.start_server_batch((), lambda _: callback())

    def call_when_drained(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once, when what has already arrived is handled.

        Asking again before it ran changes nothing. Under a stream of events
        that never pauses it runs after 64 of them. What such a callback asks for
        runs right behind it; what that asks for waits for the next time.
        """
        self._when_drained[callback] = None

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` at monotonic ``when_ns``, at most 0.1 ms late if idle.

        It costs CPU: the last 2 ms are waited for by looking again and again.
        """
        timer = Timer(when_ns, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def call_roughly_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` at monotonic ``when_ns``, or some milliseconds later."""
        timer = Timer(when_ns, callback, is_rough=True)
        heapq.heappush(self._timers, timer)
        return timer

    def stop(self) -> None:
        """Leave ``run`` after the present event; on the loop's thread."""
        self._running = False

    def run(self) -> None:
        """Serve events until ``stop``. An error in one is logged, never fatal."""
        while self._running:
            try:
                self._serve()
            except Exception:  # noqa: BLE001 - the other calls go on
                _log.exception("a completion failed")

    def _serve(self) -> None:
        poll = self.queue.poll
        timeout = cygrpc.CompletionType.queue_timeout
        empty_polls = since_drain = 0
        while self._running:
            if self._when_drained:
                event = poll(0)
                if event.completion_type == timeout:
                    empty_polls += 1
                    if empty_polls == _EMPTY_POLLS_WHEN_DRAINED:
                        empty_polls = since_drain = 0
                        self._run_due()
                    continue
                empty_polls = 0
                since_drain += 1
            elif self._timers:
                event = self._poll_until_timer(poll)
            else:
                event = poll()
            tag = event.tag
            if tag is not None:
                tag(event)
            if since_drain > _EVENTS_BEFORE_FORCED_DRAIN:
                since_drain = 0
                self._run_due()
            # The event keeps its call and its message alive: let them go now.
            event = tag = None

    def _poll_until_timer(self, poll: Callable[..., Any]) -> Any:
        timers = self._timers
        while timers and timers[0].callback is None:
            heapq.heappop(timers)
        if not timers:
            return poll(0)
        wait_ns = timers[0].when_ns - time.monotonic_ns()
        if wait_ns <= 0:
            self._run_due()
            return poll(0)
        if timers[0].is_rough:
            return poll(time.time() + wait_ns / 1e9)
        if wait_ns > _POLLED_WAIT_NS:
            return poll(time.time() + wait_ns / 1e9 - 0.001)
        event = poll(0)
        if event.completion_type == cygrpc.CompletionType.queue_timeout:
            time.sleep(min(wait_ns, _POLL_SLEEP_NS) / 1e9)
        return event

    def _run_due(self) -> None:
        timers = self._timers
        if timers:
            now_ns = time.monotonic_ns()
            while timers and timers[0].when_ns <= now_ns:
                callback = heapq.heappop(timers).callback
                if callback is not None:
                    callback()
        for _ in range(_ROUNDS_WHEN_DRAINED):
            callbacks = tuple(self._when_drained)
            self._when_drained.clear()
            for callback in callbacks:
                try:
                    callback()
                except Exception:  # noqa: BLE001 - the other callbacks run, too
                    _log.exception("a callback failed")


def _retained_call(queue: Any) -> Any:
    """Return a finished call of ``queue``, made by calling ourselves once.

    An empty batch on it is the only way to post an event from another thread.
    """
    target = f"unix-abstract:nereid-{os.getpid()}-{id(queue)}"
    server = cygrpc.Server((("grpc.so_reuseport", 0),), False)  # noqa: FBT003
    server.register_completion_queue(queue)
    server.add_http2_port(target.encode())
    server.start()
    server.request_call(queue, queue, "accepted")
    client = threading.Thread(target=_call_once, args=(target,), daemon=True)
    client.start()
    call = queue.poll().call
    status = cygrpc.SendStatusFromServerOperation(None, cygrpc.StatusCode.ok, b"", 0)
    call.start_server_batch(
        (
            cygrpc.SendInitialMetadataOperation(None, 0),
            status,
            cygrpc.ReceiveCloseOnServerOperation(0),
        ),
        "answered",
    )
    server.shutdown(queue, "down")
    tags = {queue.poll().tag, queue.poll().tag}
    client.join()
    if tags != {"answered", "down"}:
        message = f"the completion queue answered {tags} to its first call"
        raise RuntimeError(message)
    return call


def _call_once(target: str) -> None:
    stream = ClientStream(target, "/nereid.Reactor/Wake")
    with contextlib.closing(stream):
        stream.receive()
