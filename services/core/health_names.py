"""What may be asked of a process by ``grpc.health.v1``, besides models. Pure."""

from typing import Final

# Whether a router is up: it may have nothing to serve yet. The empty name means
# whether the server is ready, as for every client.
ROUTER_PROCESS: Final = "nereid.router"
