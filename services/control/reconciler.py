"""From what should be served, and who is there to serve it, to what to do now.

Pure: every fact arrives as an event, every wish leaves as an action. The rules:

- A version has one machine per generation. A changed spec is a new generation that
  loads beside the one that serves; when it is READY the old one is unloaded, after
  the routers have applied the routes. At most one generation of a version is READY.
- Placed instances stay where they are. What is missing, because a worker left or a
  new device came, goes to workers that have nothing of the generation; if there is
  none it waits, and the version serves with what is left.
- A load that fails does not disturb what serves.
- Who comes and goes, and what they bring along, is ``services.control.arrivals``.
"""

import dataclasses
from collections.abc import Mapping

from services.control.arrivals import Arrivals
from services.control.ensembles import CheckMembers, fits_always, settle_ensembles
from services.control.events import (
    Action,
    Event,
    InstancesFailed,
    InstancesLoaded,
    InstancesUnloaded,
    ModelDesired,
    ModelDropped,
    ModelRefused,
    ModelsLoadable,
    PublishRoutes,
    RecoveryOver,
    Restored,
    RouterJoined,
    RouterLeft,
    RoutersOverdue,
    RoutesApplied,
    StartUpOver,
    TrafficSplitsSet,
    WorkerJoined,
    WorkerLeft,
)
from services.control.generations import Generations
from services.control.missing_places import Place, missing_places
from services.control.model_registry import (
    Generation,
    ModelRegistry,
    VersionKey,
    Worker,
)
from services.control.publication import Publication
from services.control.route_table import RouteTable
from services.control.router_acknowledgements import RouterAcknowledgements
from services.control.traffic_split import TrafficSplit
from services.control.wishes import Wishes
from services.core.errors import ConfigError
from services.core.lifecycle import ModelState


class Reconciler:
    """The state of the whole server, advanced by ``step``."""

    def __init__(
        self,
        place: Place,
        check_members: CheckMembers = fits_always,
        *,
        first_number: int = 1,
        strict_readiness: bool = True,
        load_retries: int = 0,
    ) -> None:
        """Begin with nothing desired and nobody there.

        Args:
            place: Chooses workers.
            check_members: Compares an ensemble with its members.
            first_number: Of generations and of revisions; higher than any that
                an earlier control process gave away.
            strict_readiness: The server is ready only if all that is desired is.
            load_retries: How often a load that failed is tried again.
        """
        self._place = place
        self._check_members = check_members
        self._load_retries = load_retries
        self._strict_readiness = strict_readiness
        self._generations = Generations(first_number)
        self._registry = self._generations.registry
        self._wishes = Wishes(self._generations)
        self._arrivals = Arrivals(self._generations, self._wishes, first_number)
        self._acknowledgements = RouterAcknowledgements()
        self._publication = Publication(first_number)
        self._is_start_up_over = False
        # Versions that may not be as they should.
        self._unsettled: set[VersionKey] = set()

    @property
    def strict_readiness(self) -> bool:
        """Whether the server is ready only if all that is desired is."""
        return self._strict_readiness

    @property
    def table(self) -> RouteTable:
        """The routes as last published."""
        return self._publication.table

    @property
    def registry(self) -> ModelRegistry:
        """All generations; to look at only."""
        return self._registry

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Everyone who has joined and not left."""
        return tuple(self._arrivals.workers.values())

    @property
    def splits(self) -> Mapping[str, TrafficSplit]:
        """How requests without a version are shared out, by model."""
        return self._publication.splits

    @property
    def loadable(self) -> frozenset[str]:
        """Models that are loaded when somebody asks for them."""
        return self._publication.loadable

    @property
    def problems(self) -> dict[str, str]:
        """Models that should be served and have no usable configuration: why."""
        return dict(self._wishes.problems)

    @property
    def is_recovering(self) -> bool:
        """Whether routers know better than this process what is served."""
        return self._arrivals.is_recovering

    @property
    def is_ignorant(self) -> bool:
        """Whether workers may come back with what this process has never heard of."""
        return self._arrivals.is_ignorant

    @property
    def awaited(self) -> frozenset[VersionKey]:
        """Restored versions that no worker has come back with."""
        return frozenset(self._wishes.awaited)

    def desired_models(self) -> set[str]:
        """Return the models that should be served, restored ones included."""
        return self._wishes.models()

    def directories_in_use(self) -> set[str]:
        """Return the folders of versions that workers read or may have to read."""
        return self._wishes.directories_in_use()

    def is_pending(self, model: str) -> bool:
        """Whether a desired version of ``model`` is on its way to READY."""
        return self._wishes.is_pending(model)

    def have_applied(self, revision: int) -> bool:
        """Whether every router works by ``revision`` or a later table."""
        return self._acknowledgements.have_all(revision)

    def step(self, event: Event) -> tuple[Action, ...]:
        """Take in one event and return what to do, in order."""
        self._apply(event)
        self._unsettled |= self._touched_by(event)
        self._converge()
        self._settle_ensembles()
        self._unsettled |= self._wishes.let_depart()
        self._converge()
        self._settle_ensembles()
        self._generations.prune()
        published = self._publish()
        self._generations.retire(self.table.revision, self.have_applied)
        return (*published, *self._generations.take_actions())

    def _touched_by(self, event: Event) -> set[VersionKey]:
        """Return the versions that are to be looked at after ``event``."""
        match event:
            case InstancesLoaded() | InstancesFailed() | InstancesUnloaded():
                generation = self._registry.get(event.generation)
                return {generation.spec.key} if generation else set()
            case ModelDesired(specs=specs):
                return {spec.key for spec in specs}
            case RouterJoined() | RouterLeft() | RoutesApplied() | RoutersOverdue():
                return set()
            case TrafficSplitsSet() | ModelsLoadable():
                return set()
            case _:
                return set(self._wishes.desired)

    def _apply(self, event: Event) -> None:
        match event:
            case ModelDesired() | ModelDropped() | ModelRefused():
                self._wishes.apply(event)
            case WorkerJoined() | WorkerLeft() | Restored() | RecoveryOver():
                self._arrivals.apply(event)
            case InstancesLoaded() | InstancesFailed() | InstancesUnloaded():
                self._apply_report(event)
            case RouterJoined():
                self._arrivals.apply(event)
                self._acknowledgements.apply(event)
            case RouterLeft() | RoutesApplied() | RoutersOverdue():
                self._acknowledgements.apply(event)
            case TrafficSplitsSet() | ModelsLoadable():
                self._publication.apply(event)
            case StartUpOver():
                self._is_start_up_over = True
                self._arrivals.apply(event)

    # ------------------------------------------------------------ workers

    def _apply_report(
        self, event: InstancesLoaded | InstancesFailed | InstancesUnloaded
    ) -> None:
        worker_id = event.worker_id
        generation = self._registry.get(event.generation)
        if generation is None or worker_id not in generation.placed:
            if isinstance(event, InstancesLoaded):
                self._generations.unload(worker_id, event.generation)
            return
        match event:
            case InstancesLoaded(memory=memory):
                self._generations.mark_loaded(generation, worker_id, memory)
            case InstancesUnloaded():
                self._generations.take_away(generation, worker_id)
            case InstancesFailed(reason=reason):
                self._fail_on(generation, worker_id, reason)

    def _fail_on(self, generation: Generation, worker_id: str, reason: str) -> None:
        if generation.state is ModelState.LOADING:
            rest = generation.without_worker(worker_id, remember=False)
            rest = dataclasses.replace(rest, failures=rest.failures + 1)
            self._registry.put(rest)
            if rest.failures > self._load_retries:
                self._fail(rest, reason)
            return
        refused = generation.refused | {worker_id}
        generation = dataclasses.replace(generation, refused=refused)
        self._generations.take_away(self._registry.put(generation), worker_id)

    # -------------------------------------------------------- convergence

    def _converge(self) -> None:
        """Bring every unsettled version that is desired nearer to READY."""
        while self._unsettled:
            unsettled, self._unsettled = self._unsettled, set()
            for key in sorted(unsettled & self._wishes.desired.keys()):
                self._settle(key)

    def _settle_ensembles(self) -> None:
        settle_ensembles(
            self._wishes.desired,
            self._generations,
            self._check_members,
            self.is_pending,
        )

    def _settle(self, key: VersionKey) -> None:
        generation = self._wishes.matching(key)
        if generation is None:
            generation = self._generations.create(self._wishes.desired[key])
        if generation.is_failed:
            self._fall_back(generation)
            return
        if generation.spec.members:
            return
        if key not in self._wishes.awaited:
            generation = self._place_missing(generation)
        if self._generations.promote(generation):
            self._wishes.awaited.pop(key, None)

    def _fail(
        self, generation: Generation, reason: str, *, lacks_device: bool = False
    ) -> None:
        self._fall_back(
            self._generations.fail(generation, reason, lacks_device=lacks_device)
        )

    def _fall_back(self, failed: Generation) -> None:
        """Forget a failed load if another generation serves its version."""
        serving = self._registry.serving(failed.spec.key)
        if serving is not None:
            self._registry.remove(failed.number)
            self._wishes.desired[failed.spec.key] = serving.spec
            self._unsettled.add(failed.spec.key)

    def _place_missing(self, generation: Generation) -> Generation:
        suitable = [
            worker
            for worker_id, worker in sorted(self._arrivals.workers.items())
            if worker_id not in generation.refused
        ]
        if not suitable:
            return generation
        try:
            missing = missing_places(generation, self._registry, suitable, self._place)
        except ConfigError as error:
            return self._lack_device(generation, f"Invalid argument: {error}")
        for worker_id, instances in missing.items():
            generation = self._generations.load(generation, worker_id, instances)
        return generation

    def _lack_device(self, generation: Generation, reason: str) -> Generation:
        """Give up until another worker joins, if nothing of it is placed."""
        if generation.placed:
            return generation
        if generation.state is ModelState.LOADING:
            self._fail(generation, reason, lacks_device=True)
        else:
            renewed = dataclasses.replace(
                generation, reason=reason, is_failed=True, lacks_device=True
            )
            self._registry.put(renewed)
        return self._registry.get(generation.number) or generation

    def _publish(self) -> list[Action]:
        if self._arrivals.is_recovering:
            return []
        table = self._publication.renew(self._registry, is_ready=self._is_ready())
        return [PublishRoutes(table=table)] if table else []

    def _is_ready(self) -> bool:
        if not (self._is_start_up_over and self._strict_readiness):
            return self._is_start_up_over
        return self._wishes.are_fulfilled()
