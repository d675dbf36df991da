"""How far sampling has come: told to control, and changed by it."""

from collections.abc import Callable

from protos import control_pb2
from services.router.trace_progress import TELL_EVERY_NS, TraceProgress
from services.router.trace_sampler import TraceSampler, TraceScope, TraceSettings


class Router:
    """A sampler, what it tells control, and a clock."""

    def __init__(self, *, rate: int = 3) -> None:
        self.sampler = TraceSampler()
        self.sent: list[control_pb2.RouterReport] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.progress = TraceProgress(
            self.sampler,
            self.sent.append,
            lambda at_ns, callback: self.timers.append((at_ns, callback)),
            lambda: 0,
        )
        self.follow(rate)

    def follow(self, rate: int, session: int = 1) -> None:
        scope = TraceScope(session=session, rate=rate)
        self.sampler.follow(TraceSettings(overall=scope))
        self.progress.settings_came()

    def told(self) -> list[tuple[int, int, int]]:
        """Let the time come, and return what control heard."""
        ((at_ns, callback),) = self.timers
        assert at_ns == TELL_EVERY_NS
        self.timers.clear()
        callback()
        sent, self.sent[:] = list(self.sent), []
        return [
            (each.session, each.counted, each.moves)
            for report in sent
            for each in report.trace_report.progress
        ]

    def infer(self, count: int = 1) -> int:
        """Return how many of so many requests were sampled."""
        return sum(self.sampler.sample("m") is not None for _ in range(count))

    def move(self, by: int, session: int = 1) -> None:
        self.progress.obey(control_pb2.TraceMove(session=session, by=by))


def test_control_hears_of_what_has_changed_only() -> None:
    router = Router()
    assert router.told() == [(1, 0, 0)]
    assert router.told() == []
    router.infer(2)
    assert router.told() == [(1, 2, 0)]
    router.infer(2)
    assert router.told() == [(1, 1, 0)]


def test_where_every_request_is_traced_there_is_nothing_to_tell() -> None:
    router = Router(rate=1)
    assert router.timers == []
    router.follow(5, session=2)
    router.follow(5, session=2)
    assert len(router.timers) == 1
    router.follow(0, session=3)
    assert router.told() == []
    assert router.timers == []


def test_what_is_moved_here_counts_and_what_is_moved_away_does_not() -> None:
    router = Router()
    router.infer(1)
    router.move(2)
    assert router.told() == [(1, 3, 1)]
    assert router.infer(1) == 1
    assert router.told() == [(1, 1, 1)]
    router.move(-2)
    assert router.told() == [(1, -1, 2)]
    assert [router.infer() for _ in range(4)] == [0, 0, 0, 1]


def test_a_move_of_former_settings_is_void() -> None:
    router = Router()
    router.follow(3, session=2)
    router.move(2, session=1)
    assert router.told() == [(2, 0, 0)]


def test_new_settings_of_a_session_that_goes_on_forget_moves_and_tell_all() -> None:
    router = Router()
    router.infer(1)
    router.move(1)
    assert router.told() == [(1, 2, 1)]
    router.follow(3)
    assert router.told() == [(1, 2, 0)]
