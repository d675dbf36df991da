"""The worker process: one device, its models, its streams.

CUDA_VISIBLE_DEVICES decides which GPU a runtime sees, once, when the runtime is
imported. So it is set before anything else happens.
"""

import argparse
import os
import queue
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Final

import structlog

from services.core import logs
from services.core.errors import ConfigError
from services.core.gpus import Gpu
from services.core.memory_return import MemoryReturn
from services.core.nvml import NoNvmlError, list_gpus
from services.core.process_tuning import prepare_grpc, settle
from services.core.rate_limits import (
    OFF,
    ResourceAmount,
    is_rate_limited,
    resource_amounts,
)
from services.worker.device import Device, DeviceKind, choose, parse_device

_EXIT_TIMEOUT_S: Final = 30.0
# Loading is mostly reading files and optimising graphs: a few at once pay.
_LOADING_THREADS: Final = 4

# Every stream has a thread that polls its own connection. Under epoll one thread
# polls for all and wakes the one concerned, and the others in turn. With five
# idle instances beside a busy one (`simple`, concurrency 1 / 8 / 32, a busy
# machine): 271 / 87 / 45 us of CPU a request with epoll, 193 / 72 / 41 with poll.
_POLL_STRATEGY: Final = "poll"
# While a model computes, the thread of its stream polls nothing, and a router's
# ping would wait until it is taken for dead. A thread of C-core polls meanwhile,
# by default every 5 s: too seldom.
_BACKUP_POLL_MS: Final = 500

_MEMORY_LOOK_S: Final = 2.0

# Told in place of a signal: an execution hangs that nothing but our end ends.
_HUNG: Final = 0

_log = structlog.get_logger(__name__)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the settings of ``nereid worker``."""
    parser = argparse.ArgumentParser(
        prog="nereid worker", description="Execute models on one device."
    )
    parser.add_argument("--control", required=True, help="unix:PATH or HOST:PORT")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:INDEX")
    parser.add_argument(
        "--worker-id", help="told apart by control (default: host, device and chance)"
    )
    parser.add_argument(
        "--model-load-thread-count",
        type=int,
        default=_LOADING_THREADS,
        help="how many models are loaded at once (default: 4)",
    )
    parser.add_argument("--rate-limit", default=OFF, help="off or execution_count")
    parser.add_argument("--rate-limit-resource", action="append", default=[])
    parser.add_argument("--exit-timeout-secs", type=float, default=_EXIT_TIMEOUT_S)
    parser.add_argument("--log-verbose", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run a worker until SIGTERM or SIGINT; return the exit status."""
    settings = parse_arguments(argv)
    logs.configure(verbose=settings.log_verbose)
    try:
        device = parse_device(settings.device)
        chosen = choose(device, _gpus_for(device), os.environ)
        amounts = _amounts(settings)
    except (ConfigError, ValueError) as error:
        print(f"nereid worker: {error}", file=sys.stderr)  # noqa: T201 - to the user
        return 2
    os.environ["CUDA_VISIBLE_DEVICES"] = chosen.visible
    prepare_grpc()
    os.environ.setdefault("GRPC_POLL_STRATEGY", _POLL_STRATEGY)
    os.environ.setdefault(
        "GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", str(_BACKUP_POLL_MS)
    )
    # Not an Event: its lock may be held by the very thread that the handler
    # interrupts, and both would wait for ever.
    stopping: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _frame: stopping.put(caught))
    return _serve(settings, chosen.device, amounts, stopping)


def _amounts(settings: argparse.Namespace) -> Sequence[ResourceAmount] | None:
    """Return the resources that instances share; None: nothing limits them.

    Raises:
        ValueError: a flag that says nothing of the kind.
    """
    amounts = resource_amounts(settings.rate_limit_resource)
    return tuple(amounts) if is_rate_limited(settings.rate_limit) else None


def _gpus_for(device: Device) -> tuple[Gpu, ...]:
    """Return the host's GPUs if one of them is to be served."""
    if device.kind is DeviceKind.CPU:
        return ()
    try:
        return list_gpus()
    except NoNvmlError as error:
        _log.warning("nothing is known of the GPU", reason=str(error))
        return ()


def _told(stopping: "queue.SimpleQueue[int]") -> int | None:
    """Wait for the signal to stop; None when memory is to be looked at."""
    try:
        return stopping.get(timeout=_MEMORY_LOOK_S)
    except queue.Empty:
        return None


def _serve(
    settings: argparse.Namespace,
    device: Device,
    amounts: Sequence[ResourceAmount] | None,
    stopping: "queue.SimpleQueue[int]",
) -> int:
    # Not before the environment is set: grpc reads it when it is imported.
    from services.worker.turns import Turns  # noqa: PLC0415
    from services.worker.worker import Worker  # noqa: PLC0415

    worker_id = settings.worker_id or (
        f"{socket.gethostname()}-{device.label}-{uuid.uuid4().hex[:8]}"
    )
    worker = Worker(
        settings.control,
        worker_id,
        device,
        give_up=lambda: stopping.put(_HUNG),
        loading_threads=max(settings.model_load_thread_count, 1),
        turns=None if amounts is None else Turns(amounts, device.index),
    )
    worker.start()
    settle()
    _log.info("worker is up", worker=worker_id, device=device.label)
    memory = MemoryReturn()
    while (told := _told(stopping)) is None:
        memory.tick(time.monotonic_ns())
        worker.tick()
    if told == _HUNG:
        # At once, as in a crash: routers and control know what to do, and whoever
        # waited here for others would have them all wait for a new worker.
        _log.error("worker ends for an execution that hangs", worker=worker_id)
        os._exit(1)
    _log.info("worker is stopping", worker=worker_id)
    drain = threading.Thread(target=worker.stop, daemon=True)
    drain.start()
    drain.join(settings.exit_timeout_secs)
    if drain.is_alive():
        # A thread inside a runtime cannot be interrupted, and an orderly exit
        # would wait for it.
        _log.error("executions did not end in time", worker=worker_id)
        os._exit(0)
    return 0
