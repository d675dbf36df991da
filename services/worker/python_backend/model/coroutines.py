"""The event loop of models that are written with ``async``."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from services.worker.python_backend.model.pacing import pace_tasks


class Coroutines:
    """Runs coroutines in one loop with a thread of its own, begun when needed."""

    def __init__(self) -> None:
        """Begin without a thread."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, coroutine: "Coroutine[Any, Any, Any]") -> "Future[Any]":
        """Begin ``coroutine`` and return where its result will be."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            pace_tasks(self._loop)
            threading.Thread(
                target=self._loop.run_forever, name="coroutines", daemon=True
            ).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
