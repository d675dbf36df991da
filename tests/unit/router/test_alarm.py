"""The alarm: one timer, set to the earliest time that was asked for."""

from services.router.alarm import Alarm
from tests.unit.router.stage import PuppetReactor


def test_it_rings_once_at_the_earliest_time() -> None:
    reactor, rung = PuppetReactor(), []
    alarm = Alarm(reactor, lambda: rung.append("!"))  # type: ignore[arg-type]
    for when_ns in (30, 10, 20):
        alarm.ring_at(when_ns)
    reactor.fire(9)
    assert rung == []
    reactor.fire(10)
    assert rung == ["!"]
    reactor.fire()
    assert rung == ["!"]


def test_it_can_be_set_again_while_it_rings() -> None:
    reactor, rung = PuppetReactor(), []

    def ring() -> None:
        rung.append("!")
        if len(rung) == 1:
            alarm.ring_at(20)

    alarm = Alarm(reactor, ring)  # type: ignore[arg-type]
    alarm.ring_at(10)
    reactor.fire(10)
    reactor.fire(20)
    assert rung == ["!", "!"]
