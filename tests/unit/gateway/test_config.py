import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from services.core.errors import ConfigError
from services.gateway.config import GatewaySettings, envoy_config
from services.gateway.dispatch import http_routes
from services.gateway.listeners import ListenerOptions, Tls

SETTINGS = GatewaySettings(
    http_address="127.0.0.1",
    http_port=8000,
    metrics_address="127.0.0.1",
    metrics_port=8002,
    router_targets=("unix:/run/router.sock",),
    control_target="control:8003",
    descriptor_path="/run/rest.pb",
)


def config(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    settings = dataclasses.replace(SETTINGS, **changes)
    parsed: dict[str, Any] = json.loads(json.dumps(envoy_config(settings)))
    return parsed


def cluster(name: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    clusters = config(**changes)["static_resources"]["clusters"]
    (found,) = (each for each in clusters if each["name"] == name)
    return dict(found)


def addresses(found: dict[str, Any]) -> list[Any]:
    (group,) = found["load_assignment"]["endpoints"]
    return [each["endpoint"]["address"] for each in group["lb_endpoints"]]


def named(value: object, key: str) -> Iterator[object]:
    """Yield every value that has the name ``key``, however deep."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from named(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from named(inner, key)


def test_each_door_can_be_left_out() -> None:
    for changes, names in (
        ({}, ["http", "metrics"]),
        ({"metrics_port": 0}, ["http"]),
        ({"http_port": 0}, ["metrics"]),
    ):
        listeners = config(**changes)["static_resources"]["listeners"]
        assert [each["name"] for each in listeners] == names


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ("unix:/a/b", {"pipe": {"path": "/a/b"}}),
        ("unix:///a/b", {"pipe": {"path": "/a/b"}}),
        ("h-1.x:80", {"socket_address": {"address": "h-1.x", "port_value": 80}}),
        ("[::1]:9", {"socket_address": {"address": "::1", "port_value": 9}}),
    ],
)
def test_a_target_is_a_socket_or_host_and_port(target: str, address: object) -> None:
    assert addresses(cluster("router", router_targets=(target,))) == [address]


@pytest.mark.parametrize(
    "target", ["", "unix:", "host", "host:", ":80", "host:0", "host:65536", "a/b:80"]
)
def test_what_is_no_address_is_refused(target: str) -> None:
    with pytest.raises(ConfigError):
        config(router_targets=(target,))


@pytest.mark.parametrize(
    ("targets", "kind"),
    [
        (("unix:/a", "10.0.0.1:80"), "STATIC"),
        (("10.0.0.1:80", "[::1]:80"), "STATIC"),
        (("router:80",), "STRICT_DNS"),
        (("router:80", "10.0.0.1:80"), "STRICT_DNS"),
    ],
)
def test_only_names_are_looked_up(targets: tuple[str, ...], kind: str) -> None:
    found = cluster("router", router_targets=targets)
    assert (found["type"], len(addresses(found))) == (kind, len(targets))


@pytest.mark.parametrize("targets", [(), ("unix:/a", "router:80")])
def test_nobody_and_sockets_beside_names_are_refused(targets: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="of a router"):
        config(router_targets=targets)


def test_only_what_has_not_begun_is_tried_again() -> None:
    tried = set(named(config(), "retry_on"))
    assert tried == {"connect-failure,refused-stream"}


def test_no_request_to_a_router_is_cut_short() -> None:
    routes = json.loads(json.dumps(http_routes()))
    timeouts = [each["route"]["timeout"] for each in routes if "route" in each]
    assert timeouts
    assert set(timeouts) == {"0s"}


def test_grpcio_is_never_pinged() -> None:
    assert not list(named(config(), "connection_keepalive"))


def test_the_limit_of_bodies_is_that_of_the_settings_but_for_streams() -> None:
    found = config(body_limit_bytes=7)
    sizes = sorted(int(str(one)) for one in named(found, "max_request_body_size"))
    # Of the REST filter, the metrics filter, and the route of streamed bodies, of
    # which so much is held and no more.
    assert sizes == [7, 7, 16 << 20]
    routes = json.loads(json.dumps(http_routes({"streams": True})))
    (route,) = [each for each in routes if "streams" in str(each)]
    regex = route["match"]["safe_regex"]["regex"]
    assert re.fullmatch(regex, "/v2/models/m/versions/3/infer")
    assert not re.fullmatch(regex, "/v2/models/m/generate")


def test_envoys_own_interface_is_closed_unless_asked_for() -> None:
    assert "admin" not in config()
    admin = config(admin_socket="/run/admin.sock")["admin"]
    assert admin["address"]["pipe"] == {"path": "/run/admin.sock", "mode": 0o600}


@pytest.mark.parametrize("client_ca", ["", "/ca.pem"])
def test_tls_asks_for_a_certificate_only_if_it_can_judge_one(client_ca: str) -> None:
    tls = Tls(
        certificate_path="/c.pem", private_key_path="/k.pem", client_ca_path=client_ca
    )
    found = config(listeners=ListenerOptions(tls=tls))
    assert set(named(found, "require_client_certificate")) == {bool(client_ca)}
    assert len(list(named(found, "trusted_ca"))) == 2 * bool(client_ca)
    assert not list(named(config(), "transport_socket"))


def test_access_is_logged_only_if_asked_for() -> None:
    assert not list(named(config(), "access_log"))
    options = ListenerOptions(access_log="/dev/stdout")
    (log, _) = named(config(listeners=options), "access_log")
    assert isinstance(log, list)
    assert log[0]["typed_config"]["path"] == "/dev/stdout"


def test_every_field_of_a_request_is_kept_from_the_query() -> None:
    *found, of_metrics = named(config(), "ignored_query_parameters")
    assert found[0] == found[1]
    assert isinstance(found[0], list)
    assert set(found[0]) == {
        *("model_name", "model_version", "region_name", "repository_name"),
        *("body", "body.data", "body.content_type", "body.extensions"),
    }
    assert {"process", "id"} <= set(of_metrics)  # type: ignore[call-overload]


def test_expressions_stay_below_the_size_that_envoy_is_told_to_accept() -> None:
    for regex in named(json.loads(json.dumps(http_routes())), "regex"):
        assert re.compile(str(regex)).fullmatch("/v2/models/a/x/y/z") is None
        assert len(str(regex)) < 2500


def test_a_router_is_asked_whether_it_is_up_not_whether_its_models_are() -> None:
    asked = {
        name: cluster(name)["health_checks"][0]["grpc_health_check"]["service_name"]
        for name in ("router", "control")
    }
    assert asked == {"router": "nereid.router", "control": ""}
