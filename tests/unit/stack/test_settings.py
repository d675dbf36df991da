"""From flags to settings: defaults, and what is refused."""

import pytest

from services.core.logs import LogSettings
from services.stack.command_line import UsageError, parse
from services.stack.settings import Door, StackSettings, settings_of


def settings(*arguments: str) -> StackSettings:
    return settings_of(parse(["--model-repository=/m", *arguments]))


def test_the_defaults_are_tritons() -> None:
    rest, grpc, metrics = settings().doors
    assert rest == Door(name="REST", flag="--http-port", host="0.0.0.0", port=8000)
    assert (grpc.port, metrics.port) == (8001, 8002)
    assert settings().exit_on_error
    assert settings().exit_timeout_s == 30
    assert settings().control_flags == (
        "--model-control-mode=none",
        "--exit-on-error=false",
    )


@pytest.mark.parametrize(
    ("flag", "left"),
    [
        ("--allow-http=false", ["gRPC", "metrics"]),
        ("--allow-grpc=false", ["REST", "metrics"]),
        ("--allow-metrics=0", ["REST", "gRPC"]),
    ],
)
def test_each_door_can_be_switched_off(flag: str, left: list[str]) -> None:
    assert [door.name for door in settings(flag).doors] == left


def test_statistics_are_switched_off_where_they_are_counted_and_told() -> None:
    off = settings("--allow-statistics=false")
    assert "--allow-statistics=false" in off.control_flags
    assert "--allow-statistics=false" in off.router_flags
    assert not any("statistics" in flag for flag in settings().control_flags)


def test_metrics_listen_where_rest_does_unless_told_otherwise() -> None:
    followed = settings("--http-address=127.0.0.1").metrics
    told = settings("--http-address=127.0.0.1", "--metrics-address=::1").metrics
    assert followed is not None
    assert told is not None
    assert (followed.host, told.host) == ("127.0.0.1", "::1")


def test_control_gets_its_flags_in_its_own_spelling() -> None:
    given = settings(
        "--model-control-mode",
        "explicit",
        "--load-model=a",
        "--load-model=b",
        "--strict-readiness=0",
        "--exit-on-error",
        "false",
        "--disable-auto-complete-config",
        "--backend-config=onnxruntime,k=v",
        "--repository-poll-secs=3",
    )
    assert given.control_flags == (
        "--model-control-mode=explicit",
        "--exit-on-error=false",
        "--load-model=a",
        "--load-model=b",
        "--backend-config=onnxruntime,k=v",
        "--strict-readiness=false",
        "--disable-auto-complete-config",
        "--repository-poll-secs=3",
    )
    assert not given.exit_on_error


def test_the_metrics_flags_are_controls() -> None:
    given = settings(
        "--metrics-config=summary_latencies=true",
        "--metrics-config=summary_quantiles=0.5:0.05",
        "--allow-gpu-metrics=false",
        "--allow-cpu-metrics",
        "--metrics-interval-ms=500",
    )
    assert given.control_flags[2:] == (
        "--metrics-config=summary_latencies=true",
        "--metrics-config=summary_quantiles=0.5:0.05",
        "--allow-gpu-metrics=false",
        "--metrics-interval-ms=500.0",
    )


def test_the_log_flags_become_log_settings() -> None:
    given = settings("--log-verbose=2", "--log-info=false", "--log-format=ISO8601")
    assert given.log == LogSettings(verbose=2, info=False, iso8601=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model-control-mode=manual"],
            "must be one of none, explicit, poll, on-demand",
        ),
        (["--load-model=a"], "only be used with --model-control-mode=explicit"),
        (["--model-memory-budget=1G"], "only be used with .*on-demand"),
        (
            ["--model-control-mode=on-demand", "--model-memory-budget=much"],
            "--model-memory-budget: 'much' is no size",
        ),
        (["--http-port=0"], "--http-port must be 1 to 65535"),
        (["--grpc-port=65536"], "--grpc-port must be 1 to 65535"),
        (["--exit-timeout-secs=-1"], "must not be negative"),
        (["--log-format=xml"], "--log-format must be default or ISO8601"),
        (["--device=gpu0"], "--device must be cpu or cuda:N"),
        (["--no-worker-timeout=-0.5"], "must be from 0 on, got -0.5"),
        (["--no-worker-timeout=inf"], "must be from 0 on, got inf"),
        (["--max-queue-bytes=-1"], "--max-queue-bytes must not be negative"),
    ],
)
def test_impossible_values_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings(*arguments)


def test_a_repository_must_be_named() -> None:
    with pytest.raises(UsageError, match="--model-repository is missing"):
        settings_of(parse([]))


@pytest.mark.parametrize("port", ["1", "65535"])
def test_the_outermost_ports_are_allowed(port: str) -> None:
    rest = settings(f"--http-port={port}").rest
    assert rest is not None
    assert rest.port == int(port)


def test_what_concerns_loading_reaches_who_loads() -> None:
    given = settings(
        "--model-config-name=small",
        "--model-load-retry-count=2",
        "--model-load-thread-count",
        "8",
    )
    assert given.control_flags[2:] == (
        "--model-load-retry-count=2",
        "--model-config-name=small",
    )
    assert given.worker_flags == ("--model-load-thread-count=8",)


def test_every_model_is_no_model_beside_others() -> None:
    explicit = "--model-control-mode=explicit"
    assert "--load-model=*" in settings(explicit, "--load-model=*").control_flags
    with pytest.raises(UsageError, match="name no other"):
        settings(explicit, "--load-model=*", "--load-model=a")


def test_the_router_learns_what_bounds_its_queues() -> None:
    given = settings("--no-worker-timeout=2.5", "--max-queue-bytes", "0")
    assert given.router_flags == ("--no-worker-timeout=2.5", "--max-queue-bytes=0")
    assert settings().router_flags == ()


def test_workers_are_told_what_the_rate_limiter_is_to_do() -> None:
    given = settings(
        "--rate-limit=EXECUTION_COUNT",
        "--rate-limit-resource=r1:4",
        "--rate-limit-resource=r1:8:1",
    )
    assert given.worker_flags == (
        "--rate-limit=EXECUTION_COUNT",
        "--rate-limit-resource=r1:4",
        "--rate-limit-resource=r1:8:1",
    )


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--rate-limit=often", "there is no mode 'often'"),
        ("--rate-limit-resource=r1", "'<resource_name>:<count>'. Got r1"),
        ("--rate-limit-resource=:4", "Got :4"),
        ("--rate-limit-resource=r1:-4", "Got r1:-4"),
        ("--rate-limit-resource=r1:4:0:0", "Got r1:4:0:0"),
    ],
)
def test_a_rate_limit_that_says_nothing_is_refused(flag: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        settings(flag)


def test_control_keeps_what_routers_share() -> None:
    flag = "--cache-config=redis,host=h,port=6379"
    assert flag in settings(flag).control_flags
    assert flag in settings(flag).router_flags
