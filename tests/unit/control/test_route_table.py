"""What routers are told of the generations."""

import dataclasses

from protos import control_pb2
from protos.model_config_pb2 import ModelConfig
from services.control import router_wire
from services.control.model_registry import Generation, ModelRegistry, VersionSpec
from services.control.route_table import RouteTable, routes_of
from services.core.lifecycle import ModelState


def generation(
    number: int,
    state: ModelState,
    *,
    model: str = "m",
    version: int = 1,
    reason: str = "",
    refusal: str = "",
) -> Generation:
    spec = VersionSpec(
        model=model,
        version=version,
        config=ModelConfig(name=f"{model}-{number}").SerializeToString(),
        backend="onnxruntime",
        directory="/r",
        fingerprint=str(number),
        refusal=refusal,
    )
    return Generation(number=number, spec=spec, state=state, reason=reason)


def registry_of(*generations: Generation) -> ModelRegistry:
    registry = ModelRegistry()
    for each in generations:
        registry.put(each)
    return registry


def test_a_ready_generation_counts_more_than_a_newer_one() -> None:
    registry = registry_of(
        generation(1, ModelState.UNLOADING),
        generation(2, ModelState.READY),
        generation(3, ModelState.LOADING),
    )
    (route,) = routes_of(registry)
    assert (route.state, route.generation) == (ModelState.READY, 2)
    assert ModelConfig.FromString(route.config).name == "m-2"


def test_without_a_ready_generation_the_newest_counts() -> None:
    registry = registry_of(
        generation(1, ModelState.UNLOADING),
        generation(2, ModelState.UNAVAILABLE, reason="broken"),
    )
    (route,) = routes_of(registry)
    assert (route.state, route.reason) == (ModelState.UNAVAILABLE, "broken")
    assert route.generation == 0


def test_an_unloading_generation_is_still_named() -> None:
    (route,) = routes_of(registry_of(generation(7, ModelState.UNLOADING)))
    assert route.generation == 7


def test_versions_are_ordered_by_number_not_by_text() -> None:
    registry = registry_of(
        generation(1, ModelState.READY, version=10),
        generation(2, ModelState.READY, version=9),
        generation(3, ModelState.READY, model="a", version=11),
    )
    assert [(r.model, r.version) for r in routes_of(registry)] == [
        ("a", 11),
        ("m", 9),
        ("m", 10),
    ]


def test_the_message_has_every_version_that_can_be_routed() -> None:
    registry = registry_of(
        generation(1, ModelState.READY),
        generation(2, ModelState.UNAVAILABLE, version=2, reason="x", refusal="x"),
        generation(3, ModelState.UNAVAILABLE, version=3, reason="y"),
        generation(4, ModelState.UNAVAILABLE, model="n", reason="z", refusal="z"),
    )
    table = RouteTable(revision=5, ready=True, versions=routes_of(registry))
    message = router_wire.routes_to_proto(table).routes
    assert (message.revision, message.ready) == (5, True)
    assert {m.name: [v.version for v in m.versions] for m in message.models} == {
        "m": [1, 3],
        "n": [],
    }
    first, third = message.models[0].versions
    assert (first.state, first.generation) == (control_pb2.VersionRoute.READY, 1)
    assert first.config.name == "m-1"
    assert (third.state, third.reason) == (control_pb2.VersionRoute.UNAVAILABLE, "y")


def test_every_state_has_its_word_on_the_wire() -> None:
    for state in ModelState:
        registry = registry_of(generation(1, state))
        table = RouteTable(revision=1, ready=False, versions=routes_of(registry))
        (model,) = router_wire.routes_to_proto(table).routes.models
        word = control_pb2.VersionRoute.State.Name(model.versions[0].state)
        assert word == state.value


def test_routers_keep_requests_for_what_has_served_and_is_loaded_again() -> None:
    loading = generation(4, ModelState.LOADING)
    again = dataclasses.replace(loading, was_ready=True)
    states = []
    for each in (loading, again):
        routes = routes_of(registry_of(each))
        assert routes[0].state is ModelState.LOADING  # what the index says
        table = RouteTable(revision=1, ready=False, versions=routes)
        (version,) = router_wire.routes_to_proto(table).routes.models[0].versions
        states.append((version.state, version.generation))
    assert states == [
        (control_pb2.VersionRoute.LOADING, 0),
        (control_pb2.VersionRoute.READY, 4),
    ]


def test_equal_tables_of_other_revisions_have_nothing_new() -> None:
    one = RouteTable(revision=1, ready=True)
    assert one.equals_but_for_revision(RouteTable(revision=2, ready=True))
    assert not one.equals_but_for_revision(RouteTable(revision=1, ready=False))
