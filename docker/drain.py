"""Let Envoy answer what it has: ``drain.py ADMIN_SOCKET``.

New connections are refused from now on. Returns when no request is left, or after
30 seconds.
"""

import http.client
import json
import socket
import sys
import time
from typing import Final

PATIENCE_S: Final = 30.0
POLL_S: Final = 0.1
ACTIVE: Final = ("http.http.downstream_rq_active", "http.metrics.downstream_rq_active")


class AdminConnection(http.client.HTTPConnection):
    """HTTP over Envoy's admin socket."""

    def __init__(self, path: str) -> None:
        """Prepare to connect to the socket at ``path``."""
        super().__init__("envoy", timeout=5.0)
        self._path = path

    def connect(self) -> None:
        """Connect; called by the base class."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def active_requests(stats: str) -> int:
    """Return how many requests are being answered.

    Args:
        stats: The JSON of Envoy's ``/stats?format=json``; those of the admin
            socket itself do not count.
    """
    rows = json.loads(stats)["stats"]
    return sum(row["value"] for row in rows if row.get("name") in ACTIVE)


def ask(admin: str, verb: str, path: str) -> str:
    """Return the body of the admin socket's answer."""
    connection = AdminConnection(admin)
    try:
        connection.request(verb, path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def main() -> int:
    """Close the doors, wait, and return 0; 1 if requests are left."""
    admin = sys.argv[1]
    give_up_at = time.monotonic() + PATIENCE_S
    ask(admin, "POST", "/drain_listeners")
    while active_requests(ask(admin, "GET", "/stats?format=json&filter=rq_active")):
        if time.monotonic() > give_up_at:
            return 1
        time.sleep(POLL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
