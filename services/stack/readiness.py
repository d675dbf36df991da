"""Blocking probes: is this process up? They answer within a bounded time."""

import socket
import urllib.error
import urllib.request
from typing import Final

from services.core.health_client import SERVING, health_of
from services.stack.plan import GrpcHealth, ReadyCheck, RedisPing, TcpConnect
from services.stack.settings import Door

PROBE_TIMEOUT_S: Final = 1.0
HTTP_OK: Final = 200
HTTP_FORBIDDEN: Final = 403
WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104


def is_ready(check: ReadyCheck) -> bool:
    """Probe once."""
    match check:
        case GrpcHealth():
            health = health_of(
                check.target, service=check.service, timeout_s=PROBE_TIMEOUT_S
            )
            return health == SERVING
        case RedisPing():
            return _answers_ping(check.path)
        case TcpConnect():
            return _accepts(check.host, check.port)


def reachable_host(host: str) -> str:
    """Return the address at which this machine reaches its own ``host``."""
    return WILDCARDS.get(host, host)


def url_of(door: Door) -> str:
    """Return the door's address as users of this machine write it."""
    host = reachable_host(door.host)
    shown = f"[{host}]" if ":" in host else host
    return f"http://{'localhost' if host == '127.0.0.1' else shown}:{door.port}"


def rest_is_ready(door: Door) -> bool:
    """Ask the gateway for the server's readiness, once.

    One that demands a header of who asks (``--http-restricted-api=health:...``) has
    reached the router; that this is ready it has told by itself.
    """
    try:
        with urllib.request.urlopen(  # noqa: S310  http, by url_of
            f"{url_of(door)}/v2/health/ready", timeout=PROBE_TIMEOUT_S
        ) as response:
            return bool(response.status == HTTP_OK)
    except urllib.error.HTTPError as error:
        with error:
            return error.code == HTTP_FORBIDDEN
    except OSError:
        return False


def _answers_ping(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PROBE_TIMEOUT_S)
            connection.connect(path)
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def _accepts(host: str, port: int) -> bool:
    try:
        address = (reachable_host(host), port)
        with socket.create_connection(address, timeout=PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False
