"""A worker to try models on, with no server around it.

It is an ordinary ``nereid worker`` that dials an ordinary control, on a socket in a
temporary folder: what loads here loads on any worker like it.
"""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Final, TypeVar

import grpc

from protos import control_pb2_grpc
from services.control.ensemble_members import check_members
from services.control.events import ModelDesired, ModelDropped
from services.control.kept_metrics import KeptMetrics
from services.control.live_settings import StartSettings, live_settings
from services.control.model_registry import VersionKey, VersionSpec, Worker
from services.control.placing import place_version
from services.control.reconciler import Reconciler
from services.control.store import NoStore
from services.control.supervisor import Grace, Supervisor
from services.control.worker_servicer import WorkerServicer
from services.core.clock import MonotonicClock
from services.core.errors import BackendError
from services.core.logs import LogSettings

QUIET: Final = LogSettings(info=False, warning=False, error=False)

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
_STOP_GRACE_S: Final = 1.0
_EXIT_TIMEOUT_S: Final = 10.0

T = TypeVar("T")


class WorkerEndedError(BackendError):
    """The worker's process ended while a model was tried on it."""


class TrialFleet:
    """One worker, started when it is first needed and again if it ends."""

    def __init__(self, target: str, supervisor: Supervisor, device: str) -> None:
        """Start workers for ``device`` that dial ``target``, where control listens."""
        self._target = target
        self._supervisor = supervisor
        self._device = device
        self._process: asyncio.subprocess.Process | None = None

    async def inspect(self, *, backend: str, directory: str, config: bytes) -> bytes:
        """Have the worker say what a model file declares; see ``Supervisor``."""
        asked = self._supervisor.inspect(
            backend=backend, directory=directory, config=config
        )
        return await self._while_it_lives(asked)

    async def known_workers(self) -> tuple[Worker, ...]:
        """Return the worker."""
        return await self._while_it_lives(self._supervisor.known_workers())

    async def try_to_load(
        self, model: str, specs: Sequence[VersionSpec]
    ) -> dict[VersionKey, str]:
        """Load a model, and unload it again.

        Returns:
            Why versions failed, for those that did.

        Raises:
            WorkerEndedError: the worker did not survive it.
        """
        try:
            return await self._while_it_lives(self._load(model, tuple(specs)))
        finally:
            self._supervisor.tell(ModelDropped(model=model))

    async def _load(
        self, model: str, specs: tuple[VersionSpec, ...]
    ) -> dict[VersionKey, str]:
        supervisor, reconciler = self._supervisor, self._supervisor.reconciler
        supervisor.tell(ModelDesired(model=model, specs=specs))
        await supervisor.until(lambda: not reconciler.is_pending(model))
        failures = supervisor.failures_of({spec.key: spec for spec in specs})
        supervisor.tell(ModelDropped(model=model))
        await supervisor.until(
            lambda: (
                not any(
                    each.placed
                    for each in reconciler.registry
                    if each.spec.model == model
                )
            )
        )
        return failures

    async def _while_it_lives(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` does, unless the worker ends before.

        Raises:
            WorkerEndedError: it does.
        """
        process = await self._started()
        working = asyncio.ensure_future(work)
        ending = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            self._process = None
            raise WorkerEndedError(
                f"the worker that tried it ended with status {ending.result()}"
            )
        finally:
            working.cancel()
            ending.cancel()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "services.cli", "worker"),
                f"--control={self._target}",
                f"--device={self._device}",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
        return self._process

    async def stop(self) -> None:
        """End the worker."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def trial_fleet(device: str) -> AsyncIterator[TrialFleet]:
    """Make a fleet that lives as long as the block.

    Args:
        device: "cpu" or "cuda:N".
    """
    reconciler = Reconciler(place_version, check_members)
    # A worker that ends has no successor to wait for.
    grace = Grace(worker_s=0.0)
    supervisor = Supervisor(reconciler, NoStore(), MonotonicClock(), grace=grace)
    live = await live_settings(
        StartSettings(log=QUIET), supervisor, NoStore(), first_session=1
    )
    server = grpc.aio.server(options=_OPTIONS)
    control_pb2_grpc.add_WorkerControlServicer_to_server(
        WorkerServicer(supervisor, live, KeptMetrics(NoStore())), server
    )
    with tempfile.TemporaryDirectory(prefix="nereid-check-") as directory:
        target = f"unix:{directory}/control.sock"
        server.add_insecure_port(target)
        await server.start()
        fleet = TrialFleet(target, supervisor, device)
        try:
            yield fleet
        finally:
            await fleet.stop()
            await server.stop(_STOP_GRACE_S)
            live.traces.close()
