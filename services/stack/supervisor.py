"""Keeps the processes of one stack alive: starts, restarts and stops them."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import structlog

from services.core.errors import InternalError
from services.stack.child import Child, Sink
from services.stack.plan import ProcessSpec, stop_order
from services.stack.readiness import is_ready
from services.stack.restart import next_delay_ns

POLL_S: Final = 0.05
KILL_WAIT_S: Final = 5.0
NS_PER_S: Final = 1_000_000_000

T = TypeVar("T")

log = structlog.get_logger()


class ProcessEndedError(InternalError):
    """A process ended before the stack was up."""


class Supervisor:
    """The processes of one stack. Used from one event loop, in the main thread.

    Until ``settle`` is called, a process that ends fails the start; from then on it
    is started again, the sooner the longer it had lived.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        sink: Sink,
        progress: Callable[[str], None],
        restart_delay_ns: Callable[..., int] = next_delay_ns,
    ) -> None:
        """Make a supervisor of no process yet.

        Args:
            environment: What the processes inherit.
            sink: Gets their output.
            progress: Gets the news of the start, a sentence each.
            restart_delay_ns: How long to wait before a restart.
        """
        self._restart_delay_ns = restart_delay_ns
        self._environment = environment
        self._sink = sink
        self._progress = progress
        self._children: dict[str, Child] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._settled = False
        self._stopping = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, stage: Sequence[ProcessSpec]) -> None:
        """Start the processes of one stage and wait until all are ready.

        Raises:
            ProcessEndedError: one ended; the message has its last lines.
        """
        for spec in stage:
            child = Child(spec, environment=self._environment, sink=self._sink)
            child.start()
            self._children[spec.name] = child
            self._keepers[spec.name] = asyncio.create_task(self._keep(child))
        await self.unless_one_ends(self._until_all_ready(stage))

    async def unless_one_ends(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns.

        Raises:
            ProcessEndedError: a process ended first; ``work`` is cancelled.
        """
        task = asyncio.create_task(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self._failure}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            return await task
        finally:
            task.cancel()

    def settle(self) -> None:
        """Declare the start over: from now on what ends is started again."""
        self._settled = True

    async def stop(self) -> None:
        """Stop all processes in order, each within its time, or else kill it."""
        self._stopping.set()
        for group in _groups(stop_order(tuple(self._children))):
            for name in group:
                self._children[name].terminate()
            await asyncio.gather(*(self._until_ended(name) for name in group))
        if self._failure.done():
            self._failure.exception()

    def kill(self) -> None:
        """End all processes at once; ``stop`` then returns soon."""
        self._stopping.set()
        for child in self._children.values():
            child.kill()

    async def _until_all_ready(self, stage: Sequence[ProcessSpec]) -> None:
        async with asyncio.TaskGroup() as probes:
            for spec in stage:
                probes.create_task(self._until_ready(spec))

    async def _until_ready(self, spec: ProcessSpec) -> None:
        if spec.ready is None:
            self._progress(f"{spec.name} is started")
            return
        began = time.monotonic()
        while not await asyncio.to_thread(is_ready, spec.ready):  # noqa: ASYNC110  no event tells
            await asyncio.sleep(POLL_S)
        self._progress(f"{spec.name} is up ({time.monotonic() - began:.1f} s)")

    async def _until_ended(self, name: str) -> None:
        child, keeper = self._children[name], self._keepers[name]
        _, running = await asyncio.wait({keeper}, timeout=child.spec.stop_grace_s)
        if running:
            log.warning("killing a process that did not end in time", process=name)
            child.kill()
            await asyncio.wait({keeper}, timeout=KILL_WAIT_S)

    async def _keep(self, child: Child) -> None:
        """See one process through its lives until the stack stops."""
        delay_ns = 0
        while True:
            began_ns = time.monotonic_ns()
            status = await child.wait()
            if self._stopping.is_set():
                return
            if not self._settled:
                self._fail(child, status)
                return
            lived_ns = time.monotonic_ns() - began_ns
            delay_ns = self._restart_delay_ns(delay_ns, lived_ns=lived_ns)
            log.warning(
                "a process ended and is started again",
                process=child.spec.name,
                status=status,
                delay_ms=delay_ns // 1_000_000,
                last_words=child.last_words,
            )
            if not await self._restart(child, delay_ns):
                return

    async def _restart(self, child: Child, delay_ns: int) -> bool:
        """Start a process that ended, again and again if it cannot be started.

        Returns:
            False if the stack stops first.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_ns / NS_PER_S):
                    await self._stopping.wait()
                    return False
            try:
                child.start()
            except OSError as error:
                log.warning("cannot start", process=child.spec.name, reason=str(error))
                delay_ns = self._restart_delay_ns(delay_ns, lived_ns=0)
            else:
                return True

    def _fail(self, child: Child, status: int) -> None:
        if self._failure.done():
            return
        lines = child.last_words
        self._failure.set_exception(
            ProcessEndedError(
                f"{child.spec.name} {_ending(status)} during the start; "
                f"its last lines:\n{lines or '(it wrote nothing)'}"
            )
        )


def _ending(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with {status}"


def _groups(names: Sequence[str]) -> list[list[str]]:
    """Put neighbours of one role together: all workers stop at the same time."""
    groups: list[list[str]] = []
    for name in names:
        if groups and groups[-1][0].split()[0] == name.split()[0]:
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups
