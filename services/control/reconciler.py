"""From what should be served, and who is there to serve it, to what to do now.

Pure: every fact arrives as an event, every wish leaves as an action. The rules:

- A version has one machine per generation. A changed spec is a new generation that
  loads beside the one that serves; when it is READY the old one is unloaded, after
  the routers have applied the routes. At most one generation of a version is READY.
- Placed instances stay where they are. What is missing, because a worker left or a
  new device came, goes to workers that have nothing of the generation; if there is
  none it waits, and the version serves with what is left.
- A load that fails does not disturb what serves.
- Versions that are no longer wanted serve until all those that are wanted instead do;
  if one of these fails, they stay.
- After a restart, routers are told nothing until it is clear which workers came
  back with what they served: what they know is better.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

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
    VersionSpec,
    Worker,
)
from services.control.route_table import RouteTable, routes_of
from services.control.router_acknowledgements import RouterAcknowledgements
from services.control.traffic_split import TrafficSplit
from services.core.errors import ConfigError
from services.core.lifecycle import ModelEvent, ModelState


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
        self._desired: dict[VersionKey, VersionSpec] = {}
        self._problems: dict[str, str] = {}
        self._workers: dict[str, Worker] = {}
        self._acknowledgements = RouterAcknowledgements()
        # Restored versions no worker has come back with; True: desired again.
        self._awaited: dict[VersionKey, bool] = {}
        # Versions that serve until others of their model do.
        self._departing: dict[VersionKey, VersionSpec] = {}
        self._splits: Mapping[str, TrafficSplit] = {}
        self._is_recovering = False
        self._is_start_up_over = False
        # Versions that may not be as they should.
        self._unsettled: set[VersionKey] = set()
        self._table = RouteTable(revision=first_number, ready=False)

    @property
    def table(self) -> RouteTable:
        """The routes as last published."""
        return self._table

    @property
    def registry(self) -> ModelRegistry:
        """All generations; to look at only."""
        return self._registry

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Everyone who has joined and not left."""
        return tuple(self._workers.values())

    @property
    def splits(self) -> Mapping[str, TrafficSplit]:
        """How requests without a version are shared out, by model."""
        return self._splits

    @property
    def problems(self) -> dict[str, str]:
        """Models that should be served and have no usable configuration: why."""
        return dict(self._problems)

    @property
    def is_recovering(self) -> bool:
        """Whether routers know better than this process what is served."""
        return self._is_recovering

    @property
    def awaited(self) -> frozenset[VersionKey]:
        """Restored versions that no worker has come back with."""
        return frozenset(self._awaited)

    def desired_models(self) -> set[str]:
        """Return the models that should be served, restored ones included."""
        return {model for model, _ in self._desired} | self._problems.keys()

    def directories_in_use(self) -> set[str]:
        """Return the folders of versions that workers read or may have to read."""
        placed = {
            generation.spec.directory
            for generation in self._registry
            if generation.placed or (generation.former and not generation.is_unloaded)
        }
        return placed | {spec.directory for spec in self._desired.values()}

    def is_pending(self, model: str) -> bool:
        """Whether a desired version of ``model`` is on its way to READY."""
        return any(self._is_pending(key) for key in self._desired if key[0] == model)

    def _is_pending(self, key: VersionKey) -> bool:
        if key in self._awaited:
            return self._awaited[key]
        generation = self._matching(key)
        return generation is not None and not (
            generation.state is ModelState.READY or generation.is_failed
        )

    def have_applied(self, revision: int) -> bool:
        """Whether every router works by ``revision`` or a later table."""
        return self._acknowledgements.have_all(revision)

    def step(self, event: Event) -> tuple[Action, ...]:
        """Take in one event and return what to do, in order."""
        self._apply(event)
        self._unsettled |= self._touched_by(event)
        self._converge()
        self._settle_ensembles()
        self._depart()
        self._settle_ensembles()
        self._generations.prune()
        published = self._publish()
        self._generations.retire(self._table.revision, self.have_applied)
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
            case TrafficSplitsSet():
                return set()
            case _:
                return set(self._desired)

    def _apply(self, event: Event) -> None:
        match event:
            case ModelDesired() | ModelDropped() | ModelRefused():
                self._apply_wish(event)
            case WorkerJoined() | WorkerLeft():
                self._apply_arrival(event)
            case InstancesLoaded() | InstancesFailed() | InstancesUnloaded():
                self._apply_report(event)
            case RouterJoined() | RouterLeft() | RoutesApplied() | RoutersOverdue():
                self._acknowledgements.apply(event)
            case TrafficSplitsSet(splits=splits):
                self._splits = splits
            case Restored(generations=generations):
                self._restore(generations)
            case RecoveryOver():
                self._end_recovery()
            case StartUpOver():
                self._is_start_up_over = True
                self._end_recovery()

    # ------------------------------------------------------------- wishes

    def _apply_wish(self, event: ModelDesired | ModelDropped | ModelRefused) -> None:
        match event:
            case ModelDesired(model=model, specs=specs):
                self._problems.pop(model, None)
                self._replace(model, keep=[spec.key for spec in specs])
                for spec in specs:
                    self._desire(spec)
            case ModelDropped(model=model):
                self._problems.pop(model, None)
                for key in self._versions_of(model):
                    self._drop(key)
            case ModelRefused(model=model, reason=reason):
                self._problems[model] = reason

    def _desire(self, spec: VersionSpec) -> None:
        self._departing.pop(spec.key, None)
        for generation in self._registry.of(spec.key):
            if generation.spec.is_loaded_like(spec):
                self._registry.put(dataclasses.replace(generation, spec=spec))
        if spec.key in self._awaited:
            self._awaited[spec.key] = True
            if not self._desired[spec.key].is_loaded_like(spec):
                del self._awaited[spec.key]
        self._desired[spec.key] = spec
        for generation in self._registry.of(spec.key):
            if generation.is_failed:
                self._registry.remove(generation.number)
            elif generation.state is ModelState.LOADING and generation.spec != spec:
                self._registry.advance(generation, ModelEvent.UNLOAD)

    def _replace(self, model: str, *, keep: Collection[VersionKey]) -> None:
        """Drop the versions that do not stay, those that serve in due course."""
        for key in self._versions_of(model):
            if key in keep:
                continue
            serving = self._registry.serving(key)
            if serving is None:
                self._drop(key)
            else:
                self._desired.pop(key, None)
                self._departing[key] = serving.spec

    def _drop(self, key: VersionKey) -> None:
        self._desired.pop(key, None)
        self._awaited.pop(key, None)
        self._departing.pop(key, None)
        self._generations.drop_version(key)

    def _versions_of(self, model: str) -> list[VersionKey]:
        known = {*self._desired, *self._registry.versions()}
        return sorted(key for key in known if key[0] == model)

    def _depart(self) -> None:
        """Let go of the versions that others of their model have taken over from."""
        for key in sorted(self._departing):
            if self.is_pending(key[0]):
                continue
            others = [each for each in self._desired if each[0] == key[0]]
            if all(map(self._registry.serving, others)):
                self._drop(key)
            else:
                self._desired[key] = self._departing.pop(key)
                self._unsettled.add(key)
                self._converge()

    def _restore(self, generations: Sequence[Generation]) -> None:
        for generation in generations:
            self._generations.restore(generation)
            self._desired[generation.spec.key] = generation.spec
            if not generation.spec.members:
                self._awaited[generation.spec.key] = False
        self._is_recovering = bool(generations)

    def _end_recovery(self) -> None:
        """Wait no longer: load anew what is desired, forget the rest."""
        for key, is_desired_again in self._awaited.items():
            if not is_desired_again:
                del self._desired[key]
                for generation in self._registry.of(key):
                    self._registry.remove(generation.number)
        self._awaited.clear()
        self._is_recovering = False

    # ------------------------------------------------------------ workers

    def _apply_arrival(self, event: WorkerJoined | WorkerLeft) -> None:
        match event:
            case WorkerJoined(worker=worker, generations=generations):
                if not any(self._registry.get(number) for number in generations):
                    self._end_recovery()
                for predecessor in sorted(event.predecessors):
                    self._leave(predecessor)
                self._workers[worker.worker_id] = worker
                self._join(worker.worker_id, generations)
            case WorkerLeft(worker_id=worker_id):
                self._leave(worker_id)

    def _leave(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)
        for generation in self._registry:
            if worker_id in generation.placed:
                self._generations.take_away(generation, worker_id, remember=True)

    def _join(self, worker_id: str, numbers: Collection[int]) -> None:
        for generation in self._registry:
            if generation.lacks_device:
                renewed = dataclasses.replace(
                    generation, is_failed=False, lacks_device=False
                )
                self._registry.put(renewed)
        for generation in self._registry:
            serves = generation.number in numbers
            if worker_id in generation.placed:
                self._generations.compare(generation, worker_id, serves=serves)
            elif serves and not self._adopt(generation, worker_id):
                self._generations.unload(worker_id, generation.number)
        for number in sorted(numbers):
            if self._registry.get(number) is None:
                self._generations.unload(worker_id, number)

    def _adopt(self, generation: Generation, worker_id: str) -> bool:
        is_wanted = (
            generation.is_wanted_on_workers
            and self._desired.get(generation.spec.key) == generation.spec
        )
        return is_wanted and self._generations.adopt(generation, worker_id)

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

    def _matching(self, key: VersionKey) -> Generation | None:
        """Return the generation that is, or becomes, what is desired."""
        spec = self._desired[key]
        found = [
            each
            for each in self._registry.of(key)
            if each.spec == spec
            and each.state is not ModelState.UNLOADING
            and not each.is_unloaded
        ]
        return found[-1] if found else None

    def _converge(self) -> None:
        """Bring every unsettled version that is desired nearer to READY."""
        while self._unsettled:
            unsettled, self._unsettled = self._unsettled, set()
            for key in sorted(unsettled & self._desired.keys()):
                self._settle(key)

    def _settle_ensembles(self) -> None:
        settle_ensembles(
            self._desired, self._generations, self._check_members, self.is_pending
        )

    def _settle(self, key: VersionKey) -> None:
        generation = self._matching(key)
        if generation is None:
            generation = self._generations.create(self._desired[key])
        if generation.is_failed:
            self._fall_back(generation)
            return
        if generation.spec.members:
            return
        if key not in self._awaited:
            generation = self._place_missing(generation)
        if self._generations.promote(generation):
            self._awaited.pop(key, None)

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
            self._desired[failed.spec.key] = serving.spec
            self._unsettled.add(failed.spec.key)

    def _place_missing(self, generation: Generation) -> Generation:
        suitable = [
            worker
            for worker_id, worker in sorted(self._workers.items())
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
        table = RouteTable(
            revision=self._table.revision + 1,
            ready=self._is_ready(),
            versions=routes_of(self._registry),
            splits=self._splits,
        )
        if self._is_recovering or table.equals_but_for_revision(self._table):
            return []
        self._table = table
        return [PublishRoutes(table=table)]

    def _is_ready(self) -> bool:
        if not (self._is_start_up_over and self._strict_readiness):
            return self._is_start_up_over
        return all(map(self._is_served, self._problems)) and all(
            self._registry.serving(key)
            # Another version answers meanwhile.
            or (self._is_pending(key) and self._is_served(key[0]))
            for key in self._desired
        )

    def _is_served(self, model: str) -> bool:
        return any(map(self._registry.serving, self._versions_of(model)))
