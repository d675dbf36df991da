"""The log of models."""

import sys
from collections.abc import Callable
from typing import Final

_LEVELS: Final = ("INFO", "WARNING", "ERROR", "VERBOSE")


def _print(level: int, message: str) -> None:
    sys.stderr.write(f"{_LEVELS[level]}: {message}\n")


class LogLevel:
    """How much a message matters."""

    INFO: Final = 0
    WARNING: Final = 1
    ERROR: Final = 2
    VERBOSE: Final = 3


class Logger:
    """Writes to the server's log; called on the class."""

    INFO: Final = LogLevel.INFO
    WARNING: Final = LogLevel.WARNING
    ERROR: Final = LogLevel.ERROR
    VERBOSE: Final = LogLevel.VERBOSE

    write: Callable[[int, str], None] = staticmethod(_print)

    @classmethod
    def log(cls, message: str, level: int = LogLevel.INFO) -> None:
        """Log ``message``."""
        cls.write(level, str(message))

    @classmethod
    def log_info(cls, message: str) -> None:
        """Log what is good to know."""
        cls.log(message, LogLevel.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """Log what should be looked at."""
        cls.log(message, LogLevel.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """Log what went wrong."""
        cls.log(message, LogLevel.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """Log what only a developer wants to know."""
        cls.log(message, LogLevel.VERBOSE)
