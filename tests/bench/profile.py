"""Where the processes of a server spend their time, by py-spy."""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench import perf_analyzer
from tests.bench.errors import BenchError

PACKAGE: Final = "py-spy==0.4.3"
SAMPLES_A_SECOND: Final = 200
SHOWN: Final = 25
END_S: Final = 60.0
# Where threads wait: py-spy cannot tell that from work when it looks at native frames.
WAITING: Final = (
    "Condition.wait (",
    "_worker (concurrent/futures/",
    "ControlClient._outgoing (",
    "_run_channel_spin_thread.",
    "_consume_request_iterator.",
    "syscall (libc",
    "epoll_wait (libc",
    "poll (libc",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One function's part of the samples.

    Attributes:
        frame: ``function (file)``, as py-spy writes it.
        share: From 0 to 1.
    """

    frame: str
    share: float


def native_leaves(stacks: str) -> list[Share]:
    """Return the innermost frames, native ones too, the most frequent first.

    Functions without a symbol are one for each library.

    Args:
        stacks: Collapsed: ``outer;inner COUNT`` in each line.
    """
    return _shares(stacks, lambda frames: _without_address(frames[-1]))


def python_leaves(stacks: str) -> list[Share]:
    """Return the innermost Python functions, the most frequent first.

    What native code does counts for the Python function that called it.

    Args:
        stacks: Collapsed: ``outer;inner COUNT`` in each line.
    """
    return _shares(stacks, _innermost_python)


def _without_address(frame: str) -> str:
    symbol, _, place = frame.partition(" ")
    return f"(no symbol) {place}" if symbol.startswith("0x") else frame


def _innermost_python(frames: list[str]) -> str:
    inner_first = reversed(frames)
    return next((frame for frame in inner_first if is_python(frame)), frames[-1])


def is_python(frame: str) -> bool:
    """Tell a Python frame, which names a file of ours, from a native one."""
    return frame.rpartition("(")[2].partition(":")[0].rstrip(")").endswith(".py")


def is_waiting(frames: list[str]) -> bool:
    """Tell a thread that waits by its innermost frames."""
    innermost = (frames[-1], _innermost_python(frames))
    return any(frame.startswith(WAITING) for frame in innermost)


def _shares(stacks: str, key: Callable[[list[str]], str]) -> list[Share]:
    counted: Counter[str] = Counter()
    for line in stacks.splitlines():
        path, _, count = line.rpartition(" ")
        frames = path.split(";")
        if not is_waiting(frames):
            counted[key(frames)] += int(count)
    total = counted.total()
    return [
        Share(frame=frame, share=count / total)
        for frame, count in counted.most_common()
    ]


def table(title: str, shares: list[Share]) -> str:
    """Return the largest shares as lines of text."""
    lines = [f"  {one.share:>6.1%}  {one.frame}" for one in shares[:SHOWN]]
    return "\n".join([title, *lines])


@contextmanager
def recording(
    venv: Path, roles: Mapping[str, tuple[int, ...]], seconds: float, folder: Path
) -> Iterator[dict[str, Path]]:
    """Sample the first router and the first worker from now on.

    Yields:
        By role, the file with collapsed stacks; it is there after the ``with``.

    Raises:
        BenchError: py-spy cannot be installed or may not look into processes.
    """
    program = venv / "bin" / "py-spy"
    if not program.exists():
        perf_analyzer.pip_install(venv, (PACKAGE,))
    folder.mkdir(parents=True, exist_ok=True)
    files = {role: folder / f"{role}.stacks" for role in ("router", "worker")}
    spies = [
        _spy(program, roles[role][0], seconds, file) for role, file in files.items()
    ]
    try:
        yield files
    finally:
        outputs = [_output(spy) for spy in spies]
    for file, output in zip(files.values(), outputs, strict=True):
        if not file.exists():
            raise BenchError(f"py-spy failed: {output[-1000:]}")


def _spy(
    program: Path, pid: int, seconds: float, file: Path
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [
            *(str(program), "record", "--pid", str(pid), "--native", "--function"),
            *("--rate", str(SAMPLES_A_SECOND), "--duration", str(round(seconds))),
            *("--format", "raw", "--output", str(file)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _output(spy: "subprocess.Popen[str]") -> str:
    try:
        return spy.communicate(timeout=END_S)[0]
    except subprocess.TimeoutExpired:
        spy.kill()
        return spy.communicate()[0]
