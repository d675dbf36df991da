"""Malformed requests over sockets: each is answered, and everybody lives on."""

import http.client
import random
from collections.abc import Iterator

import grpc
import pytest

from tests.fuzz.damage import REST_SEEDS, examples, json_document
from tests.support.stack import Stack, build_demo, running_stack
from tests.unit.router.routes import add_sub_request

pytestmark = pytest.mark.timeout(900)

# What a method's path may be followed by, and what a path may look like.
REST_PATHS = (
    "/v2/models/simple/infer",
    "/v2/models/simple/infer",
    "/v2/models/simple/infer",
    "/v2/models/simple/versions/1/infer",
    "/v2/models/simple/versions/99999999999999999999/infer",
    "/v2/models/simple/generate",
    "/v2/models/simple/generate_stream",
    "/v2/models/%FF/infer",
    "/v2/models//infer",
    "/v2/repository/index",
    "/v2/repository/models/simple/unload",
    "/v2/systemsharedmemory/region/x/register",
    "/v2/cudasharedmemory/region/x/register",
    "/v2/logging",
    "/v2/trace/setting",
)
GRPC_METHODS = (
    "ModelInfer",
    "ModelInfer",
    "ModelInfer",
    "ModelMetadata",
    "ModelConfig",
    "ModelReady",
    "ModelStatistics",
    "RepositoryIndex",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryStatus",
    "TraceSetting",
    "LogSettings",
)
SEED = 20_261_201


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("fuzz") / "models"
    build_demo(folder, "--only", "simple")
    with running_stack(folder, "--allow-client-shm=true") as running:
        yield running


@pytest.fixture(autouse=True)
def everybody_lives(stack: Stack) -> Iterator[None]:
    """Whatever a test does, the same processes run afterwards, and they work."""
    before = stack.processes()
    yield
    assert stack.processes() == before
    connection = http.client.HTTPConnection("127.0.0.1", stack.http, timeout=20)
    body, headers = REST_SEEDS[0]
    connection.request("POST", "/v2/models/simple/infer", body, headers)
    assert connection.getresponse().status == 200
    connection.close()


def damaged(chance: random.Random, seed: bytes) -> bytes:
    """Return ``seed`` with some of its bytes changed, added or taken away."""
    body = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(body) + 1)
        how = chance.randrange(4)
        if how == 0 and place < len(body):
            body[place] = chance.randrange(256)
        elif how == 1:
            del body[place : place + chance.randint(1, 60)]
        elif how == 2:
            body[place:place] = chance.randbytes(chance.randint(1, 20))
        else:
            del body[place:]
    return bytes(body)


def test_every_malformed_rest_request_is_answered(stack: Stack) -> None:
    chance = random.Random(SEED)  # noqa: S311 - not for secrets
    connection = http.client.HTTPConnection("127.0.0.1", stack.http, timeout=20)
    statuses: dict[int, int] = {}
    for _ in range(examples(0.05)):
        body, headers = chance.choice(REST_SEEDS)
        if chance.random() < 0.9:
            body = damaged(chance, body)
        if chance.random() < 0.2:
            length = chance.choice(["-1", "x", "", "0", "99999999999999999999", "7"])
            headers = {**headers, "inference-header-content-length": length}
        if chance.random() < 0.1:
            encoding = chance.choice(["gzip", "deflate", "br", "identity", "x"])
            headers = {**headers, "content-encoding": encoding}
        path = chance.choice(REST_PATHS)
        connection.request(chance.choice(["POST"] * 9 + ["GET"]), path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        statuses[response.status] = statuses.get(response.status, 0) + 1
        assert response.status == 200 or 400 <= response.status < 600
        if response.status >= 400:
            assert answer.startswith(b'{"error":"'), (path, response.status, answer)
    connection.close()
    assert sum(count for status, count in statuses.items() if status >= 400) > 0
    assert 502 not in statuses, statuses


def test_bytes_that_are_no_http_end_the_connection_only(stack: Stack) -> None:
    chance = random.Random(SEED)  # noqa: S311
    for _ in range(examples(0.005)):
        connection = http.client.HTTPConnection("127.0.0.1", stack.http, timeout=20)
        connection.connect()
        request = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\n"
        request += b"Content-Length: 10\r\n\r\n" + chance.randbytes(10)
        connection.sock.sendall(damaged(chance, request))
        connection.close()


@pytest.mark.parametrize("door", ["router", "gateway"])
def test_every_malformed_message_is_answered_with_a_status(
    stack: Stack, door: str
) -> None:
    chance = random.Random(SEED)  # noqa: S311
    port = stack.grpc if door == "router" else stack.http
    seeds = [
        add_sub_request().SerializeToString(),
        add_sub_request(rows=2, id="a").SerializeToString(),
        add_sub_request(raw_input_contents=[]).SerializeToString(),
        b"",
        chance.randbytes(200),
    ]
    codes = set()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        calls = {
            name: channel.unary_unary(
                f"/inference.GRPCInferenceService/{name}", None, None
            )
            for name in GRPC_METHODS
        }
        for _ in range(examples(0.03)):
            body = damaged(chance, chance.choice(seeds))
            try:
                calls[chance.choice(GRPC_METHODS)](body, timeout=20)
            except grpc.RpcError as error:
                codes.add(error.code())
    assert codes
    assert not codes & {grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED}


def test_a_stream_survives_its_malformed_requests(stack: Stack) -> None:
    chance = random.Random(SEED)  # noqa: S311
    seed = add_sub_request(id="s").SerializeToString()
    count = examples(0.015)
    method = "/inference.GRPCInferenceService/ModelStreamInfer"
    with grpc.insecure_channel(f"127.0.0.1:{stack.grpc}") as channel:
        stream = channel.stream_stream(method, None, None)
        messages = [damaged(chance, seed) for _ in range(count)] + [seed]
        answers = list(stream(iter(messages), timeout=60))
    assert len(answers) == count + 1


def test_a_document_of_a_million_levels_is_refused(stack: Stack) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", stack.http, timeout=20)
    for body in (b"[" * 1_000_000, b'{"a":' * 200_000, str(json_document()).encode()):
        connection.request("POST", "/v2/models/simple/infer", body)
        response = connection.getresponse()
        response.read()
        assert response.status in (400, 500)
    connection.close()
