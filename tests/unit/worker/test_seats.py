"""Instances that one generation takes over from another."""

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from services.worker.backend import InstancePlace
from services.worker.outlet import Outlet
from services.worker.runs import StatefulRun, StreamedRun
from services.worker.seats import Seat, SeatKey, Seats, exclusive, seat_key
from tests.unit.worker.onnx_models import ADD_SUB, source
from tests.unit.worker.puppets import PuppetBackend

PLACE = InstancePlace(name="m_0_0", group=0)
OF = source(Path("/nowhere"))


def key() -> SeatKey:
    found = seat_key(OF, PLACE, "same")
    assert found is not None
    return found


def a_seat() -> Seat:
    return Seat(backend=PuppetBackend(), run=lambda _: b"", key=key())


def test_a_seat_is_free_when_its_last_user_has_left() -> None:
    seats, seat = Seats(), a_seat()
    seats.offer([seat])
    assert seats.take(key()) is seat
    assert seats.release([seat]) == []
    assert seats.release([seat]) == [seat.backend]
    assert seats.take(key()) is None


def test_what_is_on_its_way_out_is_not_taken_over() -> None:
    seats, seat = Seats(), a_seat()
    seats.offer([seat])
    seats.retire([seat])
    assert seats.take(key()) is None


def test_what_somebody_has_taken_over_stays_to_be_had() -> None:
    seats, seat = Seats(), a_seat()
    seats.offer([seat])
    seats.take(key())
    seats.retire([seat])
    assert seats.take(key()) is seat


def test_only_the_number_of_instances_may_differ() -> None:
    (group,) = ADD_SUB.instance_groups

    def changed(**fields: Any) -> SeatKey | None:  # noqa: ANN401
        other = dataclasses.replace(group, **fields)
        config = dataclasses.replace(ADD_SUB, instance_groups=(other,))
        return seat_key(source(Path("/nowhere"), config), PLACE, "same")

    assert changed(count=5) == key()
    assert changed(host_policy="numa") != key()
    assert seat_key(OF, PLACE, "other") != key()
    assert seat_key(OF, PLACE, "") is None


@pytest.mark.parametrize("is_streamed", [False, True])
def test_two_users_of_one_backend_take_turns(*, is_streamed: bool) -> None:
    meeting = threading.Barrier(2)
    met: list[bool] = []

    def run(_: bytes) -> bytes:
        try:
            meeting.wait(0.1)
        except threading.BrokenBarrierError:
            meeting.reset()
            met.append(False)
        else:
            met.append(True)
        return b""

    outlet = Outlet(0, send=lambda *_: None, close=lambda: None)
    shared = exclusive(StreamedRun(lambda message, _: run(message)))
    plain = exclusive(run)

    def use() -> None:
        if is_streamed:
            assert isinstance(shared, StreamedRun)
            shared.run(b"", outlet)
        else:
            assert not isinstance(plain, StreamedRun | StatefulRun)
            plain(b"")

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == [False, False]
