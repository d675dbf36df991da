"""What holds in the reconciler whatever happens, in whatever order."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.control.events import (
    InstancesFailed,
    InstancesLoaded,
    InstancesUnloaded,
    LoadInstances,
    ModelDropped,
    RouterJoined,
    RouterLeft,
    RoutesApplied,
    StartUpOver,
)
from services.core.lifecycle import ModelState
from tests.unit.control.reconciler_world import World, spec

WORKERS = st.sampled_from(["w1", "w2", "w3"])
MODELS = st.sampled_from(["a", "b"])
CONTENTS = st.sampled_from(["x", "y"])


class AnythingHappens(RuleBasedStateMachine):
    """Workers come, go, obey late, fail; models come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.step(StartUpOver())
        self.numbers: set[int] = set()

    @rule(model=MODELS, content=CONTENTS, versions=st.sets(st.integers(1, 2)))
    def desire(self, model: str, content: str, versions: set[int]) -> None:
        specs = [spec(model, version, content=content) for version in versions]
        was_served = self.served(model)
        if specs:
            self.world.desire(*specs)
            assert self.served(model) or not was_served  # no wish makes a gap

    def served(self, model: str) -> bool:
        return any(
            each.state is ModelState.READY and each.spec.model == model
            for each in self.world.reconciler.registry
        )

    @rule(model=MODELS)
    def drop(self, model: str) -> None:
        self.world.step(ModelDropped(model=model))

    @rule(name=WORKERS)
    def join(self, name: str) -> None:
        self.world.join(name)

    @rule(name=WORKERS, dies=st.booleans())
    def lose(self, name: str, dies: bool) -> None:
        self.world.lose(name, dies=dies)

    @rule(fails=st.booleans(), which=st.integers(0, 5))
    def obey_one(self, fails: bool, which: int) -> None:
        if not self.world.orders:
            return
        order = self.world.orders.pop(which % len(self.world.orders))
        name, number = order.worker_id, order.generation
        served = self.world.served.setdefault(name, set())
        if not isinstance(order, LoadInstances):
            served.discard(number)
            self.world.step(InstancesUnloaded(worker_id=name, generation=number))
        elif fails and number not in served:
            self.world.step(
                InstancesFailed(worker_id=name, generation=number, reason="Internal: x")
            )
        else:
            served.add(number)
            self.world.step(InstancesLoaded(worker_id=name, generation=number))

    @rule(joins=st.booleans())
    def router(self, joins: bool) -> None:
        event = RouterJoined(router_id="r") if joins else RouterLeft(router_id="r")
        self.world.step(event)

    @rule()
    def acknowledge(self) -> None:
        revision = self.world.reconciler.table.revision
        self.world.step(RoutesApplied(router_id="r", revision=revision))

    @rule()
    def everybody_works_until_nothing_is_left_to_do(self) -> None:
        self.world.step(RouterLeft(router_id="r"))
        self.world.join("w1")
        self.world.obey()
        reconciler = self.world.reconciler
        for route in reconciler.table.versions:
            assert route.state in (ModelState.READY, ModelState.UNAVAILABLE)
        for model in "ab":
            assert not reconciler.is_pending(model)
        desired = {
            (name, each.generation)
            for each in reconciler.table.versions
            if each.state is ModelState.READY
            for generation in [reconciler.registry.get(each.generation)]
            if generation is not None
            for name in generation.placed
        }
        attached = {each.worker_id for each in reconciler.workers}
        served = {
            (name, number)
            for name, numbers in self.world.served.items()
            if name in attached
            for number in numbers
        }
        assert served == desired

    @invariant()
    def at_most_one_generation_of_a_version_is_ready(self) -> None:
        ready = Counter(
            each.spec.key
            for each in self.world.reconciler.registry
            if each.state is ModelState.READY
        )
        assert all(count == 1 for count in ready.values())

    @invariant()
    def a_ready_generation_has_a_living_worker_that_loaded_it(self) -> None:
        attached = {each.worker_id for each in self.world.reconciler.workers}
        for each in self.world.reconciler.registry:
            assert set(each.placed) <= attached
            assert each.loaded <= set(each.placed)
            if each.state is ModelState.READY:
                assert each.loaded

    @invariant()
    def no_instance_of_a_generation_is_placed_twice(self) -> None:
        for each in self.world.reconciler.registry:
            names = [i.name for places in each.placed.values() for i in places]
            assert len(names) == len(set(names))

    @invariant()
    def published_routes_are_current(self) -> None:
        for route in self.world.reconciler.table.versions:
            serving = self.world.reconciler.registry.serving(
                (route.model, route.version)
            )
            assert (route.state is ModelState.READY) == (serving is not None)
            if serving is not None:
                assert route.generation == serving.number


TestAnythingHappens = AnythingHappens.TestCase
TestAnythingHappens.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
