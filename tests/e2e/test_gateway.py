"""The real Envoy with the generated configuration, before a puppet of the router."""

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
PUPPET = ROOT / "tests" / "support" / "rest_puppet.py"
TIMEOUT_S = 30
MIB = 1 << 20
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, object]:
        value: dict[str, object] = json.loads(self.body)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    http: int
    metrics: int

    def ask(
        self,
        verb: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = NOTHING,
    ) -> Reply:
        return ask(self.http, verb, path, body, headers)


def ask(
    port: int,
    verb: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] = NOTHING,
) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request(verb, path, body, dict(headers))
        response = connection.getresponse()
        return Reply(
            status=response.status,
            headers=dict(response.getheaders()),
            body=response.read(),
        )


def envoy_binary() -> str:
    spec = importlib.util.find_spec("envoy")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "_bin" / "envoy")


@contextlib.contextmanager
def process(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a session of its own, and end it for certain."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def write_config(directory: str, *flags: str) -> Path:
    command = [sys.executable, "-m", "services.gateway", directory, *flags]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


def envoy_argv(config: Path) -> list[str]:
    return [
        envoy_binary(),
        *("--config-path", str(config)),
        *("--concurrency", "1"),
        *("--log-level", "error"),
        "--disable-hot-restart",
    ]


def wait_until_it_answers(port: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if ask(port, "GET", "/v2/health/live").status == 200:
                return
    pytest.fail("the gateway does not answer")


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    http_port, metrics_port = free_ports(2)
    # Below /tmp, since the path of a unix socket has 107 bytes at most.
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        target = f"{directory}/puppet.sock"
        puppet = stack.enter_context(process(sys.executable, str(PUPPET), target))
        assert puppet.stdout is not None
        assert puppet.stdout.readline() == "ready\n"
        config = write_config(
            directory,
            *("--http-address", "127.0.0.1", "--metrics-address", "127.0.0.1"),
            *("--http-port", str(http_port), "--metrics-port", str(metrics_port)),
            *("--router", f"unix:{target}", "--control", f"unix:{target}"),
        )
        stack.enter_context(process(*envoy_argv(config)))
        wait_until_it_answers(http_port)
        yield Gateway(http=http_port, metrics=metrics_port)


def channel(gateway: Gateway) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{gateway.http}")


def test_the_path_names_model_and_version(gateway: Gateway) -> None:
    reply = gateway.ask("GET", "/v2/models/a-b.c_d/versions/12")
    assert (reply.status, reply.document["model"]) == (200, "a-b.c_d")
    assert reply.document["version"] == "12"
    assert reply.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("query", ["model_name=evil", "body.data=eA==&x=1", "a&b=%20"])
def test_a_query_overrides_nothing(gateway: Gateway, query: str) -> None:
    reply = gateway.ask("GET", f"/v2/models/good?{query}")
    assert (reply.status, reply.document["model"]) == (200, "good")


def test_statistics_of_all_models_are_no_model_called_stats(gateway: Gateway) -> None:
    for path, model in (("/v2/models/stats", ""), ("/v2/models/m/stats", "m")):
        assert gateway.ask("GET", path).document == {"statistics_of": model}


def test_request_headers_arrive_and_no_grpc_header_comes_back(
    gateway: Gateway,
) -> None:
    reply = gateway.ask("GET", "/v2/models/m", headers={"X-Mine": "7"})
    arrived = reply.document["headers"]
    assert isinstance(arrived, dict)
    assert arrived["x-mine"] == "7"
    assert not [name for name in reply.headers if name.lower().startswith("grpc-")]


def test_no_client_makes_an_inference_run_twice(gateway: Gateway) -> None:
    headers = {
        "X-Envoy-Retry-Grpc-On": "unavailable",
        "X-Envoy-Retry-On": "5xx",
        "X-Envoy-Max-Retries": "3",
    }
    reply = gateway.ask("POST", "/v2/models/unavailable/infer", b"{}", headers)
    assert (reply.status, reply.document) == (503, {"error": "later"})
    uploads = json.loads(gateway.ask("GET", "/v2/logging").body)
    assert [u["first"][0] for u in uploads].count("unavailable") == 1


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/foo", 404),
        ("POST", "/foo", 404),
        ("GET", "/", 404),
        ("GET", "/v2/", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/", 404),
        ("GET", "/v2/models/m/foo", 404),
        ("GET", "/v2/models/m/versions/x", 404),
        ("POST", "/v2/models/m/versions/abc/infer", 404),
        ("POST", "/v2/repository/models/m/reload", 404),
        ("GET", "/v2/models/m/versions/1/trace/setting", 404),
        ("GET", "/metrics", 404),
        ("POST", "/nereid.rest.RestService/ServerLive", 404),
        ("GET", "/v2/models/m/infer", 405),
        ("OPTIONS", "/v2/models/m/infer", 405),
        ("PUT", "/v2/models/m", 405),
        ("DELETE", "/v2/models/m/versions/1", 405),
        ("POST", "/v2/health/live", 405),
        ("GET", "/v2/repository/index", 405),
        ("POST", "/v2/models/stats", 405),
        ("POST", "/v2/models/m/versions/1/stats", 405),
        ("DELETE", "/v2/trace/setting", 405),
    ],
)
def test_unknown_paths_and_verbs_are_refused_in_the_words_of_triton(
    gateway: Gateway, verb: str, path: str, status: int
) -> None:
    reply = gateway.ask(verb, path)
    text = {404: "Not Found", 405: "Method Not Allowed"}[status]
    assert (reply.status, reply.body) == (status, b'{"error":"%s"}' % text.encode())


def test_head_is_another_verb(gateway: Gateway) -> None:
    reply = gateway.ask("HEAD", "/v2/health/live")
    assert (reply.status, reply.body) == (405, b"")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("INVALID_ARGUMENT", 400),
        ("NOT_FOUND", 404),
        ("UNAVAILABLE", 503),
        ("UNIMPLEMENTED", 501),
        ("INTERNAL", 500),
    ],
)
def test_a_grpc_error_is_a_json_error_with_its_status(
    gateway: Gateway, code: str, status: int
) -> None:
    reply = gateway.ask("GET", f"/v2/models/{code}/config")
    assert reply.status == status
    assert reply.document == {"error": 'Ärger\n"mit" \\ allem'}
    assert reply.headers["Content-Type"] == "application/json"
    assert not [name for name in reply.headers if name.lower().startswith("grpc-")]


def test_a_long_error_comes_through(gateway: Gateway) -> None:
    reply = gateway.ask("GET", "/v2/models/INTERNAL-50000/config")
    assert (reply.status, reply.document) == (500, {"error": "x" * 50_000})


def test_an_inference_that_fails_is_a_json_error(gateway: Gateway) -> None:
    reply = gateway.ask("POST", "/v2/models/refuses/infer", b"{}")
    assert (reply.status, reply.document) == (400, {"error": "no"})


@pytest.mark.parametrize("size", [0, 1, 100, 3 * MIB])
def test_bodies_go_both_ways_untouched_with_their_header(
    gateway: Gateway, size: int
) -> None:
    body = os.urandom(size)
    headers = {
        "Inference-Header-Content-Length": "17",
        "Content-Type": "application/octet-stream",
    }
    reply = gateway.ask("POST", "/v2/models/echo/infer", body, headers)
    assert (reply.status, reply.body) == (200, body)
    assert reply.headers["Inference-Header-Content-Length"] == "17"
    assert reply.headers["Content-Type"] == "application/octet-stream"


def test_a_large_upload_arrives_whole_with_the_size_it_promised(
    gateway: Gateway,
) -> None:
    body = os.urandom(32 * MIB)
    reply = gateway.ask("POST", "/v2/models/sink/versions/3/infer", body)
    assert reply.document == {
        "first": ["sink", "3"],
        "size": len(body),
        "crc": zlib.crc32(body),
        "promised": str(len(body)),
    }


def test_a_chunked_upload_promises_nothing(gateway: Gateway) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http, timeout=30)
    with contextlib.closing(connection):
        headers = {"X-Content-Length": "5"}
        connection.request(
            "POST", "/v2/models/sink/infer", iter([b"ab", b"c"]), headers
        )
        document = json.loads(connection.getresponse().read())
    assert (document["size"], document["promised"]) == (3, None)


def test_an_empty_body_still_names_its_model(gateway: Gateway) -> None:
    reply = gateway.ask("POST", "/v2/models/sink/infer")
    assert (reply.document["first"], reply.document["size"]) == (["sink", ""], 0)


def test_a_client_that_leaves_during_its_upload_is_told_apart(
    gateway: Gateway,
) -> None:
    promised = 10_000_019
    head = (
        "POST /v2/models/leaves/infer HTTP/1.1\r\nHost: x\r\n"
        f"Content-Length: {promised}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", gateway.http)) as connection:
        connection.sendall(head.encode() + bytes(2 * MIB))
    deadline = time.monotonic() + TIMEOUT_S
    seen: list[dict[str, object]] = []
    while not seen and time.monotonic() < deadline:
        uploads = json.loads(gateway.ask("GET", "/v2/logging").body)
        seen = [u for u in uploads if u["promised"] == str(promised)]
    assert seen
    assert seen[0]["size"] != promised


def test_other_bodies_arrive_with_their_type(gateway: Gateway) -> None:
    reply = gateway.ask(
        "POST", "/v2/repository/r/index", b"{}", {"Content-Type": "a/b"}
    )
    assert reply.document == {"repository": "r", "body": "{}", "type": "a/b"}


def test_unary_bodies_may_be_larger_than_what_envoy_buffers_by_itself(
    gateway: Gateway,
) -> None:
    reply = gateway.ask("POST", "/v2/models/m/generate", bytes(5 * MIB))
    assert reply.document == {"size": 5 * MIB}


def test_events_are_streamed(gateway: Gateway) -> None:
    reply = gateway.ask("POST", "/v2/models/m/generate_stream", b"x")
    assert reply.body == b"data: 0 x\n\ndata: 1 x\n\ndata: 2 x\n\n"
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"


def test_http_1_0_is_spoken(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.http), TIMEOUT_S) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
        assert b" 200 OK\r\n" in connection.recv(1000)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("/inference.GRPCInferenceService/ServerLive", b"\x08\x01"),
        ("/grpc.health.v1.Health/Check", b"\x08\x01"),
    ],
)
def test_grpc_passes_on_the_same_port(
    gateway: Gateway, method: str, answer: bytes
) -> None:
    with channel(gateway) as connection:
        call = connection.unary_unary(method, None, None)
        assert call(b"", timeout=TIMEOUT_S) == answer


@pytest.mark.parametrize(
    "method",
    [
        "/nereid.worker.WorkerDispatch/Serve",
        "/nereid.rest.RestService/ServerLive",
        "/inference.GRPCInferenceService/ServerReady",
    ],
)
def test_what_is_not_public_or_not_there_is_unimplemented(
    gateway: Gateway, method: str
) -> None:
    with channel(gateway) as connection:
        with pytest.raises(grpc.RpcError) as raised:
            connection.unary_unary(method, None, None)(b"", timeout=TIMEOUT_S)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_grpc_web_passes_too(gateway: Gateway) -> None:
    reply = gateway.ask(
        "POST",
        "/inference.GRPCInferenceService/ServerLive",
        bytes(5),
        {"Content-Type": "application/grpc-web+proto"},
    )
    message = struct.pack(">BI", 0, 2) + b"\x08\x01"
    assert reply.body.startswith(message)
    assert b"grpc-status:0" in reply.body.removeprefix(message).replace(b" ", b"")


@pytest.mark.parametrize(
    ("verb", "path", "status", "body"),
    [
        ("GET", "/metrics", 200, b"up 1\n"),
        ("GET", "/", 200, b""),
        ("POST", "/metrics", 405, b'{"error":"Method Not Allowed"}'),
        ("GET", "/v2", 404, b'{"error":"Not Found"}'),
    ],
)
def test_metrics_have_a_port_of_their_own(
    gateway: Gateway, verb: str, path: str, status: int, body: bytes
) -> None:
    reply = ask(gateway.metrics, verb, path)
    assert (reply.status, reply.body) == (status, body)
    if path == "/metrics" and status == 200:
        assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"


def test_without_a_router_the_answer_is_a_json_error() -> None:
    port, nobody = free_ports(2)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        target = f"127.0.0.1:{nobody}"
        config = write_config(
            directory,
            *("--http-address", "127.0.0.1", "--http-port", str(port)),
            *("--metrics-port", "0", "--router", target, "--control", target),
        )
        stack.enter_context(process(*envoy_argv(config)))
        deadline = time.monotonic() + TIMEOUT_S
        reply = None
        while reply is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                reply = ask(port, "GET", "/v2")
    assert reply is not None
    assert reply.status == 503
    assert list(reply.document) == ["error"]


@pytest.mark.parametrize(
    "flags",
    [
        "--router router-a:8003 --router router-b:8003 --control control:8003",
        "--router 10.0.0.1:8003 --router [::1]:8003 --control unix:/control",
        "--router r:1 --control c:1 --admin-socket /admin --access-log /dev/null",
    ],
)
def test_envoy_accepts_every_kind_of_configuration(tmp_path: Path, flags: str) -> None:
    config = write_config(str(tmp_path), *flags.split())
    done = subprocess.run(
        [*envoy_argv(config), "--mode", "validate"],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
