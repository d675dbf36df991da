"""Waiting before dialling again."""

from services.worker.backoff import Backoff


def test_delays_double_up_to_two_seconds() -> None:
    backoff = Backoff()
    delays = [backoff.after_failure() for _ in range(7)]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_success_begins_anew() -> None:
    backoff = Backoff()
    assert backoff.is_fresh
    backoff.after_failure()
    backoff.after_failure()
    backoff.reset()
    assert backoff.after_failure() == 0.1


def test_a_failure_is_remembered_until_the_next_success() -> None:
    backoff = Backoff()
    backoff.after_failure()
    assert not backoff.is_fresh
