"""Metrics of models on their way from instances to control."""

import queue

from services.worker.control_client import metrics_to_proto
from services.worker.model_metrics import (
    Families,
    Metric,
    MetricFamily,
    ModelMetrics,
    Shown,
    families_from_json,
)

WAIT_S = 10
SHOWN = (
    MetricFamily(
        name="c", text="t", kind="COUNTER", metrics=(Metric(labels={}, value=2.0),)
    ),
)


class Told:
    """What control was told."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[tuple[int, Families]] = queue.SimpleQueue()

    def send(self, shown: Shown) -> None:
        self.queue.put((shown.source, shown.families))

    @property
    def everything(self) -> list[tuple[int, Families]]:
        return [self.queue.get() for _ in range(self.queue.qsize())]


def test_only_what_has_changed_is_told_and_once() -> None:
    metrics, told = ModelMetrics(), Told()
    one, two = metrics.open(lambda: SHOWN), metrics.open(lambda: ())
    one.changed()
    one.changed()
    metrics.tell(told.send)
    assert told.everything == [(1, SHOWN)]
    two.changed()
    metrics.tell(told.send)
    assert told.everything == [(2, ())]


def test_a_source_that_is_closed_is_told_to_have_nothing_once() -> None:
    metrics, told = ModelMetrics(), Told()
    source = metrics.open(lambda: SHOWN)
    source.close()
    source.close()
    metrics.tell(told.send)
    metrics.repeat()
    metrics.tell(told.send)
    assert told.everything == [(1, ())]


def test_what_a_source_had_at_its_end_is_told_before_it_is_gone() -> None:
    metrics, told = ModelMetrics(), Told()
    source = metrics.open(lambda: SHOWN)
    source.changed()
    source.close()
    metrics.tell(told.send)
    assert told.everything == [(1, SHOWN), (1, ())]


def test_what_an_instance_shows_is_its_versions() -> None:
    metrics = ModelMetrics()
    metrics.of("m", 3).open(lambda: SHOWN).changed()
    told: list[Shown] = []
    metrics.tell(told.append)
    assert told == [Shown(source=1, model="m", version=3, families=SHOWN)]


def test_a_control_that_is_back_is_told_everything() -> None:
    metrics, told = ModelMetrics(), Told()
    metrics.open(lambda: SHOWN)
    metrics.open(lambda: ())
    metrics.repeat()
    metrics.tell(told.send)
    assert sorted(told.everything) == [(1, SHOWN), (2, ())]


def test_a_first_change_is_told_at_once_and_the_last_at_the_end() -> None:
    metrics, told = ModelMetrics(), Told()
    metrics.start(told.send)
    source = metrics.open(lambda: SHOWN)
    source.changed()
    assert told.queue.get(timeout=WAIT_S) == (1, SHOWN)
    source.close()
    metrics.stop()
    assert told.everything == [(1, ())]


def test_what_a_process_tells_reaches_control_as_it_is() -> None:
    text = (
        b'[{"name": "h", "text": "t", "kind": "HISTOGRAM", "metrics":'
        b' [[{"a": "b"}, 4.5, [1.0, 2.0], [1, 0, 2]]]},'
        b' {"name": "g", "text": "", "kind": "GAUGE", "metrics": [[{}, 3.0, [], [0]]]}]'
    )
    shown = Shown(source=7, model="m", version=3, families=families_from_json(text))
    message = metrics_to_proto(shown)
    assert (message.model, message.version) == ("m", 3)
    histogram, gauge = message.family
    (metric,) = histogram.metric
    assert (message.source, histogram.name, histogram.kind) == (7, "h", 2)
    assert (dict(metric.labels), metric.value) == ({"a": "b"}, 4.5)
    assert (list(metric.bound), list(metric.count)) == ([1.0, 2.0], [1, 0, 2])
    assert (gauge.kind, gauge.metric[0].value, list(gauge.metric[0].count)) == (
        1,
        3.0,
        [],
    )
