"""Ensembles in the reconciler: READY with their members, and only then."""

import dataclasses
from collections.abc import Mapping

import pytest

from services.control.events import (
    InstancesFailed,
    InstancesLoaded,
    LoadEnded,
    ModelDropped,
    RecoveryOver,
    Restored,
    StartUpOver,
)
from services.control.model_registry import Member, VersionSpec
from services.control.reconciler import Reconciler
from services.control.snapshot import from_fields, snapshot_of, to_fields
from services.core.lifecycle import ModelState
from tests.unit.control.reconciler_world import World, place_two, spec

LOADING, READY = ModelState.LOADING, ModelState.READY
UNAVAILABLE = ModelState.UNAVAILABLE
NO_VERSION = "ensemble 'e' depends on 'm' which has no loaded version"


def ensemble(
    *members: Member, name: str = "e", content: str = "e", version: int = 1
) -> VersionSpec:
    plain = spec(name, version, content=content, backend="")
    return dataclasses.replace(plain, members=members or (("m", None),))


def world_of(*specs: VersionSpec) -> World:
    world = World()
    world.join("w1")
    for each in specs:
        world.desire(each)
    return world


def test_an_ensemble_is_ready_once_its_member_is_and_no_worker_loads_it() -> None:
    world = world_of(spec(), ensemble())
    assert world.state("e") is LOADING
    assert world.loads() == []
    assert world.reconciler.is_pending("e")
    world.obey()
    state, reason, generation = world.route("e")
    assert (state, reason) == (READY, "")
    assert generation > 0
    assert not world.reconciler.is_pending("e")


def test_the_order_of_arrival_makes_no_difference() -> None:
    world = world_of(ensemble())
    world.desire(spec())
    assert world.state("e") is LOADING
    world.obey()
    assert world.state("e") is READY


def test_an_ensemble_without_its_member_says_which_one_is_missing() -> None:
    world = world_of(ensemble(("m", None), ("n", 2)))
    assert world.route("e")[:2] == (
        UNAVAILABLE,
        "ensemble e contains models that are not available or ambiguous: m, n",
    )
    assert not world.reconciler.is_pending("e")
    assert [each.reason for each in world.actions if isinstance(each, LoadEnded)]


def test_a_member_that_goes_takes_the_ensemble_with_it_in_the_same_table() -> None:
    world = world_of(spec(), ensemble())
    world.obey()
    world.step(ModelDropped(model="m"))
    assert world.published()
    assert world.route("e")[:2] == (UNAVAILABLE, NO_VERSION)
    assert not world.reconciler.is_pending("e")


def test_a_member_that_comes_back_brings_the_ensemble_back() -> None:
    world = world_of(spec(), ensemble())
    world.obey()
    world.step(ModelDropped(model="m"))
    world.obey()
    world.desire(spec())
    state, _, generation = world.route("e")
    # Routers keep requests for what has served before, but not for this: they have
    # nothing of its member.
    assert (state, generation) == (LOADING, 0)
    world.obey()
    assert world.state("e") is READY


def test_an_ensemble_of_an_ensemble_waits_for_the_innermost_member() -> None:
    outer = ensemble(("e", None), name="o", content="o")
    world = world_of(spec(), ensemble(), outer)
    world.obey()
    assert world.state("o") is READY
    world.step(ModelDropped(model="m"))
    world.obey()
    world.desire(spec())
    assert (world.state("e"), world.state("o")) == (LOADING, LOADING)
    world.obey()
    assert (world.state("e"), world.state("o")) == (READY, READY)


def test_a_member_that_fails_to_load_fails_the_ensemble() -> None:
    world = world_of(spec(), ensemble())
    generation = world.orders[0].generation
    world.step(InstancesFailed(worker_id="w1", generation=generation, reason="no"))
    assert world.route("e")[:2] == (UNAVAILABLE, NO_VERSION)


def test_a_step_that_names_a_version_needs_that_version() -> None:
    world = world_of(spec(version=1), ensemble(("m", 2)))
    world.obey()
    assert world.route("e")[1] == (
        "ensemble 'e' depends on 'm' whose required version 2 is not loaded"
    )
    world.desire(spec(version=1), spec(version=2))
    world.obey()
    assert world.state("e") is READY


def test_a_lost_worker_leaves_the_ensemble_ready_while_another_loads() -> None:
    world = world_of(spec(), ensemble())
    world.join("w2")
    world.obey()
    generation = world.route("e")[2]
    world.lose("w1")
    assert world.route("e") == (READY, "", generation)


def test_an_ensemble_that_does_not_fit_its_members_is_refused_until_it_does() -> None:
    def check(spec: VersionSpec, members: Mapping[Member, VersionSpec]) -> str:
        del spec
        return "too small" if members["m", None].config == b"small" else ""

    world = World(Reconciler(place_two, check))
    world.join("w1")
    world.desire(spec(content="small"))
    world.desire(ensemble())
    world.obey()
    assert world.route("e")[:2] == (UNAVAILABLE, "too small")
    world.desire(spec(content="large"))
    world.obey()
    assert world.state("e") is READY


def test_ensembles_of_ensembles_follow_from_the_inside_out() -> None:
    outer = ensemble(("e", None), name="a")
    world = world_of(outer, ensemble(), spec())
    assert world.state("a") is LOADING
    world.obey()
    assert (world.state("a"), world.state("e")) == (READY, READY)
    world.step(ModelDropped(model="m"))
    assert (world.state("a"), world.state("e")) == (UNAVAILABLE, UNAVAILABLE)


def test_the_innermost_member_brings_ensembles_of_any_depth() -> None:
    depth = 6
    # Their names are in the wrong order, too.
    chain = [ensemble((f"e{i + 1}", None), name=f"e{i}") for i in range(depth)]
    world = world_of(*chain, ensemble(name=f"e{depth}"), spec())
    world.obey()
    assert {world.state(each.model) for each in chain} == {READY}


def test_a_step_without_a_version_means_the_newest() -> None:
    seen = []

    def check(spec: VersionSpec, members: Mapping[Member, VersionSpec]) -> str:
        del spec
        seen.append(members["m", None].version)
        return ""

    world = World(Reconciler(place_two, check))
    world.join("w1")
    world.desire(spec(version=1), spec(version=2))
    world.obey()
    world.desire(ensemble())
    assert set(seen) == {2}


def test_a_version_that_departs_takes_the_ensemble_that_names_it() -> None:
    world = world_of(spec(version=1), ensemble(("m", 1)))
    world.obey()
    assert world.state("e") is READY
    world.desire(spec(version=2))
    assert world.state("e") is READY
    loaded = world.orders.pop().generation
    world.step(InstancesLoaded(worker_id="w1", generation=loaded))
    assert world.state("m", 1) is not READY
    assert world.route("e")[:2] == (
        UNAVAILABLE,
        "ensemble 'e' depends on 'm' whose required version 1 is not loaded",
    )


@pytest.mark.parametrize(
    ("specs", "path"),
    [
        ([ensemble(("e", None))], "'e' depends on 'e'"),
        (
            [ensemble(("f", None)), ensemble(("e", None), name="f")],
            "'e' depends on 'f' depends on 'e'",
        ),
    ],
)
def test_a_circle_of_ensembles_is_refused(specs: list[VersionSpec], path: str) -> None:
    world = world_of(*specs)
    assert world.route("e")[:2] == (
        UNAVAILABLE,
        f"circular dependency between ensembles: {path}",
    )
    assert not world.reconciler.is_pending("e")


def test_an_ensemble_on_a_circle_elsewhere_waits_for_nobody() -> None:
    world = world_of(
        ensemble(("f", None)), ensemble(("f", None), name="f"), spec("unrelated")
    )
    assert world.route("e")[:2] == (
        UNAVAILABLE,
        "ensemble 'e' depends on 'f' which has no loaded version",
    )


def test_a_changed_ensemble_replaces_the_old_one_at_once() -> None:
    world = world_of(spec(), ensemble())
    world.obey()
    before = world.route("e")[2]
    world.desire(ensemble(content="other"))
    state, _, generation = world.route("e")
    assert state is READY
    assert generation > before


def test_a_dropped_ensemble_is_unloaded_and_its_member_stays() -> None:
    world = world_of(spec(), ensemble())
    world.obey()
    world.step(ModelDropped(model="e"))
    assert world.route("e")[:2] == (UNAVAILABLE, "unloaded")
    assert world.state("m") is READY


def test_a_server_is_not_ready_without_an_ensemble_that_should_be() -> None:
    world = world_of(spec(), ensemble())
    world.obey()
    world.step(StartUpOver())
    assert world.reconciler.table.ready
    world.step(ModelDropped(model="m"))
    assert not world.reconciler.table.ready


def test_an_ensemble_survives_control_with_its_generation() -> None:
    world = world_of(spec(), ensemble())
    world.obey()
    generation = world.route("e")[2]
    snapshot = from_fields(to_fields(snapshot_of(world.reconciler.registry, ())))

    again = World(Reconciler(place_two, first_number=1000))
    again.served = world.served
    again.step(Restored(generations=snapshot.generations))
    again.join("w1")
    assert not again.reconciler.is_recovering or again.step(RecoveryOver())
    assert again.route("m")[0] is READY
    assert again.route("e") == (READY, "", generation)
