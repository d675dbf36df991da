"""One process of the stack: started, listened to, signalled."""

import asyncio
import contextlib
import os
import signal
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
    thread that forked, not of the process, to a child that asked for it.
    """

    def __init__(
        self, spec: ProcessSpec, *, environment: Mapping[str, str], sink: Sink
    ) -> None:
        self.spec = spec
        self.last_lines: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._environment = environment
        self._sink = sink
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process.

        Raises:
            OSError: there is no such program, or no room for it.
        """
        self.last_lines.clear()
        self._process = await asyncio.create_subprocess_exec(
            *self.spec.argv,
            env={**self._environment, **self.spec.environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )

    async def wait(self) -> int:
        """Hand its output on until it ends, then end what it left in its session.

        Returns:
            Its exit status, or -N if signal N killed it.
        """
        process = self._started()
        pump = asyncio.create_task(self._pump(process.stdout))
        status = await process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait({pump}, timeout=LAST_WORDS_S)
        pump.cancel()
        return status

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, with everything that it started in its session."""
        self._signal(signal.SIGKILL)

    @property
    def last_line(self) -> str:
        """The last that it wrote in this life; empty if nothing."""
        line = self.last_lines[-1] if self.last_lines else b""
        return line.decode(errors="replace").rstrip()

    async def _pump(self, stream: asyncio.StreamReader | None) -> None:
        """Pass whole lines on, so that two processes' lines never mix."""
        if stream is None:
            return
        rest = b""
        while chunk := await stream.read(CHUNK_BYTES):
            lines = (rest + chunk).splitlines(keepends=True)
            complete = lines[-1].endswith(b"\n") or len(lines[-1]) > CHUNK_BYTES
            rest = b"" if complete else lines.pop()
            self._pass_on(lines)
        self._pass_on([rest + b"\n"] if rest else [])

    def _pass_on(self, lines: list[bytes]) -> None:
        self.last_lines.extend(lines)
        if not self.spec.is_quiet:
            self._sink(b"".join(lines))

    def _signal(self, number: signal.Signals) -> None:
        process = self._started()
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError(f"{self.spec.name} was never started")
        return self._process
