"""Versions that come and go while others of their model serve."""

import dataclasses

from services.control.events import (
    InstancesFailed,
    InstancesLoaded,
    ModelDropped,
    ModelRefused,
    PublishRoutes,
    RouterJoined,
    RoutesApplied,
    StartUpOver,
)
from services.control.model_registry import MemoryUse
from services.control.reconciler import Reconciler
from services.core.lifecycle import ModelState
from tests.unit.control.reconciler_world import World, place_two, spec

LOADING, READY = ModelState.LOADING, ModelState.READY
UNLOADING, UNAVAILABLE = ModelState.UNLOADING, ModelState.UNAVAILABLE


def serving_version_one() -> World:
    world = World()
    world.join("w1")
    world.desire(spec(version=1))
    world.obey()
    world.step(StartUpOver())
    return world


def fail_next(world: World, reason: str = "Internal: x") -> None:
    order = world.orders.pop(0)
    world.step(
        InstancesFailed(
            worker_id=order.worker_id, generation=order.generation, reason=reason
        )
    )


def test_a_version_serves_until_the_one_that_follows_it_is_ready() -> None:
    world = serving_version_one()
    world.step(RouterJoined(router_id="r"))
    world.desire(spec(version=2))
    assert (world.state(version=1), world.state(version=2)) == (READY, LOADING)
    assert world.reconciler.table.ready
    world.obey()
    assert (world.state(version=1), world.state(version=2)) == (UNLOADING, READY)
    assert world.orders == []  # the router has not heard of it
    applied = world.reconciler.table.revision
    world.step(RoutesApplied(router_id="r", revision=applied))
    assert world.unloads() == [("w1", 1)]
    world.obey()
    assert world.route(version=1)[:2] == (UNAVAILABLE, "unloaded")


def test_routers_learn_of_old_and_new_version_in_one_table() -> None:
    world = serving_version_one()
    world.step(RouterJoined(router_id="r"))
    world.desire(spec(version=2))
    order = world.orders.pop(0)
    world.step(InstancesLoaded(worker_id="w1", generation=order.generation))
    tables = [each.table for each in world.actions if isinstance(each, PublishRoutes)]
    assert [[route.state for route in table.versions] for table in tables] == [
        [UNLOADING, READY]
    ]


def test_a_version_stays_if_the_one_that_follows_it_fails() -> None:
    world = serving_version_one()
    world.desire(spec(version=2))
    fail_next(world)
    assert world.state(version=1) is READY
    assert world.route(version=2)[:2] == (UNAVAILABLE, "Internal: x")
    world.lose("w1")
    world.join("w2")
    world.obey()
    assert world.state(version=1) is READY  # it is wanted as before


def test_a_version_that_stayed_leaves_when_the_next_attempt_succeeds() -> None:
    world = serving_version_one()
    world.desire(spec(version=2))
    fail_next(world)
    world.desire(spec(version=2))
    assert world.state(version=1) is READY
    world.obey()
    assert (world.state(version=1), world.state(version=2)) == (UNAVAILABLE, READY)


def test_all_that_follow_must_serve_before_a_version_goes() -> None:
    world = serving_version_one()
    world.desire(spec(version=2), spec(version=3))
    second = world.orders.pop(0)
    fail_next(world)
    assert world.state(version=1) is READY
    world.orders.append(second)
    world.obey()
    assert (world.state(version=1), world.state(version=2)) == (READY, READY)
    assert world.state(version=3) is UNAVAILABLE


def test_what_serves_is_no_less_ready_for_a_configuration_that_is_refused() -> None:
    world = serving_version_one()
    world.step(ModelRefused(model="m", reason="nonsense"))
    assert world.reconciler.table.ready
    world.step(ModelRefused(model="n", reason="nonsense"))
    assert not world.reconciler.table.ready


def test_unloading_a_model_does_not_wait_for_the_version_that_loads() -> None:
    world = serving_version_one()
    world.desire(spec(version=2))
    world.step(ModelDropped(model="m"))
    assert world.state(version=1) is not READY
    world.obey()
    assert (world.state(version=1), world.state(version=2)) == (
        UNAVAILABLE,
        UNAVAILABLE,
    )


def test_a_version_more_leaves_those_that_serve_alone() -> None:
    world = serving_version_one()
    world.desire(spec(version=1), spec(version=2))
    assert {order.generation for order in world.orders} == {2}
    world.obey()
    assert world.route(version=1) == (READY, "", 1)
    assert world.route(version=2) == (READY, "", 2)


def test_another_version_policy_is_told_to_routers_and_loads_nothing() -> None:
    world = serving_version_one()
    world.desire(dataclasses.replace(spec(version=1), config=b"other policy"))
    assert world.orders == []
    assert world.route() == (READY, "", 1)
    assert world.reconciler.table.versions[0].config == b"other policy"


def test_a_load_that_fails_is_tried_as_often_as_it_was_asked_for() -> None:
    world = World(Reconciler(place_two, load_retries=2))
    world.join("w1")
    world.desire(spec())
    fail_next(world)
    fail_next(world)
    assert world.state() is LOADING
    fail_next(world, "Internal: the last one")
    assert world.route()[:2] == (UNAVAILABLE, "Internal: the last one")
    assert world.orders == []


def test_a_load_that_succeeds_at_the_second_attempt_is_ready() -> None:
    world = World(Reconciler(place_two, load_retries=1))
    world.join("w1")
    world.desire(spec())
    fail_next(world)
    world.obey()
    assert world.route() == (READY, "", 1)


def test_what_a_version_took_is_known_while_its_workers_have_it() -> None:
    world = World()
    for name in ("w1", "w2"):
        world.join(name)
    world.desire(spec())
    for name in ("w1", "w2"):
        use = MemoryUse(cpu_bytes=10, gpu_bytes=5 if name == "w2" else 0, gpu_index=1)
        world.step(InstancesLoaded(worker_id=name, generation=1, memory=use))
    generation = world.reconciler.registry.serving(("m", 1))
    assert generation is not None
    assert generation.memory_usage == (("CPU", 0, 20), ("GPU", 1, 5))
    world.lose("w2")
    generation = world.reconciler.registry.serving(("m", 1))
    assert generation is not None
    assert generation.memory_usage == (("CPU", 0, 10),)
