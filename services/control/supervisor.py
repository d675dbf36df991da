"""The shell around the reconciler: streams in, events through it, actions out.

One event loop runs everything here, so nothing needs a lock: between two awaits the
state is consistent.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from services.control.commands import (
    FileInspected,
    ReadinessChecked,
    ServeRouters,
)
from services.control.events import (
    Action,
    Event,
    LoadEnded,
    LoadInstances,
    PublishRoutes,
    RecoveryOver,
    Restored,
    RouterJoined,
    RouterLeft,
    RoutersOverdue,
    UnloadInstances,
    WorkerJoined,
    WorkerLeft,
)
from services.control.inspections import Inspections, WorkerGoneError
from services.control.load_durations import LoadDurations
from services.control.model_registry import Generation, VersionKey, VersionSpec, Worker
from services.control.patience import Wait
from services.control.readiness import ReadinessQuestions
from services.control.reconciler import Reconciler
from services.control.router_links import RouterLink, RouterLinks
from services.control.snapshot import Snapshot, snapshot_of
from services.control.store import Store
from services.control.worker_links import Capability, WorkerLink, WorkerLinks
from services.control.worker_lives import WorkerLives, from_text, to_text
from services.core.clock import Clock
from services.core.statistics_fields import WORKER_LOSSES, WORKER_RESTARTS

_log = structlog.get_logger(__name__)

_LIVES: Final = "workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """How long somebody who is silent is given, in seconds in which control ran.

    Attributes:
        worker_s: A worker dials again within two seconds, and the process behind
            a stream that broke usually lives and goes on serving.
        router_s: The same for routers; workers keep dialling them meanwhile.
        acknowledgement_s: A router that takes longer to apply its routes is stuck
            and must not hold memory on the workers.
        recovery_s: How long after a restart workers may come back.
    """

    worker_s: float = 3.0
    router_s: float = 5.0
    acknowledgement_s: float = 10.0
    recovery_s: float = 5.0


class Supervisor:
    """Owns the streams, the reconciler and the store's next snapshot."""

    def __init__(
        self,
        reconciler: Reconciler,
        store: Store,
        clock: Clock,
        *,
        grace: Grace | None = None,
    ) -> None:
        """Begin with nobody attached.

        Args:
            reconciler: Decides; only this object steps it.
            store: Gets a snapshot whenever it changes.
            clock: Measures loads.
            grace: How long to wait for whom.
        """
        self.reconciler = reconciler
        self.load_durations = LoadDurations(clock)
        self._store = store
        self._saved = Snapshot()
        self._grace = grace or Grace()
        self._workers = WorkerLinks()
        self._absent: dict[str, Wait] = {}
        self._routers = RouterLinks()
        self._lives = WorkerLives()
        self._count: Callable[[str], None] = lambda _: None
        self._inspections = Inspections()
        self._readiness = ReadinessQuestions()
        self._load_failures: dict[VersionKey, tuple[VersionSpec, str]] = {}
        self._changed = asyncio.Event()

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What workers have ever offered; it only grows."""
        return self._workers.capabilities

    @property
    def routers(self) -> RouterLinks:
        """The attached routers."""
        return self._routers

    @property
    def workers(self) -> WorkerLinks:
        """The attached workers."""
        return self._workers

    @property
    def router_count(self) -> int:
        """How many routers are attached."""
        return len(self._routers.links())

    @property
    def worker_count(self) -> int:
        """How many workers are attached."""
        return len(self._workers)

    def restore(self, snapshot: Snapshot) -> None:
        """Begin where an earlier process ended; before anybody attaches."""
        for endpoint in snapshot.router_endpoints:
            self._routers.expect(endpoint)
            self._later(self._grace.router_s, self._forget_endpoint, endpoint)
        self.tell(Restored(generations=snapshot.generations))
        self._later(self._grace.recovery_s, self.tell, RecoveryOver())

    async def remember_workers(self) -> None:
        """Know who was attached to an earlier process; before anybody attaches."""
        text = (await self._store.restore_settings()).get(_LIVES, "")
        try:
            self._lives = from_text(text) if text else WorkerLives()
        except ValueError as error:
            _log.warning("stored workers are unreadable", reason=str(error))

    def count_by(self, count: Callable[[str], None]) -> None:
        """Count what becomes of workers.

        Args:
            count: Counts once, by a name of ``services.core.statistics_fields``.
        """
        self._count = count

    def tell(self, event: Event) -> None:
        """Feed the reconciler and do what it asks for."""
        for action in self.reconciler.step(event):
            self._execute(action)
        self._save()
        self._notice()

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Wait for something to become true of the state."""
        while not is_true():
            await self._changed.wait()

    async def routes_applied(self) -> None:
        """Wait until every router works by the routes as they are now.

        Routers that take too long are not waited for.
        """
        revision = self.reconciler.table.revision
        await self.until(lambda: self.reconciler.have_applied(revision))

    def failures_of(
        self, specs: Mapping[VersionKey, VersionSpec]
    ) -> dict[VersionKey, str]:
        """Return why these very specs failed to load, for those that did."""
        return {
            key: reason
            for key, (failed, reason) in self._load_failures.items()
            if specs.get(key) == failed
        }

    # ------------------------------------------------------------ workers

    async def known_workers(self) -> tuple[Worker, ...]:
        """Return all workers, once there is one."""
        await self.until(lambda: bool(self.reconciler.workers))
        return self.reconciler.workers

    async def capabilities_beyond(
        self, known: frozenset[Capability]
    ) -> frozenset[Capability]:
        """Wait for a worker that offers more than is ``known``; return it all."""
        await self.until(lambda: bool(self._workers.capabilities - known))
        return self._workers.capabilities

    def attach_worker(
        self,
        worker: Worker,
        generations: frozenset[int],
        described: tuple[Generation, ...] = (),
    ) -> WorkerLink:
        """Take in a worker's stream, its first or another one.

        Args:
            worker: Who.
            generations: What it serves already.
            described: What it was told of these when it loaded them.
        """
        predecessors = self._predecessors_of(worker)
        self._inspections.drop(worker.worker_id)
        self._readiness.drop(worker.worker_id)
        timer = self._absent.pop(worker.worker_id, None)
        if timer is not None:
            timer.cancel()
        link = self._workers.attach(worker)
        if self._lives.joined(worker):
            self._count(WORKER_RESTARTS)
        self._save_lives()
        if endpoints := self._routers.endpoints():
            link.orders.put_nowait(ServeRouters(endpoints=endpoints))
        _log.info(
            "a worker joined", worker=worker.worker_id, device=worker.device.value
        )
        joined = WorkerJoined(
            worker=worker,
            generations=generations,
            predecessors=predecessors,
            described=described,
        )
        self.tell(joined)
        return link

    def detach_worker(self, link: WorkerLink, *, is_goodbye: bool) -> bool:
        """Take note that a worker's stream has ended.

        Args:
            link: From ``attach_worker``.
            is_goodbye: The worker ended it itself, and will not come back.

        Returns:
            False if it has another one already.
        """
        if not self._workers.detach(link):
            return False
        worker_id = link.worker.worker_id
        self._inspections.drop(worker_id)
        self._readiness.drop(worker_id)
        if is_goodbye:
            self._lives.left(link.worker)
            self._lose_worker(worker_id)
        else:
            self._lives.lost(link.worker)
            self._absent[worker_id] = self._later(
                self._grace.worker_s, self._lose_worker, worker_id
            )
            self._notice()
        self._save_lives()
        return True

    def take_inspection(self, answer: FileInspected) -> None:
        """Take in what a worker says of a model file."""
        self._inspections.take(answer)

    def check_readiness(self, generation: int) -> "list[asyncio.Future[bool]]":
        """Ask all workers that serve a generation, and return their answers.

        None of a generation that nobody serves, or that is not known.
        """
        found = self.reconciler.registry.get(generation)
        serving = found.loaded if found is not None else frozenset()
        answers = []
        for link in self._workers.links():
            if link.worker.worker_id in serving:
                order, answer = self._readiness.ask(link.worker.worker_id, generation)
                link.orders.put_nowait(order)
                answers.append(answer)
        return answers

    def take_readiness(self, answer: ReadinessChecked) -> None:
        """Take in what a worker says of its instances."""
        self._readiness.take(answer)

    def _predecessors_of(self, worker: Worker) -> frozenset[str]:
        """Return the absent workers whose place ``worker`` takes; wait no longer."""
        gone = {
            other.worker_id
            for other in self.reconciler.workers
            if other.worker_id in self._absent and worker.replaces(other)
        }
        for worker_id in gone:
            self._count(WORKER_LOSSES)
            self._absent.pop(worker_id).cancel()
            _log.info("a worker was replaced", worker=worker_id)
        return frozenset(gone)

    def _lose_worker(self, worker_id: str) -> None:
        self._absent.pop(worker_id, None)
        self._count(WORKER_LOSSES)
        _log.info("a worker left", worker=worker_id)
        self.tell(WorkerLeft(worker_id=worker_id))

    async def inspect(self, *, backend: str, directory: str, config: bytes) -> bytes:
        """Have a worker say what a model file declares; waits for a worker.

        Args:
            backend: Only a worker that can import it is asked.
            directory: ``<repository>/<model>/<version>``.
            config: A serialized ``inference.ModelConfig``, as far as it is known.

        Returns:
            Another one, with the tensors that the file declares.

        Raises:
            ConfigError: no worker has the backend.
            InspectionFailedError: the worker cannot read the file.
        """
        while True:
            await self.until(lambda: len(self._workers) > 0)
            link = self._workers.with_backend(backend)
            order, answer = self._inspections.ask(
                link.worker.worker_id, backend, directory, config
            )
            link.orders.put_nowait(order)
            try:
                return await answer
            except WorkerGoneError:
                continue

    # ------------------------------------------------------------ routers

    def attach_router(
        self, router_id: str, endpoint: str, revision: int = 0
    ) -> RouterLink:
        """Take in a router's stream, its first or another one.

        Args:
            router_id: Who.
            endpoint: Where workers reach it.
            revision: Of the table that it works by; 0: none.
        """
        link = self._routers.attach(router_id, endpoint)
        _log.info("a router joined", router=router_id, endpoint=endpoint)
        self.tell(RouterJoined(router_id=router_id, revision=revision))
        if not self.reconciler.is_recovering:
            link.offer(self.reconciler.table)
        self._send_routers()
        return link

    def detach_router(self, link: RouterLink) -> bool:
        """Take note that a router's stream has ended.

        Returns:
            False if it has another one already.
        """
        if not self._routers.detach(link):
            return False
        _log.info("a router left", router=link.router_id)
        self.tell(RouterLeft(router_id=link.router_id))
        self._later(self._grace.router_s, self._forget_endpoint, link.router_id)
        return True

    def _forget_endpoint(self, owner: str) -> None:
        if self._routers.forget(owner):
            self._send_routers()
            self._save()

    def _send_routers(self) -> None:
        """Tell workers of all routers; that there are none is not worth telling."""
        if endpoints := self._routers.endpoints():
            self._workers.order_all(ServeRouters(endpoints=endpoints))

    # ------------------------------------------------------------ actions

    def _execute(self, action: Action) -> None:
        match action:
            case LoadInstances():
                self.load_durations.begin(action.spec.key)
                self._workers.order(action.worker_id, action)
            case UnloadInstances():
                self._workers.order(action.worker_id, action)
            case PublishRoutes(table=table):
                for link in self._routers.links():
                    link.offer(table)
                overdue = RoutersOverdue(revision=table.revision)
                self._later(self._grace.acknowledgement_s, self.tell, overdue)
            case LoadEnded():
                self._end_load(action)

    def _end_load(self, ended: LoadEnded) -> None:
        key = ended.spec.key
        self.load_durations.end(key, is_success=not ended.reason)
        self._load_failures.pop(key, None)
        name = f"{ended.spec.model}/{ended.spec.version}"
        if ended.reason:
            self._load_failures[key] = (ended.spec, ended.reason)
            _log.error("failed to load a model", model=name, reason=ended.reason)
        else:
            _log.info("a model is ready", model=name)

    def _save(self) -> None:
        endpoints = self._routers.endpoints()
        snapshot = snapshot_of(self.reconciler.registry, endpoints)
        if snapshot != self._saved:
            self._saved = snapshot
            self._store.save(snapshot)

    def _save_lives(self) -> None:
        self._store.save_setting(_LIVES, to_text(self._lives))

    def _notice(self) -> None:
        """Wake whoever waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _later(
        self, delay_s: float, act: Callable[..., None], *arguments: object
    ) -> Wait:
        loop = asyncio.get_running_loop()
        return Wait(loop, delay_s, partial(act, *arguments))
