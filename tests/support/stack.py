"""Runs ``nereid serve`` as a user does: a process, ports, its output.

Imports neither protos nor services, so that tests with tritonclient may use it.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.ports import free_ports

ROOT: Final = Path(__file__).resolve().parents[2]
NEREID: Final = Path(sys.executable).with_name("nereid")
READY_LINE: Final = "nereid: ready\n"
SETTLED_LINE: Final = "nereid: Ctrl-C stops the stack\n"
READY_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 45.0
MARK_VARIABLE: Final = "NEREID_TEST_MARK"


@dataclass(slots=True, kw_only=True)
class Stack:
    """One running ``nereid serve``.

    Attributes:
        http: The port of REST on 127.0.0.1.
        grpc: The port of gRPC.
        metrics: The port of metrics.
        process: The parent of all others.
        mark: A word that all its processes have in their environment.
    """

    http: int
    grpc: int
    metrics: int
    process: subprocess.Popen[str]
    mark: str
    _lines: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _ended: bool = False
    _reader: threading.Thread | None = None

    @property
    def output(self) -> str:
        """All that the stack has written so far, stderr included."""
        return "".join(self._lines)

    def listen(self) -> None:
        """Collect the output from now on, in a thread."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        """Return once the stack says that it is ready.

        Raises:
            AssertionError: it ended, or took too long; the message has its output.
        """
        self.wait_for(READY_LINE)

    def wait_for(self, line: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return once the stack has written ``line``.

        Raises:
            AssertionError: it ended, or took too long; the message has its output.
        """
        with self._news:
            self._news.wait_for(lambda: self._ended or line in self._lines, timeout_s)
            if line not in self._lines:
                raise AssertionError(f"waited for {line!r} in vain:\n{self.output}")

    def wait_for_text(self, text: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return once the stack has written ``text`` somewhere.

        Raises:
            AssertionError: it ended, or took too long; the message has its output.
        """
        with self._news:
            self._news.wait_for(lambda: self._ended or text in self.output, timeout_s)
            if text not in self.output:
                raise AssertionError(f"waited for {text!r} in vain:\n{self.output}")

    def wait_ended(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Return its exit status; its output is then complete.

        Raises:
            subprocess.TimeoutExpired: it has not ended.
        """
        status = self.process.wait(timeout_s)
        if self._reader is not None:
            self._reader.join(timeout_s)
        return status

    def stop(self) -> int:
        """Stop it as Ctrl-C does, and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.wait_ended()

    def processes(self) -> dict[int, str]:
        """Return the command line of each of its processes, by number."""
        return processes_marked(self.mark)

    def process_of(self, role: str) -> int:
        """Return the number of the process whose command line says its role.

        Raises:
            LookupError: there is not exactly one.
        """
        found = [n for n, line in self.processes().items() if f"nereid {role}" in line]
        if len(found) != 1:
            raise LookupError(f"{len(found)} processes are 'nereid {role}'")
        return found[0]

    def _read(self) -> None:
        if self.process.stdout is None:
            raise RuntimeError("the process was started without a pipe")
        for line in self.process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


@contextlib.contextmanager
def started_stack(
    model_repository: Path | str,
    *flags: str,
    ports: tuple[int, int, int] | None = None,
    environment: dict[str, str] | None = None,
    devices: Sequence[str] = ("cpu",),
) -> Iterator[Stack]:
    """Start a stack with a store of its own; do not wait for it.

    Args:
        model_repository: The folder that it serves.
        flags: More flags of ``nereid serve``.
        ports: REST, gRPC and metrics; by default three free ones.
        environment: Added to this process's own.
        devices: That get a worker; (): those that the stack finds.
    """
    http, grpc, metrics = ports or free_ports(3)
    mark = uuid.uuid4().hex
    inherited = {k: v for k, v in os.environ.items() if k != "REDIS_URL"}
    with tempfile.TemporaryDirectory(prefix="nereid-test-") as state:
        command = [str(NEREID), "serve", f"--model-repository={model_repository}"]
        command += [f"--http-port={http}", f"--grpc-port={grpc}"]
        command += [f"--metrics-port={metrics}", "--http-address=127.0.0.1"]
        command += ["--grpc-address=127.0.0.1", f"--state-dir={state}"]
        process = subprocess.Popen(
            [*command, *(f"--device={device}" for device in devices), *flags],
            cwd=ROOT,
            env={**inherited, **(environment or {}), MARK_VARIABLE: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        stack = Stack(http=http, grpc=grpc, metrics=metrics, process=process, mark=mark)
        stack.listen()
        try:
            yield stack
        finally:
            try:
                stack.stop()
            finally:
                _kill(process, stack)


@contextlib.contextmanager
def running_stack(model_repository: Path | str, *flags: str) -> Iterator[Stack]:
    """Start a stack, wait until it is ready, stop it at the end."""
    with started_stack(model_repository, *flags) as stack:
        stack.wait_ready()
        yield stack


def build_demo(repository: Path, *arguments: str) -> Path:
    """Build the demo repository, or what is missing of it; return its folder."""
    command = [sys.executable, "-m", "demo.build", *arguments, str(repository)]
    subprocess.run(command, cwd=ROOT, check=True)
    return repository


def processes_marked(mark: str) -> dict[int, str]:
    """Return the command lines of the living processes that have ``mark``."""
    found = {}
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found[int(folder.name)] = b" ".join(words).decode().strip()
    return found


def wait_gone(processes: dict[int, str], timeout_s: float) -> dict[int, str]:
    """Wait for processes to end; return those that have not in time."""
    return {
        number: line
        for number, line in processes.items()
        if not has_ended(number, timeout_s)
    }


def has_ended(number: int, timeout_s: float) -> bool:
    """Tell whether a process ends within the time."""
    try:
        handle = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    try:
        # A pidfd becomes readable when its process ends.
        readable, _, _ = select.select([handle], [], [], timeout_s)
    finally:
        os.close(handle)
    return bool(readable)


def _kill(process: subprocess.Popen[str], stack: Stack) -> None:
    """Leave nothing behind, whatever the test found."""
    process.kill()
    for number in stack.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait()
