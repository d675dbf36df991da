"""What the models of this worker count themselves, on its way to control."""

import itertools
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

# How often control is told of one change after the other.
EVERY_S: Final = 1.0

Kind: TypeAlias = Literal["COUNTER", "GAUGE", "HISTOGRAM"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One series.

    Attributes:
        labels: By name.
        value: Of a histogram, the sum of all observations.
        bounds: Upper bounds of a histogram's buckets, ascending, without infinity.
        counts: What each bucket holds alone; one more than ``bounds``.
    """

    labels: Mapping[str, str]
    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """Series of one name."""

    name: str
    text: str
    kind: Kind
    metrics: tuple[Metric, ...]


Families: TypeAlias = tuple[MetricFamily, ...]
Send: TypeAlias = Callable[[int, Families], None]


class MetricsSource:
    """One instance's metrics, as long as it lives."""

    __slots__ = ("_board", "_number", "read")

    def __init__(
        self, board: "ModelMetrics", number: int, read: Callable[[], Families]
    ) -> None:
        """Have ``board`` read the metrics whenever they have changed."""
        self._board = board
        self._number = number
        self.read = read

    def changed(self) -> None:
        """Have the metrics told; from any thread, never waits."""
        self._board.changed(self._number)

    def close(self) -> None:
        """Forget the metrics."""
        self._board.close(self._number)


class ModelMetrics:
    """All sources of this worker.

    Of a change control is told at once, of the next ones a second later together.
    """

    def __init__(self) -> None:
        """Begin without a source; ``start`` tells of them."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._sources: dict[int, MetricsSource] = {}
        self._changed: set[int] = set()
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, read: Callable[[], Families]) -> MetricsSource:
        """Return a new source; ``read`` is called from another thread."""
        number = next(self._numbers)
        source = MetricsSource(self, number, read)
        with self._lock:
            self._sources[number] = source
        return source

    def changed(self, number: int) -> None:
        """Note that a source has something to tell."""
        self._changed.add(number)
        self._news.set()

    def close(self, number: int) -> None:
        """Forget a source; control is told that it has nothing any more."""
        with self._lock:
            if self._sources.pop(number, None) is None:
                return
        self.changed(number)

    def repeat(self) -> None:
        """Have everything told anew: control may have forgotten."""
        with self._lock:
            self._changed.update(self._sources)
        self._news.set()

    def start(self, send: Send) -> None:
        """Tell through ``send``, in a thread of its own."""
        self._thread = threading.Thread(
            target=self._run, args=(send,), name="metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Tell the last, and no more."""
        self._stopping.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join()

    def tell(self, send: Send) -> None:
        """Tell what has changed now."""
        self._news.clear()
        while self._changed:
            number = self._changed.pop()
            with self._lock:
                source = self._sources.get(number)
            send(number, source.read() if source is not None else ())

    def _run(self, send: Send) -> None:
        while not self._stopping.is_set():
            self._news.wait()
            self.tell(send)
            self._stopping.wait(EVERY_S)
        self.tell(send)


def families_from_json(text: bytes) -> Families:
    """Return what a model's process tells of its metrics.

    Args:
        text: A list of families, each with ``name``, ``text``, ``kind`` and
            ``metrics``; of these each is labels, value, bounds and counts.
    """
    return tuple(
        MetricFamily(
            name=family["name"],
            text=family["text"],
            kind=family["kind"],
            metrics=tuple(
                Metric(
                    labels=labels,
                    value=value,
                    bounds=tuple(bounds),
                    counts=tuple(counts) if bounds else (),
                )
                for labels, value, bounds, counts in family["metrics"]
            ),
        )
        for family in json.loads(text)
    )
