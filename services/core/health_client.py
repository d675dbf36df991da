"""Ask a process whether it can work: a client of ``grpc.health.v1``.

``nereid health TARGET`` is this, as a command for container health checks.
"""

import argparse
import sys
import time
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEFAULT_TIMEOUT_S: Final = 2.0
POLL_S: Final = 0.1
SERVING: Final = "SERVING"
UNREACHABLE: Final = "UNREACHABLE"


def health_of(
    target: str, *, service: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
) -> str:
    """Return the protocol's word for the health of ``service`` at ``target``.

    Args:
        target: A gRPC address, for example ``unix:/run/x.sock`` or ``host:8001``.
        service: As registered by the server; empty asks for the whole server.
        timeout_s: How long to wait for the answer.

    Returns:
        ``SERVING``, ``NOT_SERVING``, ``SERVICE_UNKNOWN``, or ``UNREACHABLE`` if
        nobody answered in time.
    """
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = stub.Check(request, timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return "SERVICE_UNKNOWN"
            return UNREACHABLE
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def main(argv: list[str]) -> int:
    """Print the health and return 0 for SERVING, 1 for anything else."""
    parser = argparse.ArgumentParser(
        prog="nereid health",
        description="Ask a Nereid process whether it can work (grpc.health.v1).",
    )
    parser.add_argument("target", help="gRPC address: unix:/path or host:port")
    parser.add_argument("--service", default="", help="empty: the whole server")
    parser.add_argument(
        "--timeout-secs", type=float, default=DEFAULT_TIMEOUT_S, metavar="N"
    )
    parser.add_argument(
        "--wait-secs",
        type=float,
        default=0.0,
        metavar="N",
        help="keep asking for so long until it is SERVING (default: ask once)",
    )
    options = parser.parse_args(argv)
    give_up_at = time.monotonic() + options.wait_secs
    while True:
        health = health_of(
            options.target, service=options.service, timeout_s=options.timeout_secs
        )
        if health == SERVING or time.monotonic() >= give_up_at:
            break
        time.sleep(POLL_S)
    sys.stdout.write(f"{health}\n")
    return 0 if health == SERVING else 1
