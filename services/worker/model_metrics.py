"""What the models of this worker count themselves, on its way to control."""

import itertools
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

# How often control is told of one change after the other: what a killed worker counted
# since it last told is lost.
EVERY_S: Final = 0.2

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a source shows now.

    Attributes:
        source: Its number; none is used twice by one worker.
        model: Whose metrics they are.
        version: Of the model.
        families: All of them; () if the source is gone.
    """

    source: int
    model: str = ""
    version: int = 0
    families: Families = ()


Send: TypeAlias = Callable[[Shown], None]


class MetricsSource:
    """One instance's metrics, as long as it lives."""

    __slots__ = ("_board", "_model", "_number", "_read", "_version")

    def __init__(
        self,
        board: "ModelMetrics",
        number: int,
        read: Callable[[], Families],
        *,
        model: str,
        version: int,
    ) -> None:
        """Have ``board`` read the metrics whenever they have changed."""
        self._board = board
        self._number = number
        self._read = read
        self._model = model
        self._version = version

    def shown(self, *, is_gone: bool = False) -> Shown:
        """Return what there is to be told now."""
        return Shown(
            source=self._number,
            model=self._model,
            version=self._version,
            families=() if is_gone else self._read(),
        )

    def changed(self) -> None:
        """Have the metrics told; from any thread, never waits."""
        self._board.changed(self._number)

    def close(self) -> None:
        """Forget the metrics."""
        self._board.close(self._number)


class VersionMetrics:
    """Where the instances of one model version show what they count."""

    __slots__ = ("_board", "_model", "_version")

    def __init__(self, board: "ModelMetrics", model: str, version: int) -> None:
        """Have ``board`` tell of them."""
        self._board = board
        self._model = model
        self._version = version

    def open(self, read: Callable[[], Families]) -> MetricsSource:
        """Return a new source; ``read`` is called from another thread."""
        return self._board.open(read, model=self._model, version=self._version)


class ModelMetrics:
    """All sources of this worker.

    Of a change control is told at once, of the next ones a moment later together.
    """

    def __init__(self) -> None:
        """Begin without a source; ``start`` tells of them."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._sources: dict[int, MetricsSource] = {}
        self._farewells: dict[int, tuple[Shown, ...]] = {}
        self._changed: set[int] = set()
        self._telling = threading.Lock()
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def of(self, model: str, version: int) -> VersionMetrics:
        """Return where the instances of a version show what they count."""
        return VersionMetrics(self, model, version)

    def open(
        self, read: Callable[[], Families], *, model: str = "", version: int = 0
    ) -> MetricsSource:
        """Return a new source; ``read`` is called from another thread."""
        number = next(self._numbers)
        source = MetricsSource(self, number, read, model=model, version=version)
        with self._lock:
            self._sources[number] = source
        return source

    def changed(self, number: int) -> None:
        """Note that a source has something to tell."""
        self._changed.add(number)
        self._news.set()

    def close(self, number: int) -> None:
        """Forget a source; control is told its last, and that it is gone."""
        with self._lock:
            source = self._sources.pop(number, None)
            if source is None:
                return
            last = (source.shown(),) if number in self._changed else ()
            self._farewells[number] = (*last, source.shown(is_gone=True))
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
        with self._telling:
            self._news.clear()
            while self._changed:
                for shown in self._news_of(self._changed.pop()):
                    send(shown)

    def _news_of(self, number: int) -> tuple[Shown, ...]:
        with self._lock:
            source = self._sources.get(number)
            farewell = self._farewells.pop(number, ())
        return farewell if source is None else (source.shown(),)

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
