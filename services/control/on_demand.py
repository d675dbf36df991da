"""The shell around the memory budget: models are loaded when somebody asks for them.

Routers say which models their requests wait for and which are in use; the budget
decides what is loaded and what must go for it. An ensemble is loaded once all that it
is made of serves.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from services.control import repository
from services.control.catalog_settings import CatalogSettings
from services.control.commands import RefuseDemand
from services.control.events import ModelsLoadable
from services.control.load_requests import LoadRequests
from services.control.memory_budget import MemoryBudget, Resident, Want
from services.control.model_demand import ModelDemand, RouterDemand
from services.control.model_registry import Generation
from services.control.overrides import NO_OVERRIDE, Override
from services.control.pinned import is_pinned
from services.control.preparation import written_config
from services.control.repository import ModelFolder
from services.control.supervisor import Supervisor
from services.core.clock import Clock
from services.core.errors import ConfigError, ModelNotReadyError, ServingError

_log = structlog.get_logger(__name__)

_LOOK_EVERY_S: Final = 0.2
# How long a model waits until others are idle, and how long one that could not be
# loaded is not tried again.
_PATIENCE_NS: Final = 10_000_000_000
_PENANCE_NS: Final = 5_000_000_000
# Who asks by a load request.
_CLIENTS: Final = "load requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known of a model before it is loaded.

    Attributes:
        size_bytes: Of its files.
        members: What an ensemble's steps call.
    """

    size_bytes: int
    members: tuple[str, ...]


class OnDemand:
    """Loads what is asked for, within a memory budget.

    Attributes:
        loads: How often each model was loaded for somebody.
        evictions: How often each had to go for another.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        requests: LoadRequests,
        settings: CatalogSettings,
        clock: Clock,
    ) -> None:
        """Begin with nobody asking.

        Args:
            supervisor: Knows routers and what is loaded.
            requests: Load and unload.
            settings: Have the budget.
            clock: Tells how long somebody has waited.
        """
        self.loads: Counter[str] = Counter()
        self.evictions: Counter[str] = Counter()
        self._supervisor = supervisor
        self._reconciler = supervisor.reconciler
        self._requests = requests
        self._settings = settings
        self._clock = clock
        self._budget = MemoryBudget(
            most_bytes=settings.memory_budget_bytes, patience_ns=_PATIENCE_NS
        )
        self._demand = ModelDemand()
        self._known: dict[str, _Known] = {}
        self._measured_bytes: dict[str, int] = {}
        self._loading: set[str] = set()
        self._leaving: set[str] = set()
        self._failures: dict[str, tuple[int, ServingError]] = {}
        # Of load requests.
        self._overrides: dict[str, Override] = {}
        self._answers: dict[str, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()

    @property
    def budget_bytes(self) -> int:
        """The budget; 0: there is none."""
        return self._budget.most_bytes

    @property
    def resident_bytes(self) -> int:
        """What all models that are loaded, or being so, count for."""
        return sum(each.size_bytes for each in self._residents())

    def waits(self) -> Mapping[str, tuple[int, int]]:
        """Return by model how many requests have waited, and how long in all; ns."""
        return self._demand.waits()

    def offer(self, names: frozenset[str]) -> None:
        """Tell routers which models there are to load."""
        if names != self._reconciler.loadable:
            self._supervisor.tell(ModelsLoadable(models=names))

    def take(self, router_id: str, demand: RouterDemand) -> None:
        """Take in what a router says."""
        self._demand.take(router_id, demand, self._clock.now_ns())
        self._changed.set()

    def forget(self, router_id: str) -> None:
        """Take note that a router is gone."""
        self._demand.forget(router_id, self._clock.now_ns())
        self._changed.set()

    async def load(self, name: str, override: Override = NO_OVERRIDE) -> None:
        """Load a model that a client asks for, as soon as there is room for it.

        Raises:
            ModelNotReadyError: there is no room.
            ServingError: as ``LoadRequests.load``.
        """
        if self._serves(name) and name not in self._leaving:
            await self._requests.load(name, override)
            return
        self._failures.pop(name, None)
        self._overrides[name] = override
        if name not in self._answers:
            self._answers[name] = asyncio.get_running_loop().create_future()
        self._tell_clients()
        # Several may wait; one that leaves takes nobody along.
        await asyncio.shield(self._answers[name])

    async def run(self) -> None:
        """Load and evict, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                await self._look(tasks)
                await self._until_changed()

    async def _until_changed(self) -> None:
        """Wait for news; while somebody waits not for long."""
        is_urgent = self._demand.wanted() or self._is_over()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_EVERY_S if is_urgent else None):
                await self._changed.wait()

    def _is_over(self) -> bool:
        return 0 < self._budget.most_bytes < self.resident_bytes

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        await self._learn()
        now_ns = self._clock.now_ns()
        for model in tuple(self._demand.wanted()):
            error = self._failure_of(model, now_ns)
            if error is not None:
                self._refuse(model, error)
        decision = self._budget.decide(self._residents(), self._wants(), now_ns)
        for model, reason in decision.refuse.items():
            self._fail(model, ModelNotReadyError(reason))
        for model in decision.evict:
            self._leaving.add(model)
            tasks.create_task(self._evict(model))
        for model in decision.load:
            self._loading.add(model)
            tasks.create_task(self._load(model))

    # -------------------------------------------------------------- facts

    async def _learn(self) -> None:
        """Find out about models that are wanted or loaded for the first time."""
        loaded = (g.spec.model for g in self._reconciler.registry if g.placed)
        asked = list(dict.fromkeys((*self._demand.wanted(), *loaded)))
        for model in asked:  # grows while it is walked
            if model not in self._known:
                self._known[model] = await asyncio.to_thread(
                    _known_of, self._settings, model
                )
            asked += [m for m in self._known[model].members if m not in asked]

    def _wanted(self) -> dict[str, int]:
        """Return since when each model is wanted, what ensembles need included."""
        wanted: dict[str, int] = {}
        for model, since_ns in self._demand.wanted().items():
            for each in self._with_members(model):
                wanted[each] = min(since_ns, wanted.get(each, since_ns))
        return wanted

    def _with_members(self, model: str) -> list[str]:
        """Return a model and all that it is made of."""
        names = [model]
        for each in names:  # grows while it is walked
            members = self._known[each].members if each in self._known else ()
            names += [member for member in members if member not in names]
        return names

    def _wants(self) -> Iterator[Want]:
        for model, since_ns in self._wanted().items():
            known = self._known.get(model)
            is_due = known and all(map(self._serves, known.members))
            if not is_due or self._is_resident(model) or model in self._failures:
                continue
            if known and known.members and self._serves(model):
                continue
            size = self._size_bytes(model)
            yield Want(model=model, size_bytes=size, since_ns=since_ns)

    def _residents(self) -> list[Resident]:
        wanted = self._wanted()
        sizes = Counter[str]()
        pinned = set()
        for generation in self._reconciler.registry:
            model = generation.spec.model
            if generation.placed:
                sizes[model] += self._size_of(generation)
                if is_pinned(generation.spec.config):
                    pinned.add(model)
        for model in self._loading:
            sizes.setdefault(model, self._size_bytes(model))
        desired = self._reconciler.desired_models()
        return [
            Resident(
                model=model,
                size_bytes=size,
                last_used_ns=self._demand.last_used_ns(model),
                is_pinned=model in pinned,
                is_in_use=model in wanted
                or model in self._loading
                or self._demand.is_in_use(model)
                or self._reconciler.is_pending(model),
                is_leaving=model in self._leaving
                or (model not in desired and model not in self._loading),
            )
            for model, size in sorted(sizes.items())
        ]

    def _size_of(self, generation: Generation) -> int:
        """Return what one loading of a model takes, or is expected to take."""
        model = generation.spec.model
        measured = sum(size for _, _, size in generation.memory_usage)
        if measured:
            self._measured_bytes[model] = measured
        return self._size_bytes(model)

    def _size_bytes(self, model: str) -> int:
        known = self._known.get(model)
        files = known.size_bytes if known else 0
        return max(files, self._measured_bytes.get(model, 0), 1)

    def _is_resident(self, model: str) -> bool:
        if model in self._loading or model in self._leaving:
            return True
        return any(
            generation.spec.model == model and generation.placed
            for generation in self._reconciler.registry
        )

    def _serves(self, model: str) -> bool:
        registry = self._reconciler.registry
        return any(registry.serving(key) for key in registry.versions_of(model))

    def _failure_of(self, model: str, now_ns: int) -> ServingError | None:
        """Return why a model, or what it is made of, is not tried again yet."""
        for name in self._with_members(model):
            until_ns, error = self._failures.get(name, (0, None))
            if error is not None and now_ns < until_ns:
                return error
            self._failures.pop(name, None)
        return None

    # -------------------------------------------------------------- deeds

    async def _load(self, model: str) -> None:
        override = self._overrides.pop(model, NO_OVERRIDE)
        try:
            await self._requests.load(model, override)
        except ServingError as error:
            self._fail(model, error)
        else:
            self.loads[model] += 1
            self._demand.note_use(model, self._clock.now_ns())
            if model in self._answers:
                self._answers.pop(model).set_result(None)
                self._tell_clients()
        finally:
            self._loading.discard(model)
            self._changed.set()

    async def _evict(self, model: str) -> None:
        _log.info("a model makes room", model=model)
        self.evictions[model] += 1
        await self._requests.unload(model)
        await self._supervisor.until(
            lambda: (
                not any(
                    generation.placed and generation.spec.model == model
                    for generation in self._reconciler.registry
                )
            )
        )
        self._leaving.discard(model)
        self._known.pop(model, None)
        self._changed.set()

    def _fail(self, model: str, error: ServingError) -> None:
        _log.warning("a model was not loaded", model=model, reason=str(error))
        self._failures[model] = (self._clock.now_ns() + _PENANCE_NS, error)
        # What the next attempt needs may have changed.
        self._known.pop(model, None)
        self._refuse(model, error)

    def _refuse(self, model: str, error: ServingError) -> None:
        """Tell everybody who waits for a model."""
        answer = self._answers.pop(model, None)
        if answer is not None:
            self._overrides.pop(model, None)
            answer.set_exception(error)
        waiting = self._demand.withdraw(model)
        for link in self._supervisor.routers.links():
            if link.router_id in waiting:
                link.tell(RefuseDemand(model=model, reason=str(error)))

    def _tell_clients(self) -> None:
        """Have load requests stand beside the routers' demand."""
        self.take(_CLIENTS, RouterDemand(wanted=frozenset(self._answers)))


def _known_of(settings: CatalogSettings, model: str) -> _Known:
    folders = repository.scan_model(settings.roots, model, settings.config_name).models
    folder = folders.get(model)
    if folder is None:
        return _Known(size_bytes=0, members=())
    return _Known(size_bytes=_size_bytes(folder), members=_members(folder))


def _size_bytes(folder: ModelFolder) -> int:
    """Return the size of the files of a model's newest version."""
    if not folder.versions:
        return 0
    newest = Path(folder.version_directory(folder.versions[-1]))
    return sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())


def _members(folder: ModelFolder) -> tuple[str, ...]:
    try:
        return written_config(folder, None).member_models
    except ConfigError:
        return ()
