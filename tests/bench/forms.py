"""What the form of a model costs: `simple` as ONNX, as TorchScript and in Python.

    scripts/setup-venv cpu,embedded,torch
    .venv/bin/python -m tests.bench.forms [--concurrency N ...] [--rounds N]

All three are served by one Nereid with one instance and the same largest batch each,
and take turns under the same load.
"""

# ruff: noqa: T201  a command prints

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from demo.onnx_model import add_sub_model
from tests.bench import machine, perf_analyzer, servers
from tests.bench.errors import BenchError
from tests.bench.peers import PROGRAMS
from tests.bench.perf_analyzer import Load
from tests.bench.report import Measurement
from tests.bench.run import ROOT, VENV, measure

WIDTH: Final = 16
CONFIG: Final = f"""
backend: "%s"
max_batch_size: 8
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ {WIDTH} ] }},
        {{ name: "INPUT1" data_type: TYPE_INT32 dims: [ {WIDTH} ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ {WIDTH} ] }},
         {{ name: "OUTPUT1" data_type: TYPE_INT32 dims: [ {WIDTH} ] }} ]
dynamic_batching {{ }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
ROLES: Final = ("router", "worker", "model")
WARM_UP_S: Final = 1.5
HEADER: Final = (
    f"{'model':16}{'clients':>8}{'req/s':>9}{'p50 ms':>9}{'batch':>7}"
    + "".join(f"{role + ' us':>11}" for role in ROLES)
    + f"{'all us':>9}"
)


def write_onnx(version: Path) -> None:
    """Write the demo's file."""
    (version / "model.onnx").write_bytes(add_sub_model(width=WIDTH))


def write_torchscript(version: Path) -> None:
    """Write the same sums for PyTorch.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
    """
    import torch  # noqa: PLC0415 - only this form needs it

    example = torch.zeros((1, WIDTH), dtype=torch.int32)

    def add_sub(
        INPUT0: "torch.Tensor",
        INPUT1: "torch.Tensor",
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        return INPUT0 + INPUT1, INPUT0 - INPUT1

    torch.jit.trace(add_sub, (example, example)).save(str(version / "model.pt"))


def write_python(version: Path) -> None:
    """Write the program that the peers serve, too."""
    program = PROGRAMS / "simple_model.py"
    (version / "model.py").write_text(program.read_text(encoding="utf-8"))


FORMS: Final[Mapping[str, Callable[[Path], None]]] = {
    "onnxruntime": write_onnx,
    "pytorch": write_torchscript,
    "python": write_python,
}


def write_repository(repository: Path) -> Path:
    """Write one model for each form, named by its backend; return the folder."""
    for backend, write in FORMS.items():
        version = repository / _model(backend) / "1"
        version.mkdir(parents=True)
        write(version)
        (version.parent / "config.pbtxt").write_text(CONFIG % backend)
    return repository


def line(model: str, measured: Sequence[Measurement]) -> str:
    """Return the medians of what was measured of one form at one concurrency."""
    cpu = [
        statistics.median(
            one.serving.cpu_us_per_request.get(role, 0.0) for one in measured
        )
        for role in ROLES
    ]
    rate = statistics.median(one.client.requests_per_second for one in measured)
    p50_us = statistics.median(one.client.p50_us for one in measured)
    batch = statistics.median(one.serving.mean_batch for one in measured)
    return (
        f"{model:16}{measured[0].concurrency:8}{rate:9.0f}{p50_us / 1000:9.2f}"
        f"{batch:7.1f}{''.join(f'{us:11.0f}' for us in cpu)}{sum(cpu):9.0f}"
    )


def run(options: argparse.Namespace) -> None:
    """Measure and print.

    Raises:
        BenchError: Nereid or perf_analyzer failed.
    """
    analyzer = perf_analyzer.install(VENV)
    models = [_model(backend) for backend in FORMS]
    with tempfile.TemporaryDirectory() as folder:
        repository = write_repository(Path(folder) / "models")
        with servers.nereid(repository, models[-1]) as server:
            for concurrency in options.concurrency:
                found: dict[str, list[Measurement]] = {model: [] for model in models}
                for number in range(options.rounds + 1):
                    for model, measured in found.items():
                        load = Load(
                            address=server.addresses["grpc"],
                            protocol="grpc",
                            model=model,
                            concurrency=concurrency,
                            seconds=options.seconds if number else WARM_UP_S,
                            asynchronous=True,
                        )
                        if number == 0:
                            analyzer.run(load)
                        else:
                            measured.append(measure(analyzer, server, load, number))
                for model, measured in found.items():
                    print(line(model, measured), flush=True)


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    described = machine.describe(ROOT)
    print(
        f"{described.cores} cores, {described.cpu_model}, commit {described.commit},"
        f" load average {described.load_average:.2f}"
    )
    print(HEADER)
    try:
        run(options)
    except BenchError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    return 0


def _model(backend: str) -> str:
    return f"simple_{backend}"


if __name__ == "__main__":
    sys.exit(main())
