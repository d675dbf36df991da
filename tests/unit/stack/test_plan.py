"""Which processes there are, in which order."""

from pathlib import PurePosixPath

import pytest

from services.stack.command_line import parse
from services.stack.plan import (
    GrpcHealth,
    Places,
    ProcessSpec,
    RedisPing,
    TcpConnect,
    plan,
    stop_order,
)
from services.stack.settings import StackSettings, settings_of

PLACES = Places(
    run_directory=PurePosixPath("/run/n"),
    state_directory=PurePosixPath("/state"),
    nereid=("python", "nereid"),
    valkey="/bin/valkey",
    envoy="/bin/envoy",
    envoy_config="/run/n/envoy.json",
)


def settings(*arguments: str) -> StackSettings:
    return settings_of(parse(["--model-repository=/m", *arguments]))


def names(stages: tuple[tuple[ProcessSpec, ...], ...]) -> list[list[str]]:
    return [[spec.name for spec in stage] for stage in stages]


def spec(name: str, *arguments: str, places: Places = PLACES) -> ProcessSpec:
    stages = plan(settings(*arguments), places, ("cpu",))
    return next(spec for stage in stages for spec in stage if spec.name == name)


def test_the_store_comes_first_then_control_then_all_who_ask_it() -> None:
    assert names(plan(settings(), PLACES, ("cuda:0", "cpu"))) == [
        ["redis"],
        ["control"],
        ["router", "worker cuda:0", "worker cpu", "envoy"],
    ]


def test_a_store_elsewhere_is_not_started_and_its_url_not_shown() -> None:
    url = "redis://:secret@host"
    places = Places(
        run_directory=PLACES.run_directory,
        state_directory=PLACES.state_directory,
        nereid=PLACES.nereid,
        redis_url=url,
    )
    stages = plan(settings(), places, ("cpu",))
    assert names(stages)[0] == ["control"]
    assert spec("control", places=places).environment == {"REDIS_URL": url}
    assert not [word for s in stages for p in s for word in p.argv if "secret" in word]


def test_without_rest_and_metrics_there_is_no_gateway() -> None:
    stages = plan(
        settings("--allow-http=false", "--allow-metrics=false"), PLACES, ("cpu",)
    )
    assert names(stages)[-1] == ["router", "worker cpu"]


def test_with_metrics_alone_the_gateway_is_ready_at_their_port() -> None:
    check = spec("envoy", "--allow-http=false", "--metrics-port=99").ready
    assert check == TcpConnect(host="0.0.0.0", port=99)


def test_without_grpc_the_router_opens_no_public_port() -> None:
    assert "--grpc-port=0" in spec("router", "--allow-grpc=false").argv
    assert "--grpc-port=8001" in spec("router").argv


def test_the_router_may_take_as_long_as_requests_in_flight_may() -> None:
    assert spec("router", "--exit-timeout-secs=60").stop_grace_s > 60


def test_the_limit_on_bodies_is_handed_to_the_router_if_given() -> None:
    assert "--http-max-input-size=5" in spec("router", "--http-max-input-size=5").argv
    assert not [w for w in spec("router").argv if "max-input" in w]


@pytest.mark.parametrize(
    ("name", "shown"),
    [("redis", "nereid redis"), ("envoy", "nereid envoy")],
)
def test_foreign_programs_show_their_role(name: str, shown: str) -> None:
    assert spec(name).argv[2:4] == ("execute", shown)


def test_checks_ask_what_the_process_can_answer() -> None:
    assert spec("redis").ready == RedisPing(path="/run/n/redis.sock")
    assert spec("control").ready == GrpcHealth(target="unix:/run/n/control.sock")
    assert spec("router").ready == GrpcHealth(
        target="unix:/run/n/router.sock", service="nereid.router"
    )


def test_every_repository_is_handed_to_control_in_order() -> None:
    argv = spec("control", "--model-repository=/n").argv
    given = [word for word in argv if word.startswith("--model-repository")]
    assert given == ["--model-repository=/m", "--model-repository=/n"]


@pytest.mark.parametrize("devices", [("cpu",), ("cuda:0", "cuda:1", "cpu")])
def test_control_waits_for_all_the_workers_that_are_started(
    devices: tuple[str, ...],
) -> None:
    (control,) = next(
        s
        for s in plan(settings(), PLACES, devices)
        if len(s) == 1 and s[0].name == "control"
    )
    assert f"--expected-workers={len(devices)}" in control.argv


def test_the_router_drains_first_while_all_it_needs_still_runs() -> None:
    started = ("redis", "control", "router", "worker cuda:0", "worker cpu", "envoy")
    assert stop_order(started) == (
        "router",
        "envoy",
        "worker cuda:0",
        "worker cpu",
        "control",
        "redis",
    )


def test_the_store_is_heard_only_by_those_who_want_to_hear_more() -> None:
    assert spec("redis").is_quiet
    assert not spec("redis", "--log-verbose=1").is_quiet
    assert not spec("control").is_quiet
