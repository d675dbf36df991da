"""perf_analyzer: installs it, runs it, reads its report.

The binary comes with an old release of tritonclient on PyPI. It wants two shared
libraries: libcudart.so.12, which PyPI has, and libb64, which Debian and Ubuntu have.
All three go into a virtual environment of their own.
"""

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.errors import BenchError

PACKAGES: Final = ("tritonclient==2.45.0", "nvidia-cuda-runtime-cu12==12.9.79")
B64_PACKAGE: Final = "libb64-0d"
B64_PATTERN: Final = "usr/lib/**/libb64.so*"

# It merges its last three windows, and wants at least three.
WINDOWS: Final = 3
SHORTEST_WINDOW_MS: Final = 500
# It prints nothing if its windows differ by more than so many percent.
STABILITY_PERCENT: Final = 900
START_UP_S: Final = 60.0
_JSON_ARGUMENTS: Final = (
    *("--input-tensor-format", "json"),
    *("--output-tensor-format", "json"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What perf_analyzer is asked to do.

    Attributes:
        address: HOST:PORT of the server.
        protocol: ``grpc`` or ``http``.
        model: The model's name.
        concurrency: Requests that it keeps in flight, >= 1.
        seconds: How long it measures, in all.
        asynchronous: Few client threads, many requests each; otherwise one thread
            for each request in flight.
        is_json: Over HTTP, tensors as JSON numbers; else as bytes.
        input_data: A file with what is sent, as perf_analyzer reads it; None: what
            the program makes up.
    """

    address: str
    protocol: str
    model: str
    concurrency: int
    seconds: float
    asynchronous: bool
    is_json: bool = False
    input_data: Path | None = None

    @property
    def window_ms(self) -> int:
        """The length of one of its windows."""
        return max(SHORTEST_WINDOW_MS, round(self.seconds * 1000 / WINDOWS))

    def arguments(self, report: Path) -> list[str]:
        """Return the command line, without the program.

        Args:
            report: Where it shall write its CSV report.
        """
        return [
            *("-m", self.model),
            *("-u", self.address),
            *("-i", self.protocol),
            *("--service-kind", "triton"),
            *("--concurrency-range", str(self.concurrency)),
            *("-p", str(self.window_ms)),
            *("-s", str(STABILITY_PERCENT)),
            *("-f", str(report)),
            *(("--async",) if self.asynchronous else ("--sync",)),
            *(_JSON_ARGUMENTS if self.is_json else ()),
            *(("--input-data", str(self.input_data)) if self.input_data else ()),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFigures:
    """What the client saw.

    Attributes:
        requests_per_second: Answered inferences, of one row each.
        p50_us: Latency that half of the requests stay below.
        p99_us: Latency that 99 % of the requests stay below.
    """

    requests_per_second: float
    p50_us: float
    p99_us: float


def parse_report(text: str) -> ClientFigures:
    """Read the CSV report of one concurrency.

    Raises:
        BenchError: the report does not hold exactly one measurement, or lacks a
            figure.
    """
    rows = list(csv.DictReader(text.splitlines()))
    if len(rows) != 1:
        raise BenchError(f"perf_analyzer reported {len(rows)} measurements, not one")
    return ClientFigures(
        requests_per_second=_figure(rows[0], "Inferences/Second"),
        p50_us=_figure(rows[0], "p50 latency"),
        p99_us=_figure(rows[0], "p99 latency"),
    )


def _figure(row: Mapping[str, str], column: str) -> float:
    try:
        return float(row[column])
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"perf_analyzer's report has no {column!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfAnalyzer:
    """An installed perf_analyzer.

    Attributes:
        binary: The program.
        library_path: Where the dynamic linker finds what it needs.
    """

    binary: Path
    library_path: str

    def run(self, load: Load) -> ClientFigures:
        """Put ``load`` on a server and return what the client saw.

        Raises:
            BenchError: it failed, or reported nothing.
        """
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory) / "report.csv"
            command = [str(self.binary), *load.arguments(report)]
            try:
                done = subprocess.run(
                    command,
                    env=self._environment(),
                    capture_output=True,
                    text=True,
                    timeout=START_UP_S + 10 * load.seconds,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise BenchError(f"perf_analyzer hangs: {load}") from error
            if done.returncode != 0 or not report.exists():
                output = (done.stdout + done.stderr).strip()
                raise BenchError(f"perf_analyzer failed:\n{output[-2000:]}")
            return parse_report(report.read_text(encoding="utf-8"))

    def starts(self) -> bool:
        """Tell whether the binary finds all its libraries."""
        command = [str(self.binary), "--version"]
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, check=False
        )
        return done.returncode == 0

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": self.library_path}


def install(venv: Path) -> PerfAnalyzer:
    """Return perf_analyzer, installed into ``venv`` unless it is there.

    Raises:
        BenchError: something it needs cannot be had; the message says what helps.
    """
    python = venv / "bin" / "python"
    binary = venv / "bin" / "perf_analyzer"
    if not python.exists():
        _command([sys.executable, "-m", "venv", str(venv)], "cannot make a venv")
    if not binary.exists():
        pip_install(venv, PACKAGES)
    cudart = [path.parent for path in venv.glob("lib/*/site-packages/nvidia/*/lib")]
    folders = [venv / "debian", *(folder / "lib" for folder in cudart)]
    analyzer = PerfAnalyzer(
        binary=binary, library_path=":".join(map(str, folders)) + _inherited()
    )
    if not analyzer.starts():
        _fetch_b64(venv / "debian")
    if not analyzer.starts():
        raise BenchError(f"{binary} --version does not run on this machine")
    return analyzer


def pip_install(venv: Path, packages: tuple[str, ...]) -> None:
    """Install packages, without what they depend on.

    Raises:
        BenchError: pip failed.
    """
    _command(
        [
            *(str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"),
            *("--disable-pip-version-check", "--no-deps", *packages),
        ],
        f"pip could not install {' '.join(packages)}",
    )


def _inherited() -> str:
    inherited = os.environ.get("LD_LIBRARY_PATH")
    return f":{inherited}" if inherited else ""


def _fetch_b64(folder: Path) -> None:
    """Put Debian's libb64 into ``folder``; needs no root."""
    advice = (
        f"perf_analyzer needs the library of Debian's package {B64_PACKAGE}; as root: "
        f"apt-get update && apt-get install {B64_PACKAGE}"
    )
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise BenchError(f"{advice} (on other systems: their package of libb64)")
    with tempfile.TemporaryDirectory() as directory:
        _command(["apt-get", "download", B64_PACKAGE], advice, directory)
        for package in Path(directory).glob("*.deb"):
            _command(["dpkg", "-x", str(package), directory], advice)
        folder.mkdir(exist_ok=True)
        for library in Path(directory).glob(B64_PATTERN):
            shutil.copy2(library, folder / library.name)


def _command(command: list[str], failure: str, directory: str | None = None) -> None:
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()
        raise BenchError(f"{failure}\n{output[-2000:]}")
