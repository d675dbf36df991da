"""A model instance and its links to the routers."""

import threading
from collections.abc import Callable, Collection

from services.worker.outlet import Outlet
from services.worker.router_link import RouterLink
from services.worker.router_stream import OpenStream
from services.worker.runs import AnyRun, StatefulRun, StreamedRun
from services.worker.sequence_states import SequenceStates
from services.worker.turns import InstanceTurns


class Instance:
    """One instance of one model version: executes one batch at a time.

    It keeps one stream, with a thread of its own, to every router.
    """

    def __init__(
        self,
        name: str,
        run: AnyRun,
        open_stream: OpenStream,
        turns: InstanceTurns | None = None,
    ) -> None:
        """Prepare an instance that no router knows yet.

        Args:
            name: As Triton names it, e.g. "simple_0_0".
            run: Answers a batch; called by one thread at a time.
            open_stream: Dials a router, given its endpoint.
            turns: When it may execute; None: whenever there is a batch.
        """
        self.name = name
        self.turns = turns
        self._run = run
        self.tells_states = isinstance(run, StatefulRun) and run.tells_states
        self.streams = isinstance(run, StreamedRun)
        self._open_stream = open_stream
        self._executing = threading.Lock()
        self._lock = threading.Lock()
        self._links: dict[str, RouterLink] = {}
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
                    self._links[endpoint] = RouterLink(
                        self, endpoint, self._open_stream
                    )
        for link in gone:
            link.leave()
            threading.Thread(target=link.wait, daemon=True).start()

    def forget(self) -> None:
        """End every stream and dial anew: the model has lost what it knew of sequences.

        The routers then end them. A batch that is being executed gets no answer.
        """
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.cut()

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
        if self.turns is not None:
            self.turns.close()

    def execute(
        self,
        message: bytes,
        open_outlet: Callable[[], Outlet],
        states: SequenceStates,
    ) -> bytes:
        """Answer one batch, waiting for the batches of other routers."""
        run = self._run
        with self._executing:
            if isinstance(run, StreamedRun):
                return run.run(message, open_outlet())
            if isinstance(run, StatefulRun):
                return run.run(message, states)
            return run(message)
