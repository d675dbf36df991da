"""Are the public ports free? Asked before anything is started."""

import contextlib
import errno
import socket
from collections.abc import Iterable

from services.stack.settings import Door


def problems(doors: Iterable[Door]) -> tuple[str, ...]:
    """Return one sentence for each door that cannot be opened, naming its flag."""
    seen: dict[int, Door] = {}
    found = []
    for door in doors:
        twin = seen.setdefault(door.port, door)
        if twin is not door:
            found.append(
                f"port {door.port} is meant for both {twin.name} and {door.name}; "
                f"choose another with {door.flag}"
            )
        elif reason := _refusal(door):
            found.append(reason)
    return tuple(found)


def _refusal(door: Door) -> str:
    """Return why the door cannot be opened, or an empty text."""
    try:
        addresses = socket.getaddrinfo(
            door.host, door.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in addresses:
            with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
                # As servers do, or a port in TIME_WAIT would look taken.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return (
                f"port {door.port} ({door.name}) is already in use; "
                f"choose another with {door.flag}"
            )
        return (
            f"cannot listen on {door.host}:{door.port} ({door.name}): "
            f"{error.strerror or error}; choose another with {door.flag}"
        )
    return ""
