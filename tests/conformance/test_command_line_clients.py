"""curl and grpcurl, as a person types them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(60)

CURL = shutil.which("curl") or "curl"
REQUEST = {
    "id": "42",
    "inputs": [
        {
            "name": f"INPUT{i}",
            "datatype": "INT32",
            "shape": [1, 16],
            "data": list(range(16)),
        }
        for i in (0, 1)
    ],
}


def curl(stack: Stack, path: str, *arguments: str) -> tuple[int, str, str]:
    """Return status, content type and body."""
    command = [CURL, "--silent", "--max-time", "20", *arguments]
    command += ["--write-out", "\n%{http_code} %{content_type}"]
    output = subprocess.run(
        [*command, f"http://127.0.0.1:{stack.http}/{path}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    body, _, last = output.rpartition("\n")
    status, _, content_type = last.partition(" ")
    return int(status), content_type, body


def grpcurl(stack: Stack, *arguments: str, data: str = "") -> str:
    program = shutil.which("grpcurl", path=str(Path(sys.executable).parent))
    assert program is not None, "grpcurl comes with the dev extra"
    flags = ["-plaintext", *(["-d", data] if data else [])]
    address = f"127.0.0.1:{stack.grpc}"
    done = subprocess.run(
        [program, *flags, address, *arguments],
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def infer(stack: Stack, body: str, *arguments: str) -> tuple[int, Any]:
    status, _, answer = curl(
        stack, "v2/models/simple/infer", "--data-binary", body, *arguments
    )
    return status, json.loads(answer)


def test_curl_gets_an_inference_in_json(stack: Stack) -> None:
    status, answer = infer(stack, json.dumps(REQUEST))
    assert status == 200
    assert answer["id"] == "42"
    assert answer["outputs"][0] == {
        "name": "OUTPUT0",
        "datatype": "INT32",
        "shape": [1, 16],
        "data": [2 * i for i in range(16)],
    }


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("v2", 200),
        ("v2/health/live", 200),
        ("v2/health/ready", 200),
        ("v2/models/simple", 200),
        ("v2/models/simple/versions/1", 200),
        ("v2/models/simple/config", 200),
        ("v2/models/simple/ready", 200),
        ("v2/models/simple/stats", 200),
        ("v2/models/nope", 404),
        ("v2/models/nope/ready", 400),
        ("v2/models/simple/versions/2", 404),
        ("v2/models/simple/versions/x", 404),
        ("v2/models/simple?model_name=evil", 200),
        ("v2/", 404),
        ("foo", 404),
        ("v2/models/simple/infer", 405),
    ],
)
def test_get_has_the_status_of_triton(stack: Stack, path: str, status: int) -> None:
    found, _, body = curl(stack, path)
    assert found == status
    if status >= 400:
        assert set(json.loads(body)) == {"error"}


def test_unknown_paths_and_wrong_verbs_have_tritons_bodies(stack: Stack) -> None:
    assert curl(stack, "foo")[2] == '{"error":"Not Found"}'
    body = curl(stack, "v2/models/simple", "-X", "POST")[2]
    assert body == '{"error":"Method Not Allowed"}'


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("{bad", 500, "failed to parse the request JSON buffer"),
        ("", 400, "Raw request must only have 1 input"),
        ("[]", 500, "attempt to access non-existing object member 'inputs'"),
        ("{}", 500, "attempt to access non-existing object member 'inputs'"),
        ('{"inputs": 5}', 500, "attempt to access JSON non-array as array"),
    ],
)
def test_malformed_json_is_answered_not_crashed_on(
    stack: Stack, body: str, status: int, message: str
) -> None:
    found, answer = infer(stack, body)
    assert found == status
    assert message in answer["error"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", "garbage"])
def test_the_content_type_of_json_does_not_matter(
    stack: Stack, content_type: str
) -> None:
    header = f"Content-Type: {content_type}"
    status, answer = infer(stack, json.dumps(REQUEST), "-H", header)
    assert (status, answer["id"]) == (200, "42")


def test_a_wrong_byte_count_names_both(stack: Stack) -> None:
    request = {
        "inputs": [
            {
                "name": f"INPUT{i}",
                "datatype": "INT32",
                "shape": [1, 16],
                "parameters": {"binary_data_size": 60},
            }
            for i in (0, 1)
        ]
    }
    text = json.dumps(request)
    header = f"Inference-Header-Content-Length: {len(text)}"
    status, answer = infer(stack, text + "x" * 120, "-H", header)
    assert status == 400
    assert "Expected 64, got 60" in answer["error"]


def test_the_metrics_port_has_a_prometheus_page(stack: Stack) -> None:
    page = subprocess.run(
        [CURL, "--silent", f"http://127.0.0.1:{stack.metrics}/metrics"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "# TYPE nereid_workers gauge" in page


def test_grpcurl_lists_and_describes_without_a_schema(stack: Stack) -> None:
    listed = grpcurl(stack, "list").split()
    assert "inference.GRPCInferenceService" in listed
    assert "grpc.health.v1.Health" in listed
    described = grpcurl(stack, "describe", "inference.GRPCInferenceService")
    assert "rpc ModelInfer" in described
    assert "TYPE_BF16" in grpcurl(stack, "describe", "inference.DataType")


def test_grpcurl_infers_with_typed_contents(stack: Stack) -> None:
    request = {
        "model_name": "simple",
        "inputs": [
            {
                "name": f"INPUT{i}",
                "datatype": "INT32",
                "shape": [1, 16],
                "contents": {"int_contents": list(range(16))},
            }
            for i in (0, 1)
        ],
    }
    answer = json.loads(
        grpcurl(
            stack,
            "inference.GRPCInferenceService/ModelInfer",
            data=json.dumps(request),
        )
    )
    assert [output["name"] for output in answer["outputs"]] == ["OUTPUT0", "OUTPUT1"]


def test_grpcurl_reads_the_standard_health_service(stack: Stack) -> None:
    for service in ("", "simple"):
        request = json.dumps({"service": service})
        answer = grpcurl(stack, "grpc.health.v1.Health/Check", data=request)
        assert json.loads(answer) == {"status": "SERVING"}
    unknown = json.dumps({"service": "nope"})
    assert "NotFound" in grpcurl(stack, "grpc.health.v1.Health/Check", data=unknown)
