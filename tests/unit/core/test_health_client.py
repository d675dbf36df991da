"""The health check that containers and the stack use, against a real server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.core.health_client import health_of, main


@pytest.fixture
def target(tmp_path: Path) -> Iterator[str]:
    address = f"unix:{tmp_path}/s"
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    servicer.set("loading", health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    server.start()
    yield address
    server.stop(grace=None).wait()


@pytest.mark.parametrize(
    ("service", "word"),
    [("", "SERVING"), ("loading", "NOT_SERVING"), ("unknown", "SERVICE_UNKNOWN")],
)
def test_the_protocols_word_is_returned(target: str, service: str, word: str) -> None:
    assert health_of(target, service=service) == word


def test_nobody_there_is_unreachable(tmp_path: Path) -> None:
    assert health_of(f"unix:{tmp_path}/s", timeout_s=0.2) == "UNREACHABLE"


@pytest.mark.parametrize(("service", "status"), [("", 0), ("loading", 1)])
def test_the_command_ends_with_0_only_for_serving(
    target: str, service: str, status: int
) -> None:
    assert main([target, "--service", service]) == status
