"""One of so many requests is traced, whichever routers they go through."""

from services.control.shared_rate import Move, Progress, SharedRate


def progress(counted: int, moves: int = 0, session: int = 1) -> Progress:
    return Progress(session=session, counted=counted, moves=moves)


def move(router: str, by: int, session: int = 1) -> Move:
    return Move(router=router, session=session, by=by)


def test_a_single_router_counts_for_itself() -> None:
    rate = SharedRate()
    assert rate.told("a", progress(9), 10) == ()
    assert rate.told("a", progress(2), 10) == ()


def test_what_is_enough_for_a_trace_together_is_moved_to_who_tells_last() -> None:
    rate = SharedRate()
    assert rate.told("a", progress(4), 10) == ()
    assert rate.told("b", progress(3), 10) == ()
    assert rate.told("c", progress(5), 10) == (
        move("c", 5),
        move("a", -4),
        move("b", -1),
    )


def test_nobody_is_moved_again_before_he_has_told_of_it() -> None:
    rate = SharedRate()
    rate.told("a", progress(6), 10)
    assert rate.told("b", progress(6), 10) == (move("b", 4), move("a", -4))
    assert rate.told("a", progress(7), 10) == ()
    assert rate.told("b", progress(8), 10) == ()
    assert rate.told("a", progress(3, moves=1), 10) == ()
    assert rate.told("b", progress(9, moves=1), 10) == (move("b", 1), move("a", -1))


def test_each_session_counts_for_itself() -> None:
    rate = SharedRate()
    rate.told("a", progress(6, session=1), 10)
    assert rate.told("b", progress(6, session=2), 10) == ()


def test_a_router_that_has_left_is_not_asked() -> None:
    rate = SharedRate()
    rate.told("a", progress(6), 10)
    rate.forget("a")
    assert rate.told("b", progress(6), 10) == ()


def test_new_settings_begin_the_moves_anew() -> None:
    rate = SharedRate()
    rate.told("a", progress(6), 10)
    rate.told("b", progress(6), 10)
    rate.keep([1])
    rate.told("a", progress(3), 10)
    assert rate.told("b", progress(8), 10) == (move("b", 2), move("a", -2))


def test_who_has_enough_himself_gets_nothing() -> None:
    rate = SharedRate()
    rate.told("a", progress(6), 10)
    assert rate.told("b", progress(10), 10) == ()
