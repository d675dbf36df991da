"""The worker container's health check, against the kernel's own table."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

PROGRAM: Final = Path(__file__).parents[3] / "docker/attached.py"


def attached(port: int) -> int:
    command = [sys.executable, "-SE", str(PROGRAM), str(port)]
    return subprocess.run(command, check=False, capture_output=True).returncode


def test_a_connection_to_the_port_counts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address):
            assert attached(address[1]) == 0


def test_a_port_that_only_listens_does_not_count() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert attached(server.getsockname()[1]) == 1


def test_a_connection_that_has_ended_does_not_count() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            assert attached(port) == 0
        assert attached(port) == 1


def test_a_connection_over_ipv6_counts() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("::1", port)):
            assert attached(port) == 0
