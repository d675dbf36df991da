"""Coroutines that send to slow readers wait at their next ``await``.

A response sender is no coroutine: where it is called in an event loop it cannot wait
without stopping the loop. So whoever called it goes on from where it gives the loop
free only when the reader has caught up.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Final
from weakref import WeakKeyDictionary

from services.worker.python_backend.model.room import Room

# What the tasks of any loop have to wait for; each loop's thread has tasks of its own.
_owed: Final[WeakKeyDictionary[asyncio.Task[Any], list[Room]]] = WeakKeyDictionary()


def is_in_loop() -> bool:
    """Return whether the calling thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def owe(room: Room) -> None:
    """Have the task that is running wait for room when it next awaits anything."""
    task = asyncio.current_task()
    if task is not None:
        _owed.setdefault(task, []).append(room)


def pace_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Have all tasks that ``loop`` runs from now on wait for what they owe."""
    loop.set_task_factory(
        lambda of, coroutine, **options: asyncio.Task(
            _paced(coroutine), loop=of, **options
        )
    )


async def _paced(coroutine: Any) -> Any:  # noqa: ANN401 - of a model
    return await _Paced(coroutine)


class _Paced:
    """A coroutine between whose steps it is waited."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            try:
                if error is None:
                    awaited = self._coroutine.send(None)
                else:
                    awaited = self._coroutine.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            try:
                yield awaited
                yield from _settle().__await__()
            except BaseException as raised:  # noqa: BLE001 - the coroutine's to take
                error = raised


async def _settle() -> None:
    """Wait for all that the running task owes."""
    task = asyncio.current_task()
    for room in _owed.pop(task, ()) if task is not None else ():
        await room.come()
