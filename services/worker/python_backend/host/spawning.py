"""Starts processes from a thread that lives as long as this process.

The kernel reports the death of the thread that forked, not of the process, to a
child that asked for it: a model's process that was started by a thread that loads
models would be killed when that thread ends.
"""

import queue
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

_Order = tuple[Callable[[], "subprocess.Popen[bytes]"], "Future[Any]"]

_orders: Final["queue.SimpleQueue[_Order]"] = queue.SimpleQueue()
_starting = threading.Lock()
_threads: Final[list[threading.Thread]] = []


def spawn(start: Callable[[], "subprocess.Popen[bytes]"]) -> "subprocess.Popen[bytes]":
    """Call ``start`` in the thread that never ends, and return what it returns.

    Raises:
        OSError: as ``start`` does.
    """
    with _starting:
        if not _threads:
            thread = threading.Thread(target=_serve, name="spawning", daemon=True)
            _threads.append(thread)
            thread.start()
    future: Future[subprocess.Popen[bytes]] = Future()
    _orders.put((start, future))
    return future.result()


def _serve() -> None:
    while True:
        start, future = _orders.get()
        try:
            future.set_result(start())
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            future.set_exception(error)
