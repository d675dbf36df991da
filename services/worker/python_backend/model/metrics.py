"""Metrics that a model keeps, and how the worker hears of them.

Source: the custom metrics of Triton's Python backend.
"""

import json
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from services.worker.python_backend.model.errors import TritonModelException

# How often the worker is told, at most.
_EVERY_S: Final = 0.2
_KINDS: Final = {0: "COUNTER", 1: "GAUGE", 2: "HISTOGRAM"}
# Of the text format of Prometheus.
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class MetricFamily:
    """Metrics of one name, told apart by their labels."""

    COUNTER: Final = 0
    GAUGE: Final = 1
    HISTOGRAM: Final = 2

    def __init__(self, name: str, description: str, kind: int) -> None:
        """Name a family.

        Raises:
            TritonModelException: there is no such kind, or the name is none that
                Prometheus takes.
        """
        if kind not in _KINDS:
            raise TritonModelException(f"unknown metric kind {kind}")
        if not _NAME.fullmatch(name):
            raise TritonModelException(f"'{name}' is no name of a metric family")
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
            TritonModelException: a histogram without ascending buckets, buckets
                without a histogram, or a label that Prometheus does not take.
        """
        is_histogram = self.kind == self.HISTOGRAM
        if is_histogram and (
            not buckets or list(buckets) != sorted({float(b) for b in buckets})
        ):
            raise TritonModelException("a histogram needs buckets in ascending order")
        if buckets and not is_histogram:
            raise TritonModelException("only a histogram has buckets")
        for label in labels or {}:
            if not _LABEL.fullmatch(label):
                raise TritonModelException(f"'{label}' is no name of a label")
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
        self.labels = {key: str(value) for key, value in labels.items()}
        self.buckets = tuple(float(bound) for bound in buckets)
        self.counts = [0] * (len(self.buckets) + 1)
        _everything.add(self)

    @property
    def family(self) -> MetricFamily:
        """The family that it belongs to."""
        return self._family

    def increment(self, value: float) -> None:
        """Add to a counter or a gauge; a counter only grows."""
        self._refuse(MetricFamily.HISTOGRAM, "increment")
        if self._family.kind == MetricFamily.COUNTER and value < 0:
            raise TritonModelException("a counter cannot be decreased")
        with self._lock:
            self._value += value
        _everything.changed()

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._refuse(MetricFamily.HISTOGRAM, "set")
        self._refuse(MetricFamily.COUNTER, "set")
        with self._lock:
            self._value = float(value)
        _everything.changed()

    def observe(self, value: float) -> None:
        """Add one observation to a histogram."""
        self._refuse(MetricFamily.COUNTER, "observe")
        self._refuse(MetricFamily.GAUGE, "observe")
        with self._lock:
            self._value += value
            self.counts[sum(value > bound for bound in self.buckets)] += 1
        _everything.changed()

    def value(self) -> float:
        """Return the present value of a counter or a gauge."""
        self._refuse(MetricFamily.HISTOGRAM, "value")
        with self._lock:
            return self._value

    def state(self) -> tuple[dict[str, str], float, tuple[float, ...], list[int]]:
        """Return labels, value or sum, bounds, and what each bucket holds alone."""
        with self._lock:
            return self.labels, self._value, self.buckets, list(self.counts)

    def _refuse(self, kind: int, operation: str) -> None:
        if self._family.kind == kind:
            raise TritonModelException(
                f"metric '{self._family.name}' is a {_KINDS[kind]}, which does not"
                f" support {operation}"
            )


class MetricsReporter:
    """Tells of all metrics of this process, of a change at once, then now and then."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        """Report through ``send``, which may raise OSError once nobody listens."""
        self._send = send
        self._news = threading.Event()
        self._sending = threading.RLock()
        self._pause = threading.Event()
        self._thread: threading.Thread | None = None

    def changed(self) -> None:
        """Have what has changed reported; from any thread, never waits."""
        if self._thread is None:
            self._start()
        self._news.set()

    def flush(self) -> None:
        """Report what has changed now."""
        with self._sending:
            if self._news.is_set():
                self._news.clear()
                self._send(snapshot())

    def _start(self) -> None:
        with self._sending:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="metrics", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._news.wait()
            try:
                self.flush()
            except OSError:
                return
            self._pause.wait(_EVERY_S)


class _Everything:
    """The metrics of this process that the model still has."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metrics: list[weakref.ref[Metric]] = []
        self.reporter: MetricsReporter | None = None

    def add(self, metric: Metric) -> None:
        with self._lock:
            self._metrics.append(weakref.ref(metric))
        weakref.finalize(metric, self.changed).atexit = False
        self.changed()

    def changed(self) -> None:
        if self.reporter is not None:
            self.reporter.changed()

    def living(self) -> list[Metric]:
        with self._lock:
            found = [(ref, ref()) for ref in self._metrics]
            self._metrics = [ref for ref, metric in found if metric is not None]
        return [metric for _, metric in found if metric is not None]


_everything = _Everything()


def report_to(reporter: MetricsReporter | None) -> None:
    """Have ``reporter``, or nobody, tell of all metrics from now on."""
    _everything.reporter = reporter


def snapshot() -> bytes:
    """Return all metrics as JSON: see ``services.worker.model_metrics``."""
    families: dict[tuple[str, int], dict[str, Any]] = {}
    for metric in _everything.living():
        family = metric.family
        entry = families.setdefault(
            (family.name, family.kind),
            {
                "name": family.name,
                "text": family.description,
                "kind": _KINDS[family.kind],
                "metrics": [],
            },
        )
        entry["metrics"].append(metric.state())
    return json.dumps(list(families.values())).encode()
