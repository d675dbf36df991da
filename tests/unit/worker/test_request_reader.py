"""Finding tensors in a request's bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import inference_pb2
from services.core.errors import InvalidRequestError
from services.worker import request_reader, wire
from services.worker.layout import ParsedRequest
from services.worker.request_reader import Request, RequestReader
from tests.unit.worker.messages import ints, reader, request, signature, tensor

A = ints(1, 2, 3, 4)
B = ints(5, 6, 7, 8)


def read(one: RequestReader, message: inference_pb2.ModelInferRequest) -> Request:
    data = message.SerializeToString()
    return one.read(data, 0, len(data))


def contents(found: Request) -> list[bytes]:
    return [bytes(found.source[start:end]) for start, end in found.spans]


class CountingParser:
    """The real parser; counts the headers it had to read."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, message: bytes) -> ParsedRequest:
        parsed = wire.parse_request(message)
        self.calls += bool(parsed.inputs)
        return parsed


def counted() -> tuple[RequestReader, CountingParser]:
    parser = CountingParser()
    return RequestReader(signature(), parser, wire.canonical_request), parser


def test_the_tensors_are_found_in_the_order_of_the_request() -> None:
    found = read(reader(signature()), request({"B": B, "A": A}, request_id="x"))
    assert [tensor.index for tensor in found.layout.inputs] == [1, 0]
    assert contents(found) == [B.tobytes(), A.tobytes()]
    assert found.id_field == b"\x1a\x01x"


def test_an_equal_header_is_parsed_once_whatever_the_id_and_the_contents() -> None:
    one, parser = counted()
    for number in range(3):
        message = request({"A": A + number, "B": B}, request_id="x" * number)
        found = read(one, message)
        assert contents(found) == [(A + number).tobytes(), B.tobytes()]
    assert parser.calls == 1


def test_headers_seen_in_turn_are_both_remembered() -> None:
    one, parser = counted()
    two_rows = request({"A": ints(1, 2, 3, 4, rows=2), "B": ints(0, 0, 0, 0, rows=2)})
    for _ in range(3):
        assert read(one, request({"A": A, "B": B})).layout.rows == 1
        assert read(one, two_rows).layout.rows == 2
    assert parser.calls == 2


def test_a_header_that_begins_like_a_learned_one_is_read_anew() -> None:
    one, _ = counted()
    assert read(one, request({"A": A, "B": B})).layout.outputs == (0, 1)
    asked = request({"A": A, "B": B}, outputs=["DIFF"])
    assert read(one, asked).layout.outputs == (1,)


def test_a_version_after_requests_without_one_is_skipped() -> None:
    one, parser = counted()
    read(one, request({"A": A, "B": B}, request_id="1"))
    found = read(one, request({"A": A, "B": B}, request_id="2", version="3"))
    assert found.id_field == b"\x1a\x012"
    assert parser.calls == 1


def test_fields_in_another_order_are_understood() -> None:
    message = request({"A": A, "B": B}, request_id="late")
    parts = []
    for name in ("raw_input_contents", "inputs", "id", "model_name"):
        part = inference_pb2.ModelInferRequest()
        value = getattr(message, name)
        if isinstance(value, str):
            setattr(part, name, value)
        else:
            getattr(part, name).extend(value)
        parts.append(part.SerializeToString())
    data = b"".join(parts)
    found = reader(signature()).read(data, 0, len(data))
    assert contents(found) == [A.tobytes(), B.tobytes()]
    assert found.id_field == b"\x1a\x04late"


def test_an_unknown_field_does_not_disturb() -> None:
    data = request({"A": A, "B": B}).SerializeToString() + b"\xfa\x01\x01!"
    found = reader(signature()).read(data, 0, len(data))
    assert contents(found) == [A.tobytes(), B.tobytes()]


@pytest.mark.parametrize("size", [127, 128, 300])
def test_an_id_may_be_longer_than_one_length_byte_tells(size: int) -> None:
    found = read(reader(signature()), request({"A": A, "B": B}, request_id="i" * size))
    assert found.id_field.endswith(b"i" * size)
    assert contents(found) == [A.tobytes(), B.tobytes()]


def test_a_request_is_found_between_its_neighbours() -> None:
    data = request({"A": A, "B": B}).SerializeToString()
    one = reader(signature())
    one.read(data, 0, len(data))
    found = one.read(b"\x12\x7f" + data + data, 2, 2 + len(data))
    assert contents(found) == [A.tobytes(), B.tobytes()]


def test_outputs_asked_twice_are_answered_once_in_the_models_order() -> None:
    asked = request({"A": A, "B": B}, outputs=["DIFF", "SUM", "DIFF"])
    assert read(reader(signature()), asked).layout.outputs == (0, 1)


def test_an_optional_input_may_be_missing() -> None:
    of = signature([tensor("A"), tensor("B", optional=True)])
    assert contents(read(reader(of), request({"A": A}))) == [A.tobytes()]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (request({"A": A}), "input 'B' is given 0 times"),
        (request({"A": A, "B": B, "C": B}), "unexpected inference input 'C'"),
        (request({"A": A, "B": B}, outputs=["NO"]), "unexpected inference output 'NO'"),
        (request({"A": A, "B": B.astype(np.int64)}), "input 'B' is INT64"),
        (request({"A": A, "B": B[0]}), r"input 'B' has shape \[4\]"),
        (request({"A": A, "B": np.array(7, np.int32)}), r"input 'B' has shape \[\]"),
        (request({"A": A, "B": ints(1, 2, 3)}), r"input 'B' has shape \[1, 3\]"),
        (request({"A": A, "B": ints(1, 2, 3, 4, rows=2)}), "input 'B' has 2 rows"),
    ],
)
def test_a_request_that_contradicts_the_model_is_refused(
    message: inference_pb2.ModelInferRequest, text: str
) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        read(reader(signature()), message)


@pytest.mark.parametrize("is_learned", [False, True])
def test_contents_of_a_wrong_size_are_refused(is_learned: bool) -> None:
    one = reader(signature())
    if is_learned:
        read(one, request({"A": A, "B": B}))
    wrong = request({"A": A, "B": B})
    # As many bytes in all as a good request has, but not in these pieces.
    wrong.raw_input_contents[0] = A.tobytes()[:-1]
    wrong.raw_input_contents[1] = B.tobytes() + b"!"
    with pytest.raises(InvalidRequestError, match="raw contents"):
        read(one, wrong)
    wrong = request({"A": A, "B": B})
    wrong.raw_input_contents.append(b"!")
    with pytest.raises(InvalidRequestError, match="raw contents"):
        read(one, wrong)
    del wrong.raw_input_contents[1:]
    with pytest.raises(InvalidRequestError, match="raw contents"):
        read(one, wrong)


def test_a_negative_dimension_is_refused() -> None:
    wrong = request({"A": A, "B": B})
    wrong.inputs[0].shape[0] = -1
    with pytest.raises(InvalidRequestError, match=r"has shape \[-1, 4\]"):
        read(reader(signature()), wrong)


def test_no_more_than_the_limit_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "_MAX_LEARNED", 2)
    one, parser = counted()
    for number in (1, 2, 3, 3, 2, 1):
        read(one, request({"A": A, "B": B}, parameters={"k": str(number)}))
    assert parser.calls == 4


def test_an_id_that_is_not_utf8_is_refused_even_after_a_good_one() -> None:
    one = reader(signature())
    good = request({"A": A, "B": B}, request_id="ab").SerializeToString()
    one.read(good, 0, len(good))
    bad = good.replace(b"\x1a\x02ab", b"\x1a\x02\xff\xff")
    with pytest.raises(InvalidRequestError, match="no ModelInferRequest"):
        one.read(bad, 0, len(bad))


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_garbage_is_refused_never_worse(data: bytes) -> None:
    one = reader(signature())
    learned = request({"A": A, "B": B}, request_id="x").SerializeToString()
    one.read(learned, 0, len(learned))
    for message in (data, learned[: len(data)], learned + data, data + learned):
        try:
            found = one.read(message, 0, len(message))
        except InvalidRequestError:
            continue
        assert [len(content) for content in contents(found)] == [16, 16]


@settings(deadline=None)
@given(st.data())
def test_a_learned_header_gives_what_a_fresh_reader_gives(data: st.DataObject) -> None:
    learned = reader(signature())
    read(learned, request({"A": A, "B": B}, request_id="abc"))
    message = bytearray(request({"A": A, "B": B}, request_id="abc").SerializeToString())
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] = data.draw(st.integers(0, 255))
    changed = bytes(message)
    assert outcome(learned, changed) == outcome(reader(signature()), changed)


def outcome(one: RequestReader, message: bytes) -> object:
    try:
        found = one.read(message, 0, len(message))
    except InvalidRequestError as error:
        return str(error)
    return (found.id_field, contents(found), found.layout.outputs, found.layout.rows)


def test_long_headers_are_read_but_not_kept() -> None:
    one = reader(signature())
    short = request({"A": A, "B": B}, parameters={"k": "x"})
    long = request({"A": A, "B": B}, parameters={"k": "x" * 5000})
    first, second = read(one, short).layout, read(one, long).layout
    assert second.details.parameters == {"k": "x" * 5000}
    assert read(one, short).layout is first
    assert read(one, long).layout is not second
