"""From wishes and arrivals to orders: the reconciler, scenario by scenario."""

import pytest

from services.control.events import (
    InstancesFailed,
    InstancesLoaded,
    LoadEnded,
    ModelDropped,
    ModelRefused,
    PublishRoutes,
    RouterJoined,
    RouterLeft,
    RoutersOverdue,
    RoutesApplied,
    StartUpOver,
    WorkerJoined,
)
from services.control.reconciler import Reconciler
from services.core.lifecycle import ModelState
from tests.unit.control.reconciler_world import World, place_two, spec, worker

LOADING, READY = ModelState.LOADING, ModelState.READY
UNLOADING, UNAVAILABLE = ModelState.UNLOADING, ModelState.UNAVAILABLE
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


def test_a_model_waits_for_a_worker_and_is_ready_once_it_has_loaded() -> None:
    world = World()
    world.desire(spec())
    assert world.loads() == []
    assert world.state() is LOADING
    world.join("w1")
    assert world.loads() == [("w1", 1, BOTH)]
    world.obey()
    assert world.route() == (READY, "", 1)


def test_a_version_is_ready_only_when_all_its_workers_have_loaded() -> None:
    world = World()
    world.join("w1")
    world.join("w2")
    world.desire(spec())
    assert world.loads() == [("w1", 1, BOTH[:1]), ("w2", 1, BOTH[1:])]
    world.step(InstancesLoaded(worker_id="w1", generation=1))
    assert world.state() is LOADING
    world.step(InstancesLoaded(worker_id="w2", generation=1))
    assert world.state() is READY
    assert LoadEnded(generation=1, spec=spec()) in world.actions


def test_a_failed_load_leaves_the_reason_and_frees_the_other_workers() -> None:
    world = World()
    world.join("w1")
    world.join("w2")
    world.desire(spec())
    world.step(InstancesLoaded(worker_id="w1", generation=1))
    world.step(InstancesFailed(worker_id="w2", generation=1, reason="Internal: no"))
    assert world.route() == (UNAVAILABLE, "Internal: no", 0)
    assert world.unloads() == [("w1", 1)]
    assert not world.reconciler.is_pending("m")


def test_one_failing_model_does_not_stop_another() -> None:
    world = World()
    world.join("w1")
    world.desire(spec("bad"))
    world.desire(spec("good"))
    world.step(InstancesFailed(worker_id="w1", generation=1, reason="Internal: no"))
    world.step(InstancesLoaded(worker_id="w1", generation=2))
    assert world.state("bad") is UNAVAILABLE
    assert world.state("good") is READY


def test_a_failed_version_is_tried_again_only_when_it_is_desired_again() -> None:
    world = World()
    world.join("w1")
    world.desire(spec())
    world.step(InstancesFailed(worker_id="w1", generation=1, reason="Internal: no"))
    world.join("w2")
    assert world.loads() == []
    world.desire(spec())
    assert [number for _, number, _ in world.loads()] == [2, 2]


def test_a_refused_spec_fails_without_any_worker() -> None:
    world = World()
    world.desire(spec(refusal="Invalid argument: dims"))
    assert world.route() == (UNAVAILABLE, "Invalid argument: dims", 0)
    assert not world.reconciler.table.versions[0].is_routable


def test_an_equal_spec_is_not_loaded_again() -> None:
    world = ready_world("w1")
    world.desire(spec())
    assert world.actions == ()


def test_a_reload_serves_from_the_old_generation_until_the_new_one_is_ready() -> None:
    world = ready_world("w1")
    world.step(RouterJoined(router_id="r"))
    world.desire(spec(content="b"))
    assert world.loads() == [("w1", 2, BOTH)]
    assert world.route() == (READY, "", 1)
    assert world.reconciler.is_pending("m")
    world.step(InstancesLoaded(worker_id="w1", generation=2))
    assert world.route() == (READY, "", 2)
    assert world.unloads() == []  # the router may still send to the old one
    revision = world.reconciler.table.revision
    world.step(RoutesApplied(router_id="r", revision=revision - 1))
    assert world.unloads() == []
    world.step(RoutesApplied(router_id="r", revision=revision))
    assert world.unloads() == [("w1", 1)]


@pytest.mark.parametrize("event", [RouterLeft(router_id="r"), None])
def test_a_router_that_is_gone_or_overdue_does_not_hold_up_an_unload(
    event: RouterLeft | None,
) -> None:
    world = ready_world("w1")
    world.step(RouterJoined(router_id="r"))
    world.step(ModelDropped(model="m"))
    assert world.unloads() == []
    revision = world.reconciler.table.revision
    world.step(event or RoutersOverdue(revision=revision))
    assert world.unloads() == [("w1", 1)]


def test_a_reload_that_fails_leaves_the_old_generation_serving() -> None:
    world = ready_world("w1")
    world.desire(spec(content="b"))
    world.step(InstancesFailed(worker_id="w1", generation=2, reason="Internal: no"))
    assert world.route() == (READY, "", 1)
    assert not world.reconciler.is_pending("m")
    world.lose("w1")
    world.join("w2")
    assert world.loads() == [("w2", 1, BOTH)]


def test_a_newer_wish_replaces_one_that_is_still_loading() -> None:
    world = World()
    world.join("w1")
    world.desire(spec())
    world.desire(spec(content="b"))
    assert world.unloads() == [("w1", 1)]
    assert world.loads() == [("w1", 2, BOTH)]
    world.obey()
    assert world.route() == (READY, "", 2)
    assert world.served == {"w1": {2}}


def test_an_unloaded_model_says_so_and_is_loaded_anew_when_desired_again() -> None:
    world = ready_world("w1")
    world.step(ModelDropped(model="m"))
    assert world.state() is UNLOADING
    world.obey()
    assert world.route() == (UNAVAILABLE, "unloaded", 0)
    assert is_ready(world)
    world.desire(spec())
    world.obey()
    assert world.route() == (READY, "", 2)


def test_a_version_that_is_no_longer_desired_goes_and_the_others_stay() -> None:
    world = World()
    world.join("w1")
    world.desire(spec(version=1), spec(version=2))
    world.obey()
    world.desire(spec(version=2), spec(version=3))
    assert [number for _, number, _ in world.loads()] == [3]
    world.obey()
    assert world.route(version=1) == (UNAVAILABLE, "unloaded", 0)
    assert world.route(version=2) == (READY, "", 2)
    assert world.route(version=3) == (READY, "", 3)


def test_a_version_stays_routed_while_one_of_its_workers_lives() -> None:
    world = ready_world("w1", "w2")
    world.lose("w2")
    assert world.state() is READY
    assert world.loads() == []  # w1 has its share; the rest waits for a worker
    world.join("w3")
    assert world.loads() == [("w3", 1, BOTH[1:])]


def test_instances_of_a_lost_worker_move_to_one_that_has_none_of_them() -> None:
    world = ready_world("w1", "w2")
    world.join("w3")
    assert world.loads() == []
    world.lose("w2")
    assert world.loads() == [("w3", 1, BOTH[1:])]


def test_a_version_without_any_worker_is_unavailable_until_one_returns() -> None:
    world = ready_world("w1")
    world.lose("w1")
    assert world.state() is UNAVAILABLE
    assert not is_ready(world)
    world.join("w2")
    assert world.route() == (LOADING, "", 1)
    assert world.reconciler.table.versions[0].is_returning
    world.obey()
    assert world.route() == (READY, "", 1)
    assert is_ready(world)


def test_routers_see_no_gap_when_a_successor_takes_the_place_of_a_worker() -> None:
    world = ready_world("w1")
    event = WorkerJoined(worker=worker("w2"), predecessors=frozenset({"w1"}))
    world.step(event)
    assert world.loads() == [("w2", 1, BOTH)]
    (published,) = [each for each in world.actions if isinstance(each, PublishRoutes)]
    assert published.table.versions[0].is_returning
    assert [each.worker_id for each in world.reconciler.workers] == ["w2"]


def test_a_worker_that_dials_again_keeps_what_it_serves() -> None:
    world = ready_world("w1")
    world.lose("w1", dies=False)
    assert world.state() is UNAVAILABLE
    world.join("w1")
    assert (world.loads(), world.unloads()) == ([], [])
    assert world.route() == (READY, "", 1)


def test_a_worker_that_returns_too_late_must_unload_what_others_have_now() -> None:
    world = ready_world("w1")
    world.lose("w1", dies=False)
    world.join("w2")
    world.join("w1")
    assert world.unloads() == [("w1", 1)]


def test_a_worker_that_lost_an_order_with_its_stream_gets_it_again() -> None:
    world = World()
    world.join("w1")
    world.desire(spec())
    world.orders.clear()
    world.join("w1")
    assert world.loads() == [("w1", 1, BOTH)]
    world.obey()
    assert world.state() is READY


def test_a_worker_must_unload_what_nobody_knows() -> None:
    world = World()
    world.step(WorkerJoined(worker=worker("w1"), generations=frozenset({7, 9})))
    assert world.unloads() == [("w1", 7), ("w1", 9)]


def test_the_last_loaded_worker_leaves_while_another_is_on_its_way() -> None:
    world = ready_world("w1", "w2")
    world.lose("w2")
    world.join("w3")
    world.lose("w1")
    assert world.state() is LOADING
    world.step(InstancesLoaded(worker_id="w3", generation=1))
    assert world.state() is READY


def test_a_model_that_no_device_suits_fails_and_is_tried_when_one_joins() -> None:
    world = World()
    world.join("cpu")
    world.desire(spec(backend="gpu"))
    reason = "Invalid argument: no GPUs are available"
    assert world.route() == (UNAVAILABLE, reason, 0)
    assert not world.reconciler.is_pending("m")
    world.join("another cpu")
    assert world.route() == (UNAVAILABLE, reason, 0)
    world.join("gpu", gpu=True)
    assert world.loads() == [("gpu", 1, BOTH)]
    world.obey()
    assert world.state() is READY


def test_a_model_wants_all_its_devices_once_and_serves_with_what_is_left() -> None:
    world = World()
    world.join("cpu")
    world.desire(spec(backend="both"))
    assert world.route()[:2] == (UNAVAILABLE, "Invalid argument: no cuda is available")
    world.join("gpu", gpu=True)
    world.obey()
    assert world.state() is READY
    world.lose("cpu")
    world.lose("gpu")
    world.join("cpu")
    assert world.loads() == [("cpu", 1, ("m_0_0",))]
    world.obey()
    assert world.state() is READY
    world.join("gpu", gpu=True)
    assert world.loads() == [("gpu", 1, ("m_1_0",))]


def test_a_worker_that_fails_beside_serving_ones_is_not_asked_again() -> None:
    world = ready_world("w1", "w2")
    world.lose("w2")
    world.join("w3")
    world.step(InstancesFailed(worker_id="w3", generation=1, reason="Internal: no"))
    assert world.state() is READY
    world.join("w3")
    assert world.loads() == []


def test_the_server_is_ready_after_start_up_if_all_that_is_desired_is() -> None:
    world = World()
    world.join("w1")
    world.desire(spec())
    world.obey()
    assert not is_ready(world)
    world.step(StartUpOver())
    assert is_ready(world)
    world.step(ModelRefused(model="x", reason="unreadable"))
    assert not is_ready(world)
    assert world.reconciler.problems == {"x": "unreadable"}
    world.step(ModelDropped(model="x"))
    assert is_ready(world)


def test_without_strict_readiness_a_failed_model_does_not_count() -> None:
    world = World(Reconciler(place_two, strict_readiness=False))
    world.desire(spec(refusal="Invalid argument: dims"))
    assert not is_ready(world)
    world.step(StartUpOver())
    assert is_ready(world)


def test_a_table_is_published_only_when_it_changes_and_with_a_higher_revision() -> None:
    world = ready_world("w1")
    before = world.reconciler.table.revision
    world.join("w2")
    assert not world.published()
    world.step(ModelDropped(model="m"))
    assert world.published()
    assert world.reconciler.table.revision == before + 1
