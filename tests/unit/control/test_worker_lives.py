"""Which worker was started again, and which only dialled again."""

import pytest

from services.control.model_registry import DeviceKind, Worker
from services.control.worker_lives import MOST_LOST, WorkerLives, from_text, to_text


def worker(name: str = "w", *, started_ms: int = 1, gpu: int | None = None) -> Worker:
    kind = DeviceKind.CPU if gpu is None else DeviceKind.GPU
    return Worker(
        worker_id=name,
        host="h",
        process_id=1,
        started_ms=started_ms,
        device=kind,
        device_index=gpu or 0,
    )


def test_another_stream_of_the_same_process_is_no_restart() -> None:
    lives = WorkerLives()
    assert not lives.joined(worker())
    lives.lost(worker())
    assert not lives.joined(worker())
    # It may dial before the end of its last stream is seen.
    assert not lives.joined(worker())


def test_another_process_of_the_same_id_is_a_restart_also_as_number_one() -> None:
    lives = WorkerLives()
    lives.joined(worker(started_ms=1))
    lives.lost(worker(started_ms=1))
    assert lives.joined(worker(started_ms=2))
    assert lives.joined(worker(started_ms=3))
    assert not lives.joined(worker(started_ms=3))


def test_a_new_id_on_the_device_of_a_lost_worker_is_a_restart_of_one() -> None:
    lives = WorkerLives()
    lives.joined(worker("a", gpu=0))
    lives.joined(worker("b", gpu=1))
    lives.lost(worker("a", gpu=0))
    lives.lost(worker("b", gpu=1))
    assert lives.joined(worker("c", gpu=1))
    assert not lives.joined(worker("d", gpu=1))
    assert not lives.joined(worker("e"))


def test_a_worker_beside_another_on_its_device_is_no_restart() -> None:
    lives = WorkerLives()
    lives.joined(worker("a"))
    assert not lives.joined(worker("b"))


def test_who_said_goodbye_is_not_restarted_but_stopped_and_started() -> None:
    lives = WorkerLives()
    lives.joined(worker(started_ms=1))
    lives.left(worker(started_ms=1))
    assert not lives.joined(worker(started_ms=2))


@pytest.mark.parametrize(("started_ms", "is_restart"), [(1, False), (2, True)])
def test_what_was_stored_tells_after_a_restart_of_control(
    started_ms: int, *, is_restart: bool
) -> None:
    before = WorkerLives()
    before.joined(worker(started_ms=1))
    lives = from_text(to_text(before))
    assert lives.joined(worker(started_ms=started_ms)) is is_restart


def test_workers_that_never_come_back_are_forgotten_the_oldest_first() -> None:
    lives = WorkerLives()
    for number in range(MOST_LOST + 2):
        lives.joined(worker(f"w{number}", gpu=number))
        lives.lost(worker(f"w{number}", gpu=number))
    assert len(lives.lives) == MOST_LOST
    assert not lives.joined(worker("w0", started_ms=9, gpu=0))
    assert lives.joined(worker("w9", started_ms=9, gpu=9))


@pytest.mark.parametrize("text", ["[]", "{", '{"w": 1}', '{"w": {}}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_text(text)
