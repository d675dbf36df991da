"""Which traces go into which file, and when."""

from services.control.trace_book import CommonFile, IndexedFile, Page, TraceBook
from services.control.trace_settings import TraceLevel, TraceScope, TraceValues


def scope(session: int = 1, *, count: int = -1, log_frequency: int = 0) -> TraceScope:
    values = TraceValues(
        level=TraceLevel.TIMESTAMPS, rate=1, count=count, log_frequency=log_frequency
    )
    return TraceScope(values=values, session=session)


def book_of(*scopes: TraceScope) -> TraceBook:
    book = TraceBook()
    book.begin(scopes)
    return book


def traced(book: TraceBook, *names: str, router: str = "r") -> list[Page]:
    """Sample and end a request for each name, one after the other."""
    pages = []
    for name in names:
        book.sampled(router, 1)
        pages += book.ended(router, 1, (name,))
    return pages


def test_without_a_frequency_all_goes_into_one_file_at_the_end() -> None:
    book = book_of(scope())
    assert traced(book, "a", "b") == []
    assert book.close() == [CommonFile(("a", "b"))]
    assert book.close() == []


def test_a_file_with_an_index_holds_as_many_traces_as_the_frequency_says() -> None:
    book = book_of(scope(log_frequency=2))
    pages = traced(book, "a", "b", "c")
    assert pages == [IndexedFile(("a", "b"))]
    assert book.close() == [IndexedFile(("c",))]


def test_a_trace_of_several_records_is_one_trace() -> None:
    book = book_of(scope(log_frequency=1))
    book.sampled("r", 1)
    assert book.ended("r", 1, ("a", "b")) == [IndexedFile(("a", "b"))]


def test_the_last_of_a_count_is_written_at_once() -> None:
    book = book_of(scope(count=2))
    assert traced(book, "a", "b") == [IndexedFile(("a", "b"))]


def test_the_last_of_a_count_waits_for_those_that_are_still_under_way() -> None:
    book = book_of(scope(count=1))
    book.sampled("r", 1)
    book.sampled("other", 1)
    assert book.ended("r", 1, ("a",)) == []
    assert book.ended("other", 1, ("late",)) == [IndexedFile(("a",))]


def test_several_routers_together_never_exceed_the_count() -> None:
    book = book_of(scope(count=2))
    pages = [
        page
        for router, name in (("r", "a"), ("s", "b"), ("r", "c"))
        for page in traced(book, name, router=router)
    ]
    assert pages == [IndexedFile(("a", "b"))]


def test_a_router_that_left_is_not_waited_for() -> None:
    book = book_of(scope(count=1))
    book.sampled("gone", 1)
    traced(book, "a")
    assert book.lost("gone") == [IndexedFile(("a",))]


def test_a_session_that_is_over_is_written_when_its_last_trace_has_come() -> None:
    book = book_of(scope())
    book.sampled("r", 1)
    traced(book, "a")
    book.begin([scope(2)])
    assert book.retire([scope(2)]) == []
    assert book.ended("r", 1, ("b",)) == [CommonFile(("a", "b"))]
    assert book.ended("r", 1, ("later",)) == []
    assert book.close() == []


def test_a_session_that_goes_on_stays_open() -> None:
    book = book_of(scope(), scope(5))
    traced(book, "a")
    assert book.retire([scope(), scope(6)]) == []
    assert book.close() == [CommonFile(("a",))]


def test_a_session_that_nobody_knows_is_dropped() -> None:
    book = book_of(scope())
    book.sampled("r", 99)
    assert book.ended("r", 99, ("a",)) == []
    assert book.close() == []
