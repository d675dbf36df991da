"""A model says itself whether it is ready: its ``is_ready``, called when asked."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from services.worker.python_backend.model.coroutines import Coroutines
from services.worker.python_backend.model.errors import describe
from services.worker.python_backend.model.log import Logger


class Readiness:
    """Asks one model, apart from its executions: these may take long."""

    def __init__(self, model: Any, tell: Callable[[bool], None]) -> None:  # noqa: ANN401 - a TritonPythonModel
        """Prepare.

        Args:
            model: Initialized.
            tell: Is told each answer, from another thread.
        """
        self._model = model
        self._tell = tell
        self._coroutines = Coroutines()

    def check(self) -> None:
        """Begin to ask; who asks waits for the answer before asking again."""
        threading.Thread(target=self._check, name="readiness", daemon=True).start()

    def _check(self) -> None:
        self._tell(self._is_ready())

    def _is_ready(self) -> bool:
        """Return what the model says; False if it says nothing that can be used.

        Source:
            Triton's Python backend: an error, or what is no bool, is "not ready".
        """
        try:
            answer = self._model.is_ready()
            if asyncio.iscoroutine(answer):
                answer = self._coroutines.start(answer).result()
            if not isinstance(answer, bool):
                raise TypeError("is_ready() must return a boolean value")  # noqa: TRY301 - as an error of the model's
        except BaseException as error:  # noqa: BLE001 - SystemExit as well
            Logger.log_error(f"is_ready failed: {describe(error)}")
            return False
        return answer
