"""Whether a slow reader has room for another answer."""

import asyncio
import contextlib
import threading
from collections.abc import Callable


class Room:
    """There is some until it is taken away; for any thread."""

    __slots__ = ("_callbacks", "_changed", "_is_over", "_is_there")

    def __init__(self) -> None:
        """Begin with room."""
        self._changed = threading.Condition()
        self._is_there = True
        self._is_over = False
        self._callbacks: list[Callable[[], None]] = []

    def take_away(self) -> None:
        """Have those wait who come from now on; nobody once ``end`` was called."""
        with self._changed:
            self._is_there = self._is_over

    def give(self) -> None:
        """Let those go on who wait."""
        with self._changed:
            self._is_there = True
            self._changed.notify_all()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def end(self) -> None:
        """Let everybody go on, for ever."""
        with self._changed:
            self._is_over = True
        self.give()

    def wait(self) -> None:
        """Return when there is room."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_there)

    async def come(self) -> None:
        """Return when there is room, without blocking the loop."""
        loop = asyncio.get_running_loop()
        while True:
            came = asyncio.Event()

            def tell(came: asyncio.Event = came) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(came.set)

            with self._changed:
                if self._is_there:
                    return
                self._callbacks.append(tell)
            await came.wait()
