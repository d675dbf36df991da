"""What workers and routers bring from before control began."""

import dataclasses

import pytest

from services.control.events import (
    ModelDropped,
    RecoveryOver,
    Restored,
    RouterJoined,
    StartUpOver,
    WorkerJoined,
)
from services.control.model_registry import Generation
from services.control.reconciler import Reconciler
from services.core.lifecycle import ModelState
from tests.unit.control.reconciler_world import World, place_two, spec, worker

READY, UNAVAILABLE = ModelState.READY, ModelState.UNAVAILABLE
BOTH = ("m_0_0", "m_0_1")


def is_ready(world: World) -> bool:
    return world.reconciler.table.ready


def ready_world(*workers: str) -> World:
    world = World()
    for name in workers:
        world.join(name)
    world.desire(spec())
    world.obey()
    world.step(StartUpOver())
    return world


def restored_world() -> World:
    """Return the world of a control process that follows one that had served m."""
    before = ready_world("w1").reconciler.registry.get(1)
    assert before is not None
    world = World(Reconciler(place_two, first_number=10))
    world.served["w1"] = {1}
    world.step(Restored(generations=(before,)))
    return world


def test_after_a_restart_a_worker_keeps_what_it_serves_and_routers_see_no_gap() -> None:
    world = restored_world()
    world.desire(spec())
    assert not world.published()
    assert world.reconciler.is_pending("m")
    world.join("w1")
    assert (world.loads(), world.unloads()) == ([], [])
    assert not world.published()
    assert not world.reconciler.is_pending("m")
    world.step(StartUpOver())
    assert world.published()
    assert world.route() == (READY, "", 1)
    assert is_ready(world)


def test_after_a_restart_a_fresh_worker_loads_what_is_desired_at_once() -> None:
    world = restored_world()
    world.served.clear()
    world.desire(spec())
    world.join("w9")
    assert world.loads() == [("w9", 1, BOTH)]


def test_restored_models_that_nobody_wants_or_serves_are_forgotten() -> None:
    world = restored_world()
    world.step(RecoveryOver())
    assert world.reconciler.table.versions == ()
    assert world.reconciler.desired_models() == set()
    world.join("w1")
    assert world.unloads() == [("w1", 1)]


def test_a_restored_model_that_changed_meanwhile_is_loaded_anew() -> None:
    world = restored_world()
    world.desire(spec(content="b"))
    world.join("w1")
    assert world.unloads() == [("w1", 1)]
    assert world.loads() == [("w1", 10, BOTH)]


def test_a_new_generation_is_numbered_above_the_restored_ones() -> None:
    world = World()
    world.step(Restored(generations=(Generation(number=41, spec=spec()),)))
    world.join("w1")
    world.desire(spec("other"))
    assert [number for _, number, _ in world.loads()] == [42]


def test_a_model_of_an_earlier_run_that_nobody_wants_leaves_no_trace() -> None:
    world = restored_world()
    world.step(ModelDropped(model="m"))
    world.step(StartUpOver())
    assert world.reconciler.table.versions == ()


def test_what_served_in_this_run_is_known_as_unloaded() -> None:
    world = restored_world()
    world.join("w1")
    world.step(ModelDropped(model="m"))
    world.step(StartUpOver())
    world.obey()
    assert world.route()[:2] == (UNAVAILABLE, "unloaded")


def test_an_ensemble_of_an_earlier_run_goes_with_its_members() -> None:
    world = restored_world()
    both = dataclasses.replace(spec("both"), members=(("m", None),))
    world.step(Restored(generations=(Generation(number=2, spec=both),)))
    world.step(RecoveryOver())
    assert world.reconciler.desired_models() == set()
    assert world.reconciler.table.versions == ()


def ignorant_world(*, has_router: bool = True) -> tuple[World, Generation]:
    """Return the world of a control whose store was away, and what w1 serves."""
    before = ready_world("w1").reconciler.registry.get(1)
    assert before is not None
    described = Generation(number=1, spec=before.spec, former=before.placed)
    world = World(Reconciler(place_two, first_number=10))
    world.step(Restored(generations=()))
    if has_router:
        world.step(RouterJoined(router_id="r", revision=5))
    return world, described


def come_back(world: World, described: Generation) -> None:
    world.served["w1"] = {1}
    joined = WorkerJoined(
        worker=worker("w1"), generations=frozenset({1}), described=(described,)
    )
    world.step(joined)


@pytest.mark.parametrize("is_desired_before", [True, False])
def test_without_a_store_workers_tell_what_was_served_and_routers_see_no_gap(
    *, is_desired_before: bool
) -> None:
    world, described = ignorant_world()
    if is_desired_before:
        world.desire(spec())
    assert not world.published()
    come_back(world, described)
    if not is_desired_before:
        world.desire(spec())
    assert (world.loads(), world.unloads()) == ([], [])
    assert not world.published()
    world.step(StartUpOver())
    assert not world.published()
    world.step(RecoveryOver())
    assert world.published()
    assert world.route() == (READY, "", 1)


def test_without_a_store_what_clients_had_loaded_goes_on() -> None:
    world, described = ignorant_world(has_router=False)
    world.step(StartUpOver())
    come_back(world, described)
    assert not world.published()
    world.step(RecoveryOver())
    assert world.route() == (READY, "", 1)
    assert world.unloads() == []


def test_several_workers_tell_of_one_generation() -> None:
    elder = ready_world("w1", "w2").reconciler.registry.get(1)
    assert elder is not None
    world, _ = ignorant_world()
    for name in ("w1", "w2"):
        world.served[name] = {1}
        former = {name: elder.placed[name]}
        described = Generation(number=1, spec=elder.spec, former=former)
        joined = WorkerJoined(
            worker=worker(name), generations=frozenset({1}), described=(described,)
        )
        world.step(joined)
        assert (world.loads(), world.unloads()) == ([], [])
    world.step(RecoveryOver())
    found = world.reconciler.registry.get(1)
    assert found is not None
    assert found.placed == elder.placed


def test_a_router_that_knows_nothing_is_told_at_once_that_there_is_nothing() -> None:
    world, _ = ignorant_world(has_router=False)
    world.step(RouterJoined(router_id="r"))
    assert not world.reconciler.is_recovering


def test_routers_are_told_in_the_end_though_nobody_comes_back() -> None:
    world, _ = ignorant_world()
    world.join("w9")
    assert not world.published()
    world.desire(spec())
    world.obey()
    world.step(RecoveryOver())
    assert world.route()[0] is READY


def test_a_changed_model_is_loaded_anew_though_a_worker_tells_of_the_old_one() -> None:
    world, described = ignorant_world()
    world.desire(spec(content="b"))
    come_back(world, described)
    assert world.loads() == [("w1", 10, BOTH)]
