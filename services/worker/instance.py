"""A model instance and its streams to the routers."""

import threading
from collections.abc import Callable, Collection
from typing import Final, Protocol, TypeAlias

import structlog

from services.worker.backoff import Backoff

# How long a router may take to end a stream that we have finished.
_FAREWELL_S: Final = 1.0
# How long an execution may take to end after the instance was told to stop.
_DRAIN_S: Final = 30.0

_log = structlog.get_logger(__name__)


class Stream(Protocol):
    """A stream to one router: batches come, answers go.

    ``services.core.completion_queue.ClientStream`` is one.
    """

    status: tuple[int, str] | None

    def receive(self) -> bytes | None:
        """Wait for the next batch; None when the stream has ended."""
        ...

    def send(self, message: bytes) -> None:
        """Send an answer; never blocks."""
        ...

    def finish(self) -> None:
        """Say that nothing more will be sent; from any thread."""
        ...

    def cancel(self) -> None:
        """End the stream at once; from any thread."""
        ...

    def close(self) -> None:
        """Release the connection of a stream that has ended."""
        ...


OpenStream: TypeAlias = Callable[[str], Stream]
Run: TypeAlias = Callable[[bytes], bytes]


class Instance:
    """One instance of one model version: executes one batch at a time.

    It keeps one stream, with a thread of its own, to every router.
    """

    def __init__(self, name: str, run: Run, open_stream: OpenStream) -> None:
        """Prepare an instance that no router knows yet.

        Args:
            name: As Triton names it, e.g. "simple_0_0".
            run: Answers a batch; called by one thread at a time.
            open_stream: Dials a router, given its endpoint.
        """
        self.name = name
        self._run = run
        self._open_stream = open_stream
        self._executing = threading.Lock()
        self._lock = threading.Lock()
        self._links: dict[str, _Link] = {}
        self._is_stopped = False

    def connect(self, endpoints: Collection[str]) -> None:
        """Keep a stream to each of ``endpoints`` and to no one else; never blocks.

        A router that is gone still gets the answer to its last batch.
        """
        with self._lock:
            if self._is_stopped:
                return
            gone = [self._links.pop(e) for e in set(self._links).difference(endpoints)]
            for endpoint in endpoints:
                if endpoint not in self._links:
                    self._links[endpoint] = _Link(self, endpoint, self._open_stream)
        for link in gone:
            link.leave()
            threading.Thread(target=link.wait, daemon=True).start()

    def stop(self) -> None:
        """Leave all routers; a batch that is executing is still answered.

        Returns when no thread is left that could call ``run``, or after a
        runtime has not come back for half a minute.
        """
        with self._lock:
            self._is_stopped = True
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.leave()
        for link in links:
            link.wait()

    def execute(self, message: bytes) -> bytes:
        """Answer one batch, waiting for the batches of other routers."""
        with self._executing:
            return self._run(message)


class _Link:
    """The stream to one router, dialled again whenever it breaks."""

    def __init__(
        self, instance: Instance, endpoint: str, open_stream: OpenStream
    ) -> None:
        self._instance = instance
        self._endpoint = endpoint
        self._open_stream = open_stream
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._stream: Stream | None = None
        self._busy = False
        self._thread = threading.Thread(
            target=self._serve, name=f"{instance.name}@{endpoint}", daemon=True
        )
        self._thread.start()

    def leave(self) -> None:
        """Finish the stream, now or behind the answer that is being made."""
        with self._lock:
            self._stopping.set()
            if self._stream is not None and not self._busy:
                self._stream.finish()

    def wait(self) -> None:
        """Return when the thread has ended; after ``leave``."""
        self._thread.join(_FAREWELL_S)
        if self._thread.is_alive() and self._busy:
            self._thread.join(_DRAIN_S)
        with self._lock:
            if self._stream is not None:
                self._stream.cancel()
        self._thread.join(_FAREWELL_S)
        if self._thread.is_alive():
            _log.error("an execution does not end", instance=self._instance.name)

    def _serve(self) -> None:
        backoff = Backoff()
        while (stream := self._dial()) is not None:
            try:
                self._answer(stream, backoff)
            except Exception:  # noqa: BLE001 - logged; the stream is dialled anew
                _log.exception(
                    "a batch could not be answered",
                    instance=self._instance.name,
                    router=self._endpoint,
                )
                stream.cancel()
                while stream.receive() is not None:
                    continue
            with self._lock:
                self._stream = None
                self._busy = False
            stream.close()
            _log.debug(
                "a stream to a router has ended",
                instance=self._instance.name,
                router=self._endpoint,
                status=stream.status,
            )
            self._stopping.wait(backoff.after_failure())

    def _dial(self) -> Stream | None:
        """Open the stream; None once we leave."""
        with self._lock:
            if self._stopping.is_set():
                return None
            self._stream = self._open_stream(self._endpoint)
            return self._stream

    def _answer(self, stream: Stream, backoff: Backoff) -> None:
        """Answer batches until the stream ends."""
        while (message := stream.receive()) is not None:
            backoff.reset()
            with self._lock:
                if self._stopping.is_set():
                    continue  # it crossed our farewell: the router keeps it
                self._busy = True
            answer = self._instance.execute(message)
            with self._lock:
                self._busy = False
                stream.send(answer)
                if self._stopping.is_set():
                    stream.finish()
