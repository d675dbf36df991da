"""Other servers, each in a virtual environment of its own, with `simple` in Python."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from google.protobuf import text_format

from protos import inference_pb2, inference_pb2_grpc, model_config_pb2
from tests.bench.errors import BenchError
from tests.support.ports import free_ports

PROGRAMS: Final = Path(__file__).with_name("peer_programs")
MODEL: Final = "simple"
CONFIG: Final = """
name: "simple"
backend: "python"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
        { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
         { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
START_S: Final = 60.0
STOP_S: Final = 10.0
_POLL_S: Final = 0.2
_PORTS: Final = 3
_SHIM_VARIABLE: Final = "BENCH_MODEL_CONFIG_RESPONSE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a peer is started with.

    Attributes:
        venv: Of its own.
        folder: For its files.
        ports: REST, gRPC and metrics.
    """

    venv: Path
    folder: Path
    ports: tuple[int, ...]

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.venv / "bin" / "python")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A process to start."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server that Nereid is compared with.

    Attributes:
        name: In tables.
        packages: To install.
        door: How it is asked: ``grpc``, or ``json`` over HTTP.
        command: What starts it.
        prepare: Called once its packages are there.
        note: Of what had to be set apart from the defaults.
    """

    name: str
    packages: tuple[str, ...]
    door: str
    command: Callable[[Place], Command]
    prepare: Callable[[Path], None] = lambda _venv: None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPeer:
    """A peer that is ready.

    Attributes:
        address: HOST:PORT of its door.
        pid: Of the process that started all others of it.
    """

    address: str
    pid: int


def install(peer: Peer, venv: Path) -> None:
    """Install a peer, unless it is there.

    Raises:
        BenchError: it cannot be installed here.
    """
    done = venv / "installed"
    wanted = "\n".join(peer.packages)
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return
    if not (venv / "bin" / "python").exists():
        _run([sys.executable, "-m", "venv", str(venv)])
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    _run([*pip, "--disable-pip-version-check", *peer.packages])
    peer.prepare(venv)
    done.write_text(wanted, encoding="utf-8")


@contextmanager
def running(peer: Peer, venv: Path, folder: Path) -> Iterator[RunningPeer]:
    """Run an installed peer until the end of the block.

    Raises:
        BenchError: it did not become ready.
    """
    ports = free_ports(_PORTS)
    command = peer.command(Place(venv=venv, folder=folder, ports=ports))
    log = folder / f"{peer.name}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command.argv,
            cwd=command.folder,
            env={**os.environ, **command.environment},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    try:
        address = f"127.0.0.1:{ports[1] if peer.door == 'grpc' else ports[0]}"
        is_ready = _is_ready_by_grpc if peer.door == "grpc" else _is_ready_by_rest
        give_up_at = time.monotonic() + START_S
        while not is_ready(address):
            if process.poll() is not None or time.monotonic() > give_up_at:
                words = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise BenchError(f"{peer.name} did not become ready:\n{words}")
            time.sleep(_POLL_S)
        yield RunningPeer(address=address, pid=process.pid)
    finally:
        _end(process)


def write_python_model(repository: Path) -> Path:
    """Write `simple` as a Python model; return ``repository``."""
    version = repository / MODEL / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copy(PROGRAMS / "simple_model.py", version / "model.py")
    (repository / MODEL / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    return repository


def _triton_folder(venv: Path) -> Path:
    return next(venv.glob("lib/python*/site-packages/pytriton/tritonserver"))


def _prepare_triton(venv: Path) -> None:
    """Put the stub for our Python where Triton looks for it."""
    folder = _triton_folder(venv)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = folder / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise BenchError(f"its wheel has no stub for Python {version}")
    shutil.copy(stub, folder / "backends" / "python")


def _triton(place: Place) -> Command:
    folder = _triton_folder(place.venv)
    rest, inference, metrics = place.ports
    return Command(
        argv=[
            str(folder / "bin" / "tritonserver"),
            f"--model-repository={write_python_model(place.folder / 'models')}",
            f"--backend-directory={folder / 'backends'}",
            f"--http-port={rest}",
            f"--grpc-port={inference}",
            f"--metrics-port={metrics}",
        ],
        environment={
            "PATH": f"{place.venv / 'bin'}:{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(folder.parents[1]),
        },
        folder=place.folder,
    )


def _shim(place: Place) -> dict[str, str]:
    """Return the environment of a server that is told its model's configuration."""
    config = text_format.Parse(CONFIG, model_config_pb2.ModelConfig())
    response = inference_pb2.ModelConfigResponse(config=config)
    file = place.folder / "model_config"
    file.write_bytes(response.SerializeToString())
    return {_SHIM_VARIABLE: str(file), "PYTHONPATH": str(PROGRAMS)}


def _mlserver(place: Place) -> Command:
    rest, inference, metrics = place.ports
    settings = {
        "host": "127.0.0.1",
        "http_port": rest,
        "grpc_port": inference,
        "metrics_port": metrics,
        "parallel_workers": 0,
        "debug": False,
    }
    model = {
        "name": MODEL,
        "implementation": "mlserver_model.Simple",
        "inputs": _tensors("INPUT0", "INPUT1"),
        "outputs": _tensors("OUTPUT0", "OUTPUT1"),
    }
    folder = place.folder / MODEL
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "model-settings.json").write_text(json.dumps(model), encoding="utf-8")
    return Command(
        argv=[place.python, str(PROGRAMS / "mlserver_server.py"), "."],
        environment=_shim(place),
        folder=folder,
    )


def _kserve(place: Place) -> Command:
    rest, inference, _ = place.ports
    program = str(PROGRAMS / "kserve_server.py")
    return Command(
        argv=[place.python, program, str(rest), str(inference)],
        environment=_shim(place),
        folder=place.folder,
    )


def _litserve(place: Place) -> Command:
    program = str(PROGRAMS / "litserve_server.py")
    return Command(
        argv=[place.python, program, str(place.ports[0])],
        environment={},
        folder=place.folder,
    )


def _tensors(*names: str) -> list[dict[str, object]]:
    return [{"name": n, "datatype": "INT32", "shape": [-1, 16]} for n in names]


PEERS: Final = (
    Peer(
        name="triton",
        # Its Python stub cannot read the arrays of a later numpy.
        packages=("nvidia-pytriton==0.7.0", "numpy<2"),
        door="grpc",
        command=_triton,
        prepare=_prepare_triton,
        note="the real server 2.51 of the pytriton wheel, Python backend",
    ),
    Peer(
        name="mlserver",
        packages=("mlserver==1.7.1",),
        door="grpc",
        command=_mlserver,
        note="parallel_workers 0: its workers do not start with newer event loops",
    ),
    Peer(name="kserve", packages=("kserve==0.21.0",), door="grpc", command=_kserve),
    Peer(
        name="litserve",
        packages=("litserve==0.2.19", "numpy"),
        door="json",
        command=_litserve,
        note="it has no V2 protocol: V2's JSON over HTTP, as its API's own",
    ),
)


def _is_ready_by_grpc(address: str) -> bool:
    request = inference_pb2.ModelReadyRequest(name=MODEL)
    with grpc.insecure_channel(address) as channel, suppress(grpc.RpcError):
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        return bool(stub.ModelReady(request, timeout=1.0).ready)
    return False


def _is_ready_by_rest(address: str) -> bool:
    url = f"http://{address}/v2/models/{MODEL}/ready"
    with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url):
        return True
    return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a server and all that it started."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = (done.stdout + done.stderr).strip().splitlines()
        raise BenchError(words[-1] if words else f"{command[0]} failed")
