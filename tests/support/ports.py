"""Ports of 127.0.0.1 for a process that is about to start.

None that the kernel hands out by itself: between our look and the process's bind, any
outgoing connection might get it.
"""

import contextlib
import secrets
import socket
from pathlib import Path
from typing import Final

_LOWEST: Final = 10_000
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES: Final = 1000


def free_ports(count: int) -> tuple[int, ...]:
    """Return so many different ports that nobody listens on now."""
    first_ephemeral = int(_EPHEMERAL.read_text().split()[0])
    chosen: list[int] = []
    with contextlib.ExitStack() as held:
        for _ in range(_TRIES):
            if len(chosen) == count:
                return tuple(chosen)
            port = _LOWEST + secrets.randbelow(first_ephemeral - _LOWEST)
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                chosen.append(port)
    raise RuntimeError(f"no {count} free ports found")
