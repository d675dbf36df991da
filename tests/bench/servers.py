"""The two servers that are compared, as processes."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from protos import inference_pb2, inference_pb2_grpc
from tests.bench import process_cpu
from tests.bench.errors import BenchError
from tests.support.ports import free_ports

START_S: Final = 90.0
STOP_S: Final = 15.0
POLL_S: Final = 0.1
ROUTER_MODULE: Final = "tests.bench.baseline_aio.router"
WORKER_MODULE: Final = "tests.bench.baseline_aio.worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that is ready.

    Attributes:
        name: In tables.
        addresses: HOST:PORT by protocol.
        roles: Its processes, by what they do.
        pid: Of the process that started all others; 0 if there is none.
    """

    name: str
    addresses: Mapping[str, str]
    roles: Mapping[str, tuple[int, ...]]
    pid: int = 0


@contextmanager
def nereid(
    repository: Path, model: str, flags: Sequence[str] = ()
) -> Iterator[RunningServer]:
    """Run ``nereid serve``, as users do, on free ports.

    Args:
        repository: Holds the model.
        model: Its name.
        flags: More of ``nereid serve``.

    Raises:
        BenchError: it did not become ready, or ended before it was told to.
    """
    rest, inference, metrics = free_ports(3)
    with ExitStack() as stack:
        state = stack.enter_context(_temporary_directory())
        process = stack.enter_context(
            _process(
                [
                    str(Path(sys.executable).with_name("nereid")),
                    "serve",
                    f"--model-repository={repository}",
                    f"--http-port={rest}",
                    f"--grpc-port={inference}",
                    f"--metrics-port={metrics}",
                    f"--state-dir={state}",
                    *flags,
                ],
                log=state / "log",
            )
        )
        address = f"127.0.0.1:{inference}"
        _until_ready(address, model, [process], log=state / "log")
        yield RunningServer(
            name="nereid",
            addresses={"grpc": address, "http": f"127.0.0.1:{rest}"},
            roles=process_cpu.roles_below(process.pid),
            pid=process.pid,
        )


@contextmanager
def baseline(
    repository: Path, model: str, flags: Sequence[str] = ()
) -> Iterator[RunningServer]:
    """Run the grpc.aio router and worker of this folder.

    Args:
        repository: Holds the model.
        model: Its name.
        flags: Of ``nereid serve``; not for us.

    Raises:
        BenchError: they did not become ready, or ended before they were told to.
    """
    del flags
    (port,) = free_ports(1)
    with ExitStack() as stack:
        directory = stack.enter_context(_temporary_directory())
        worker_target = f"unix:{directory / 'worker.sock'}"
        start = [sys.executable, "-m"]
        model_flag = f"--model={repository / model}"
        log = directory / "log"
        worker = stack.enter_context(
            _process(
                [*start, WORKER_MODULE, model_flag, f"--listen={worker_target}"],
                log=log,
            )
        )
        address = f"127.0.0.1:{port}"
        flags = [model_flag, f"--listen={address}", f"--worker={worker_target}"]
        router = stack.enter_context(_process([*start, ROUTER_MODULE, *flags], log=log))
        _until_ready(address, model, [worker, router], log=log)
        yield RunningServer(
            name="grpc.aio",
            addresses={"grpc": address},
            roles={"router": (router.pid,), "worker": (worker.pid,)},
        )


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nereid-bench-") as directory:
        yield Path(directory)


@contextmanager
def _process(
    command: Sequence[str], *, log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that ends with the ``with``.

    Raises:
        BenchError: something failed inside the ``with``, and the process has ended.
    """
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
        )
    try:
        yield process
    except BenchError as error:
        if process.poll() is None:
            raise
        message = f"{error}\nThe server ended with {process.returncode}:\n{_tail(log)}"
        raise BenchError(message) from error
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        process.kill()
        process.wait()


def _until_ready(
    address: str,
    model: str,
    processes: Sequence["subprocess.Popen[bytes]"],
    *,
    log: Path,
) -> None:
    request = inference_pb2.ModelReadyRequest(name=model)
    give_up_at = time.monotonic() + START_S
    with grpc.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        while True:
            with suppress(grpc.RpcError):
                if stub.ModelReady(request, timeout=1.0).ready:
                    return
            ended = any(process.poll() is not None for process in processes)
            if ended or time.monotonic() > give_up_at:
                raise BenchError(f"{model} did not become ready:\n{_tail(log)}")
            time.sleep(POLL_S)


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-3000:]
