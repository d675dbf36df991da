"""Which processes a stack consists of, in which order they start and stop. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from services.core.health_names import ROUTER_PROCESS
from services.stack.settings import StackSettings

# How long a process may take to end after SIGTERM before it is killed. The router
# has the user's --exit-timeout-secs for requests in flight.
STOP_GRACE_S = 5.0
ROUTER_EXTRA_GRACE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcHealth:
    """Ready once ``grpc.health.v1`` at a gRPC address says SERVING.

    Attributes:
        target: The address.
        service: What is asked for; empty: the server as a whole.
    """

    target: str
    service: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisPing:
    """Ready once PING at the unix socket ``path`` is answered with PONG."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpConnect:
    """Ready once a connection to the address is accepted."""

    host: str
    port: int


ReadyCheck = GrpcHealth | RedisPing | TcpConnect


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """How to start one process, and how to tell that it is up.

    Attributes:
        name: Unique in the stack, for example ``router`` or ``worker cuda:0``.
        argv: What is executed.
        environment: Added to the stack's own.
        ready: None if being alive is all that can be asked of it.
        stop_grace_s: How long it may take to end after SIGTERM.
        is_quiet: Whether its output is kept for the case that it ends, not shown.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: ReadyCheck | None = None
    stop_grace_s: float = STOP_GRACE_S
    is_quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things are on this machine.

    Attributes:
        run_directory: Private to this stack, short, for its sockets.
        state_directory: Of the embedded store.
        nereid: The start of an argv that runs the ``nereid`` command.
        valkey: The store's program; empty if ``redis_url`` is given.
        envoy: The gateway's program; empty if no door needs it.
        envoy_config: The file that was written for it.
        redis_url: Of a store that runs elsewhere; empty means: embed one.
    """

    run_directory: PurePath
    state_directory: PurePath
    nereid: tuple[str, ...]
    valkey: str = ""
    envoy: str = ""
    envoy_config: str = ""
    redis_url: str = ""

    @property
    def control_target(self) -> str:
        """The gRPC address of control."""
        return f"unix:{self.run_directory / 'control.sock'}"

    @property
    def router_target(self) -> str:
        """The router's internal gRPC address."""
        return f"unix:{self.run_directory / 'router.sock'}"

    @property
    def redis_socket(self) -> str:
        """The embedded store's unix socket."""
        return str(self.run_directory / "redis.sock")


def plan(
    settings: StackSettings, places: Places, devices: Sequence[str]
) -> tuple[tuple[ProcessSpec, ...], ...]:
    """Return the stages of a start.

    The processes of one stage start together; the next stage starts when all of
    them are ready. The store comes before control, whose only client that is, and
    control before everyone who asks it what to do.
    """
    store = () if places.redis_url else (_store(settings, places),)
    workers = tuple(_worker(settings, places, device) for device in devices)
    gateway = (_gateway(settings, places),) if needs_gateway(settings) else ()
    stages = (
        store,
        (_control(settings, places, len(devices)),),
        (_router(settings, places), *workers, *gateway),
    )
    return tuple(stage for stage in stages if stage)


def stop_order(names: Sequence[str]) -> tuple[str, ...]:
    """Return the processes in the order in which they are stopped.

    Not simply the reverse of the start: the router goes first, while everything
    that its requests in flight need still runs. It refuses new ones as UNAVAILABLE,
    which Envoy still tells its clients, and ends when the old ones are answered.
    """
    ranks = {"router": 0, "envoy": 1, "worker": 2, "control": 3, "redis": 4}
    return tuple(sorted(names, key=lambda name: ranks[name.split()[0]]))


def needs_gateway(settings: StackSettings) -> bool:
    """Tell whether any door is Envoy's."""
    return settings.rest is not None or settings.metrics is not None


def _store(settings: StackSettings, places: Places) -> ProcessSpec:
    flags = {
        "port": "0",
        "unixsocket": places.redis_socket,
        "unixsocketperm": "700",
        "dir": str(places.state_directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "daemonize": "no",
        "set-proc-title": "no",
        "loglevel": "warning",
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    return ProcessSpec(
        name="redis",
        argv=(*places.nereid, "execute", "nereid redis", places.valkey, *words),
        ready=RedisPing(path=places.redis_socket),
        # It warns of kernel settings that matter to large stores only.
        is_quiet=settings.log.verbose == 0,
    )


def _control(settings: StackSettings, places: Places, worker_count: int) -> ProcessSpec:
    repositories = (f"--model-repository={r}" for r in settings.model_repositories)
    # Not on the command line: a URL may hold a password.
    redis_url = places.redis_url or f"unix://{places.redis_socket}"
    return ProcessSpec(
        name="control",
        argv=(
            *places.nereid,
            "control",
            f"--listen={places.control_target}",
            *repositories,
            f"--override-directory={places.state_directory / 'overrides'}",
            f"--expected-workers={worker_count}",
            f"--repository-cache-directory={places.state_directory / 'repositories'}",
            *settings.control_flags,
        ),
        environment={"REDIS_URL": redis_url},
        ready=GrpcHealth(target=places.control_target),
    )


def _router(settings: StackSettings, places: Places) -> ProcessSpec:
    # Port 0: no public door.
    host = settings.grpc.host if settings.grpc else "127.0.0.1"
    port = settings.grpc.port if settings.grpc else 0
    limit = settings.http_max_input_bytes
    return ProcessSpec(
        name="router",
        argv=(
            *places.nereid,
            "router",
            f"--grpc-address={host}",
            f"--grpc-port={port}",
            f"--internal-listen={places.router_target}",
            f"--control={places.control_target}",
            *(() if limit is None else (f"--http-max-input-size={limit}",)),
            *settings.router_flags,
        ),
        ready=GrpcHealth(target=places.router_target, service=ROUTER_PROCESS),
        stop_grace_s=settings.exit_timeout_s + ROUTER_EXTRA_GRACE_S,
    )


def _worker(settings: StackSettings, places: Places, device: str) -> ProcessSpec:
    return ProcessSpec(
        name=f"worker {device}",
        argv=(
            *places.nereid,
            "worker",
            f"--control={places.control_target}",
            f"--device={device}",
            f"--worker-id={device}",
            *settings.worker_flags,
        ),
    )


def _gateway(settings: StackSettings, places: Places) -> ProcessSpec:
    door = settings.rest or settings.metrics
    return ProcessSpec(
        name="envoy",
        argv=(
            *places.nereid,
            *("execute", "nereid envoy", places.envoy),
            *("--config-path", places.envoy_config),
            *("--concurrency", "1"),
            *("--log-level", "warn"),
            "--disable-hot-restart",
        ),
        ready=TcpConnect(host=door.host, port=door.port) if door else None,
    )
