"""One process of the stack: started, listened to, signalled."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from services.stack.plan import ProcessSpec

KEPT_LINES: Final = 20
CHUNK_BYTES: Final = 1 << 16
LAST_WORDS_S: Final = 1.0

Sink = Callable[[bytes], None]


class Child:
    """A process in a session of its own, so that Ctrl-C reaches only its parent.

    It is started by the main thread, because the kernel reports the death of the
    thread that forked, not of the process, to a child that asked for it. Not
    asyncio's subprocess: its ``wait`` returns only when the pipe is closed, too,
    and what a crashed process leaves running may hold it open for ever.
    """

    def __init__(
        self, spec: ProcessSpec, *, environment: Mapping[str, str], sink: Sink
    ) -> None:
        self.spec = spec
        self._environment = environment
        self._sink = sink
        self._last_lines: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._life: _Life | None = None

    def start(self) -> None:
        """Start the process, again if it has ended.

        Raises:
            OSError: there is no such program, or no room for it.
        """
        self._last_lines.clear()
        environment = {**self._environment, **self.spec.environment}
        self._life = _Life(self.spec.argv, environment, self._take)

    async def wait(self) -> int:
        """Wait until it ends, then end what it left in its session.

        Returns:
            Its exit status, or -N if signal N killed it.
        """
        return await self._started().wait()

    def terminate(self) -> None:
        """Ask it to end."""
        self._started().send(signal.SIGTERM)

    def kill(self) -> None:
        """End it, with everything that it started in its session."""
        self._started().kill()

    @property
    def last_words(self) -> str:
        """The last lines that it wrote in this life; empty if none."""
        return b"".join(self._last_lines).decode(errors="replace")

    def _take(self, lines: list[bytes]) -> None:
        self._last_lines.extend(lines)
        if not self.spec.is_quiet:
            self._sink(b"".join(lines))

    def _started(self) -> "_Life":
        if self._life is None:
            raise RuntimeError(f"{self.spec.name} was never started")
        return self._life


class _Life:
    """One run of a process, from its start to its end."""

    def __init__(
        self,
        argv: tuple[str, ...],
        environment: Mapping[str, str],
        take: Callable[[list[bytes]], None],
    ) -> None:
        self._take = take
        self._rest = b""
        self._ended = asyncio.Event()
        self._fell_silent = asyncio.Event()
        self._output, written_to = os.pipe()
        try:
            self._process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=written_to,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            os.close(self._output)
            raise
        finally:
            os.close(written_to)
        # A pidfd becomes readable when its process ends.
        self._handle = os.pidfd_open(self._process.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._handle, self._ended.set)
        loop.add_reader(self._output, self._read)

    async def wait(self) -> int:
        """Wait for the end, and close what this life held open."""
        loop = asyncio.get_running_loop()
        await self._ended.wait()
        loop.remove_reader(self._handle)
        os.close(self._handle)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._fell_silent.wait()
        loop.remove_reader(self._output)
        os.close(self._output)
        return status

    def send(self, number: signal.Signals) -> None:
        """Send a signal; an ended process does not mind."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill its whole session, unless it has ended."""
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        """Pass whole lines on, so that two processes' lines never mix."""
        chunk = os.read(self._output, CHUNK_BYTES)
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._output)
            self._take([self._rest + b"\n"] if self._rest else [])
            self._fell_silent.set()
            return
        lines = (self._rest + chunk).splitlines(keepends=True)
        complete = lines[-1].endswith(b"\n") or len(lines[-1]) > CHUNK_BYTES
        self._rest = b"" if complete else lines.pop()
        self._take(lines)
