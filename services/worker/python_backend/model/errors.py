"""Errors that models raise or return, and how they are told."""

import os
import traceback
from typing import Final

_OWN_CODE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH120, PTH100 - paths as tracebacks have them


class TritonModelException(Exception):
    """An error that a model, or a call made by it, reports."""


class TritonError:
    """Why a request failed; goes into an InferenceResponse.

    The codes are those of Triton's C interface.
    """

    UNKNOWN: Final = 0
    INTERNAL: Final = 1
    NOT_FOUND: Final = 2
    INVALID_ARG: Final = 3
    UNAVAILABLE: Final = 4
    UNSUPPORTED: Final = 5
    ALREADY_EXISTS: Final = 6
    CANCELLED: Final = 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        """Describe an error to the client."""
        self._message = str(message)
        self._code = int(code)

    def message(self) -> str:
        """Return the text for the client."""
        return self._message

    def code(self) -> int:
        """Return one of the class's codes."""
        return self._code

    def __repr__(self) -> str:
        """Show text and code."""
        return f"TritonError({self._message!r}, {self._code})"


# google.rpc.Code of each code of TritonError, and back.
RPC_CODES: Final = {0: 2, 1: 13, 2: 5, 3: 3, 4: 14, 5: 12, 6: 6, 7: 1}
TRITON_CODES: Final = {rpc: code for code, rpc in RPC_CODES.items()}


def describe(error: BaseException) -> str:
    """Return type, text and the model's frames, the innermost first.

    Source:
        What pybind11 makes of a Python exception, and Triton of that.
    """
    head = f"{type(error).__name__}: {error}"
    frames = [
        f"  {frame.filename}({frame.lineno}): {frame.name}\n"
        for frame in reversed(traceback.extract_tb(error.__traceback__))
        if not frame.filename.startswith(_OWN_CODE)
    ]
    return f"{head}\n\nAt:\n{''.join(frames)}" if frames else head
