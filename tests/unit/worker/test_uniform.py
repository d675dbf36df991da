"""The matrix path gives what the general path gives, whenever it is taken."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.datatype import DataType
from services.worker.batch import Batch, Member
from services.worker.batch_decoder import BatchDecoder
from services.worker.reply_encoder import ReplyEncoder
from services.worker.scatter import scatter
from services.worker.signature import Signature
from services.worker.uniform import MIN_REQUESTS, UniformBatch
from tests.unit.worker.messages import batch, ints, reader, request, signature, tensor
from tests.unit.worker.puppets import PuppetBackend


def decoder(of: Signature | None = None) -> BatchDecoder:
    of = of or signature()
    return BatchDecoder(of, reader(of))


def uniform(count: int, *, request_id: str = "", rows: int = 1) -> list[bytes]:
    return [
        request(
            {"A": ints(n, 1, 2, 3, rows=rows), "B": ints(4, 5, 6, n, rows=rows)},
            request_id=request_id and f"{request_id}{n:02}",
        ).SerializeToString()
        for n in range(count)
    ]


def encode(of: Signature, one: Batch | UniformBatch) -> bytes:
    tensors = PuppetBackend().answer(one.inputs)
    blocks = scatter(of, one.outputs, tensors, one.rows)
    return b"".join(ReplyEncoder(of).encode(one, blocks))


@settings(deadline=None)
@given(
    count=st.integers(MIN_REQUESTS, 20),
    rows=st.integers(1, 3),
    request_id=st.sampled_from(["", "r", "é", "x" * 125, "x" * 126]),
)
def test_both_paths_decode_and_encode_alike(
    count: int, rows: int, request_id: str
) -> None:
    of = signature()
    message = batch(*uniform(count, rows=rows, request_id=request_id))
    fast = decoder(of).decode(message)
    slow = decoder(of).decode_each(message)
    assert isinstance(slow, Batch)
    assert fast.rows == slow.rows == count * rows
    assert fast.outputs == slow.outputs
    assert fast.inputs.keys() == slow.inputs.keys()
    for name, array in slow.inputs.items():
        assert np.array_equal(fast.inputs[name], array)
    assert encode(of, fast) == encode(of, slow)


@settings(deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_judged_alike(data: st.DataObject) -> None:
    of = signature()
    message = bytearray(batch(*uniform(5, request_id="r")))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] = data.draw(st.integers(0, 255))
    assert judged(of, bytes(message), fast=True) == judged(
        of, bytes(message), fast=False
    )


def judged(of: Signature, message: bytes, *, fast: bool) -> object:
    one = decoder(of)
    # Both have seen good requests: what was learned must not blur the verdict.
    one.decode(batch(*uniform(4, request_id="s")))
    try:
        found = one.decode(message) if fast else one.decode_each(message)
    except ValueError as error:
        return str(error)
    inputs = {name: array.tolist() for name, array in found.inputs.items()}
    outcomes = [
        outcome[1:] if isinstance(outcome, tuple) else str(outcome.error)
        for outcome in found.outcomes
    ]
    return found.rows, found.outputs, inputs, outcomes


@pytest.mark.parametrize(
    ("messages", "is_uniform"),
    [
        (uniform(MIN_REQUESTS), True),
        (uniform(MIN_REQUESTS, request_id="r"), True),
        (uniform(MIN_REQUESTS, request_id="x" * 125), True),
        (uniform(MIN_REQUESTS, request_id="x" * 126), False),
        (uniform(MIN_REQUESTS - 1), False),
        ([*uniform(MIN_REQUESTS), *uniform(1, request_id="r")], False),
        ([*uniform(MIN_REQUESTS), *uniform(1, rows=2)], False),
        (uniform(MIN_REQUESTS, request_id="é"), False),
    ],
)
def test_the_matrix_path_is_taken_for_equal_headers_only(
    messages: list[bytes],
    is_uniform: bool,
) -> None:
    found = decoder().decode(batch(*messages))
    assert isinstance(found, UniformBatch) is is_uniform


def test_requests_of_equal_length_with_other_names_are_told_apart() -> None:
    other = request({"B": ints(4, 5, 6, 7), "A": ints(0, 1, 2, 3)}).SerializeToString()
    found = decoder().decode(batch(*uniform(MIN_REQUESTS), other))
    assert isinstance(found, Batch)
    assert found.inputs["A"][-1].tolist() == [0, 1, 2, 3]


def test_a_version_as_long_as_the_others_ids_is_told_apart() -> None:
    arrays = {"A": ints(0, 1, 2, 3), "B": ints(4, 5, 6, 7)}
    others = [request(arrays, request_id=f"r{n}") for n in range(MIN_REQUESTS)]
    found = decoder().decode(batch(*others, request(arrays, version="r9")))
    assert isinstance(found, Batch)
    members = [one for one in found.outcomes if isinstance(one, Member)]
    assert [one.id_field for one in members[-2:]] == [b"\x1a\x02r2", b""]


def test_strings_never_take_the_matrix_path() -> None:
    of = signature([tensor("X", [1], DataType.BYTES)])
    one = request({"X": np.array([[b"abc"]], object)})
    assert isinstance(decoder(of).decode(batch(*[one] * 5)), Batch)


def test_a_smaller_batch_after_a_larger_one_keeps_nothing_of_it() -> None:
    of = signature()
    one, encoder = decoder(of), ReplyEncoder(of)
    for count, request_id, rows in (
        (9, "r", 1),
        (3, "r", 1),
        (12, "r", 1),
        (4, "longer", 1),
        (4, "", 1),
        (3, "", 2),
        (3, "", 1),
    ):
        message = batch(*uniform(count, request_id=request_id, rows=rows))
        found = one.decode(message)
        assert isinstance(found, UniformBatch)
        tensors = PuppetBackend().answer(found.inputs)
        blocks = scatter(of, found.outputs, tensors, found.rows)
        assert b"".join(encoder.encode(found, blocks)) == encode(
            of, decoder(of).decode_each(message)
        )
