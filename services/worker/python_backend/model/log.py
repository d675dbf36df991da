"""Logging and metrics of models."""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final

from services.worker.python_backend.model.errors import TritonModelException

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


class MetricFamily:
    """Metrics of one name, told apart by their labels."""

    COUNTER: Final = 0
    GAUGE: Final = 1
    HISTOGRAM: Final = 2

    def __init__(self, name: str, description: str, kind: int) -> None:
        """Name a family.

        Raises:
            TritonModelException: there is no such kind.
        """
        if kind not in (self.COUNTER, self.GAUGE, self.HISTOGRAM):
            raise TritonModelException(f"unknown metric kind {kind}")
        self.name = name
        self.description = description
        self.kind = kind

    def Metric(
        self,
        labels: dict[str, str] | None = None,
        buckets: Sequence[float] | None = None,
    ) -> "Metric":
        """Return a metric of this family.

        Raises:
            TritonModelException: a histogram without ascending buckets, or buckets
                without a histogram.
        """
        is_histogram = self.kind == self.HISTOGRAM
        if is_histogram and (
            not buckets or list(buckets) != sorted({float(b) for b in buckets})
        ):
            raise TritonModelException("a histogram needs buckets in ascending order")
        if buckets and not is_histogram:
            raise TritonModelException("only a histogram has buckets")
        return Metric(self, labels or {}, buckets or ())


class Metric:
    """One number that changes, or a histogram of many."""

    def __init__(
        self, family: MetricFamily, labels: dict[str, str], buckets: Sequence[float]
    ) -> None:
        """Begin at zero."""
        self._family = family
        self._lock = threading.Lock()
        self._value = 0.0
        self.labels = dict(labels)
        self.buckets = tuple(float(bound) for bound in buckets)
        self.counts = [0] * (len(self.buckets) + 1)

    def increment(self, value: float) -> None:
        """Add to a counter or a gauge; a counter only grows."""
        self._refuse(MetricFamily.HISTOGRAM, "increment")
        if self._family.kind == MetricFamily.COUNTER and value < 0:
            raise TritonModelException("a counter cannot be decreased")
        with self._lock:
            self._value += value

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._refuse(MetricFamily.HISTOGRAM, "set")
        self._refuse(MetricFamily.COUNTER, "set")
        with self._lock:
            self._value = float(value)

    def observe(self, value: float) -> None:
        """Add one observation to a histogram."""
        self._refuse(MetricFamily.COUNTER, "observe")
        self._refuse(MetricFamily.GAUGE, "observe")
        with self._lock:
            self._value += value
            self.counts[sum(value > bound for bound in self.buckets)] += 1

    def value(self) -> float:
        """Return the present value of a counter or a gauge."""
        self._refuse(MetricFamily.HISTOGRAM, "value")
        with self._lock:
            return self._value

    def _refuse(self, kind: int, operation: str) -> None:
        if self._family.kind == kind:
            names = {0: "COUNTER", 1: "GAUGE", 2: "HISTOGRAM"}
            raise TritonModelException(
                f"metric '{self._family.name}' is a {names[kind]}, which does not"
                f" support {operation}"
            )
