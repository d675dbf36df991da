"""What a router counted arrives at control exactly once, whatever breaks.

Control is a puppet that applies a report only if its number is new.
"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from protos import control_pb2
from services.router.response_cache import ResponseCache
from services.router.statistics_ledger import StatisticsLedger
from services.router.statistics_reporter import (
    MOST_UNACKNOWLEDGED,
    StatisticsReporter,
)


class PuppetControl:
    """Holds what is sent on a stream, until told to take it or to lose it."""

    def __init__(self) -> None:
        self.ledger = StatisticsLedger()
        self.waiting: dict[tuple[str, int], int] = {}
        self.sent: list[control_pb2.StatisticsReport] = []
        self.has_stream = True
        self.total: Counter[str] = Counter()
        self.last_sequence = 0
        self.reporter = StatisticsReporter(
            self.ledger, lambda: dict(self.waiting), self._send
        )

    def _send(self, report: control_pb2.RouterReport) -> bool:
        if self.has_stream:
            copy = control_pb2.StatisticsReport()
            copy.CopyFrom(report.statistics)
            self.sent.append(copy)
        return self.has_stream

    def count(self, failures: int = 1) -> None:
        for _ in range(failures):
            self.ledger.of("m", 1).failed(5)

    def take(self, *, acknowledge: bool = True) -> None:
        sent, self.sent = self.sent, []
        for report in sent:
            if report.sequence > self.last_sequence:
                self.last_sequence = report.sequence
                for version in report.versions:
                    self.total.update(dict(version.increments))
        if acknowledge:
            self.reporter.applied(self.last_sequence)

    def lose_stream(self) -> None:
        self.sent = []
        self.has_stream = False

    def dial(self) -> None:
        self.has_stream = True
        self.reporter.connected()


def test_nothing_new_is_no_report() -> None:
    control = PuppetControl()
    control.reporter.tick(0)
    assert control.sent == []
    assert control.reporter.is_settled


def test_what_was_counted_is_reported_with_a_number_and_kept_until_it_is_safe() -> None:
    control = PuppetControl()
    control.count(2)
    control.reporter.tick(0)
    (report,) = control.sent
    assert (report.sequence, report.collection) == (1, 0)
    assert (report.versions[0].model, report.versions[0].version) == ("m", 1)
    assert report.versions[0].increments["fail.count"] == 2
    assert not control.reporter.is_settled
    control.take()
    assert control.reporter.is_settled


def test_reports_go_on_while_earlier_ones_are_not_safe_up_to_a_bound() -> None:
    control = PuppetControl()
    for _ in range(MOST_UNACKNOWLEDGED + 5):
        control.count()
        control.reporter.tick(0)
    assert [report.sequence for report in control.sent] == [
        *range(1, MOST_UNACKNOWLEDGED + 1)
    ]
    control.take()
    control.reporter.tick(0)
    (report,) = control.sent
    assert report.versions[0].increments["fail.count"] == 5


def test_without_a_stream_counters_grow_and_no_reports_pile_up() -> None:
    control = PuppetControl()
    control.lose_stream()
    for _ in range(3):
        control.count()
        control.reporter.tick(0)
    control.dial()
    control.reporter.tick(0)
    assert [report.sequence for report in control.sent] == [1, 2]
    control.take()
    assert control.total["fail.count"] == 3


def test_a_reader_gets_everything_at_once_and_an_answer_even_to_nothing() -> None:
    control = PuppetControl()
    control.count()
    control.reporter.tick(0)
    control.count()
    control.reporter.collect(7)
    control.reporter.collect(8)
    assert [(r.sequence, r.collection) for r in control.sent] == [
        *((1, 0), (2, 7), (0, 8))
    ]


def test_an_acknowledgement_that_was_lost_counts_nothing_twice() -> None:
    control = PuppetControl()
    control.count()
    control.reporter.tick(0)
    control.take(acknowledge=False)
    control.lose_stream()
    control.count()
    control.reporter.tick(0)
    control.dial()
    control.take()
    control.reporter.tick(0)
    control.take()
    assert control.total["fail.count"] == 2
    assert control.reporter.is_settled


def test_waiting_requests_are_told_when_they_change_also_beside_a_report() -> None:
    control = PuppetControl()
    control.waiting["m", 1] = 3
    control.reporter.tick(0)
    control.reporter.tick(0)
    assert [report.waiting[0].count for report in control.sent] == [3]
    control.count()
    control.reporter.tick(0)
    control.waiting.clear()
    control.reporter.tick(0)
    assert [len(report.waiting) for report in control.sent] == [1, 1, 0]
    assert control.sent[-1].sequence == 0


def test_a_new_stream_learns_who_waits() -> None:
    control = PuppetControl()
    control.waiting["m", 1] = 3
    control.reporter.tick(0)
    control.lose_stream()
    control.dial()
    control.reporter.tick(0)
    assert [report.waiting[0].count for report in control.sent] == [3]


def test_the_worst_delay_since_the_last_report_is_told() -> None:
    control = PuppetControl()
    for late_ns in (5, 90, 7):
        control.reporter.tick(late_ns)
    control.count()
    control.reporter.tick(1)
    control.reporter.collect(1)
    assert [report.loop_lag_ns for report in control.sent] == [90, 0]


def test_distributions_are_counted_and_reported_only_if_wanted() -> None:
    control = PuppetControl()
    counted = control.ledger.of("m", 1)
    control.ledger.distribute(is_wanted=True)
    assert control.ledger.of("later", 1).latencies is not None
    assert counted.latencies is not None
    counted.took(counted.latencies, [(1, 2)], (3, 4, 5))
    counted.retried(1)
    control.reporter.tick(0)
    latencies = control.sent[0].versions[0].latencies
    assert {each.phase: dict(each.counts) for each in latencies} == {
        "success": {2: 1},
        "queue": {1: 1},
        "compute_input": {3: 1},
        "compute_infer": {4: 1},
        "compute_output": {5: 1},
    }
    control.ledger.distribute(is_wanted=False)
    assert counted.latencies is None


def test_a_router_with_a_cache_tells_its_state() -> None:
    cache = ResponseCache(1000)
    sent: list[control_pb2.StatisticsReport] = []

    def send(report: control_pb2.RouterReport) -> bool:
        sent.append(report.statistics)
        return True

    reporter = StatisticsReporter(StatisticsLedger(), dict, send, cache)
    cache.find(b"key", b"")
    cache.insert(b"key", b"")
    cache.lookup_ns = 7
    reporter.collect(1)
    (report,) = sent
    assert (report.cache.misses, report.cache.entries) == (1, 1)
    assert (report.cache.capacity_bytes, report.cache.lookup_ns) == (1000, 7)
    assert report.cache.size_bytes == cache.size_bytes > 0


EVENTS = st.lists(
    st.sampled_from(
        ["count", "tick", "collect", "take", "take silently", "lose", "dial"]
    )
)


@given(EVENTS)
def test_whatever_is_lost_every_count_arrives_once(events: list[str]) -> None:
    control = PuppetControl()
    for number, event in enumerate(events, start=1):
        match event:
            case "count":
                control.count()
            case "tick":
                control.reporter.tick(0)
            case "collect":
                control.reporter.collect(number)
            case "take":
                control.take()
            case "take silently":
                control.take(acknowledge=False)
            case "lose":
                control.lose_stream()
            case _:
                control.dial()
    control.lose_stream()
    control.dial()
    control.take()
    control.reporter.tick(0)
    control.take()
    assert control.total["fail.count"] == events.count("count")
    assert control.reporter.is_settled
