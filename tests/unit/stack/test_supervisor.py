"""Real small processes, started, restarted and stopped."""

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.stack.plan import ProcessSpec, RedisPing
from services.stack.restart import next_delay_ns
from services.stack.supervisor import ProcessEndedError, Supervisor

# Writes its number, then waits to be stopped.
LIVES = "import os, signal; print('pid', os.getpid(), flush=True); signal.pause()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + LIVES
DIES = "import sys; print('no room'); print('giving up'); sys.exit(3)"


class Lines:
    """Collects what the processes write, and lets a test wait for it."""

    def __init__(self) -> None:
        self.text = ""
        self._grown = asyncio.Event()

    def __call__(self, lines: bytes) -> None:
        self.text += lines.decode()
        self._grown.set()

    async def until(self, found: Callable[[str], bool]) -> None:
        while not found(self.text):
            self._grown.clear()
            await self._grown.wait()

    def pids(self) -> list[int]:
        return pids_in(self.text)


def pids_in(text: str) -> list[int]:
    words = text.split()
    return [int(words[i + 1]) for i, word in enumerate(words) if word == "pid"]


def spec(name: str, code: str, **changes: object) -> ProcessSpec:
    argv = (sys.executable, "-c", code)
    return ProcessSpec(name=name, argv=argv, **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def supervised(
    restart_delay_ns: Callable[..., int] = next_delay_ns,
) -> AsyncIterator[tuple[Supervisor, Lines]]:
    lines = Lines()
    news: list[str] = []
    supervisor = Supervisor(
        environment=os.environ,
        sink=lines,
        progress=news.append,
        restart_delay_ns=restart_delay_ns,
    )
    async with asyncio.timeout(20):
        try:
            yield supervisor, lines
        finally:
            await supervisor.stop()


def has_ended(pid: int) -> bool:
    """Tell whether a process ended, at the latest in five seconds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    # A pidfd becomes readable when its process ends.
    readable, _, _ = select.select([handle], [], [], 5)
    os.close(handle)
    return bool(readable)


async def test_stop_leaves_no_process() -> None:
    async with supervised() as (supervisor, lines):
        await supervisor.start([spec("control", LIVES), spec("worker cpu", LIVES)])
        await lines.until(lambda text: text.count("pid") == 2)
    assert all(has_ended(pid) for pid in lines.pids())


async def test_a_process_that_will_not_listen_is_killed() -> None:
    async with supervised() as (supervisor, lines):
        await supervisor.start([spec("control", DEAF, stop_grace_s=0.1)])
        await lines.until(lambda text: "pid" in text)
    assert has_ended(lines.pids()[0])


async def test_what_ends_during_the_start_fails_it_with_its_last_lines() -> None:
    never = RedisPing(path="/nowhere")
    async with supervised() as (supervisor, _):
        with pytest.raises(ProcessEndedError) as failed:
            await supervisor.start([spec("control", DIES, ready=never)])
    assert str(failed.value) == (
        "control ended with 3 during the start; its last lines:\nno room\ngiving up\n"
    )


async def test_a_quiet_process_is_heard_only_when_it_fails() -> None:
    never = RedisPing(path="/nowhere")
    async with supervised() as (supervisor, lines):
        with pytest.raises(ProcessEndedError, match="no room"):
            await supervisor.start([spec("redis", DIES, ready=never, is_quiet=True)])
        assert lines.text == ""


async def test_a_later_stage_fails_if_a_process_of_an_earlier_one_ends() -> None:
    never = RedisPing(path="/nowhere")
    async with supervised() as (supervisor, lines):
        await supervisor.start([spec("redis", LIVES)])
        await lines.until(lambda text: "pid" in text)
        later = asyncio.create_task(
            supervisor.start([spec("control", LIVES, ready=never)])
        )
        os.kill(lines.pids()[0], signal.SIGKILL)
        with pytest.raises(ProcessEndedError, match="redis was killed by signal 9"):
            await later


async def test_after_the_start_what_ends_is_started_again() -> None:
    async with supervised() as (supervisor, lines):
        await supervisor.start([spec("worker cpu", LIVES)])
        supervisor.settle()
        await lines.until(lambda text: text.count("pid") == 1)
        os.kill(lines.pids()[0], signal.SIGKILL)
        await lines.until(lambda text: text.count("pid") == 2)
    first, second = lines.pids()
    assert first != second
    assert has_ended(second)


async def test_a_process_waiting_for_its_restart_does_not_hold_up_the_stop() -> None:
    def an_hour(_previous_ns: int, *, lived_ns: int) -> int:
        return 3600 * 10**9 + lived_ns

    async with supervised(restart_delay_ns=an_hour) as (supervisor, lines):
        supervisor.settle()
        await supervisor.start([spec("worker cpu", DIES, stop_grace_s=3600)])
        await lines.until(lambda text: "giving up" in text)


async def test_what_a_crashed_process_leaves_in_its_session_is_ended() -> None:
    parent = (
        "import os, subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {LIVES!r}]);"
        "print('pid', child.pid, flush=True);"
        "os._exit(1)"
    )
    async with supervised() as (supervisor, _):
        with pytest.raises(ProcessEndedError) as failed:
            await supervisor.start(
                [spec("worker cpu", parent, ready=RedisPing(path="/nowhere"))]
            )
    assert all(has_ended(pid) for pid in pids_in(str(failed.value)))


async def test_a_process_takes_its_own_children_along() -> None:
    parent = (
        "import os, signal, subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {LIVES!r}]);"
        "signal.pause()"
    )
    async with supervised() as (supervisor, lines):
        await supervisor.start([spec("worker cpu", parent)])
        await lines.until(lambda text: "pid" in text)
        supervisor.kill()
    assert has_ended(lines.pids()[0])


async def test_a_missing_program_fails_the_start() -> None:
    async with supervised() as (supervisor, _):
        with pytest.raises(FileNotFoundError):
            await supervisor.start([ProcessSpec(name="envoy", argv=("/no/such",))])


async def test_processes_are_out_of_reach_of_ctrl_c() -> None:
    async with supervised() as (supervisor, lines):
        await supervisor.start([spec("control", LIVES)])
        await lines.until(lambda text: "pid" in text)
        assert os.getsid(lines.pids()[0]) != os.getsid(0)


async def test_a_program_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    program = tmp_path / "program"

    def write_program() -> None:
        program.write_text(f"#!{sys.executable}\n{LIVES}\n")
        program.chmod(0o700)

    steps = [program.unlink, write_program]

    def take_a_step(previous_ns: int, *, lived_ns: int) -> int:
        del previous_ns, lived_ns
        steps.pop(0)()
        return 1

    write_program()
    async with supervised(take_a_step) as (supervisor, lines):
        await supervisor.start([ProcessSpec(name="router", argv=(str(program),))])
        supervisor.settle()
        await lines.until(lambda text: len(pids_in(text)) == 1)
        os.kill(lines.pids()[0], signal.SIGKILL)
        await lines.until(lambda text: len(pids_in(text)) == 2)
    assert steps == []


async def test_a_stop_while_a_restart_is_due_closes_nothing_twice() -> None:
    is_due = asyncio.Event()

    def much_later(previous_ns: int, *, lived_ns: int) -> int:
        del previous_ns, lived_ns
        is_due.set()
        return 60_000_000_000

    async with supervised(much_later) as (supervisor, lines):
        await supervisor.start([spec("router", LIVES)])
        supervisor.settle()
        await lines.until(lambda text: len(pids_in(text)) == 1)
        os.kill(lines.pids()[0], signal.SIGKILL)
        await is_due.wait()
        await supervisor.stop()
        (keeper,) = supervisor._keepers.values()
        assert keeper.exception() is None
