"""The path of uniform batches gives what the general one gives, when it is taken."""

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
from services.worker.uniform import LONGEST_TAIL_BYTES, UniformDecoder
from tests.unit.worker.messages import batch, ints, reader, request, signature, tensor
from tests.unit.worker.puppets import PuppetBackend

IDS = st.sampled_from(["", "r", "77", "x" * 125, "x" * 127])


def decoder(of: Signature | None = None) -> BatchDecoder:
    of = of or signature()
    return BatchDecoder(of, reader(of))


def alike(count: int, *, request_id: str = "", rows: int = 1) -> list[bytes]:
    return [
        request(
            {"A": ints(n, 1, 2, 3, rows=rows), "B": ints(4, 5, 6, n, rows=rows)},
            request_id=request_id and f"{request_id}{n}",
        ).SerializeToString()
        for n in range(count)
    ]


def uniform(
    message: bytes, *, seen: bytes, of: Signature | None = None
) -> Batch | None:
    """Return what only this path makes of a message, after another was seen."""
    of = of or signature()
    shared = reader(of)
    BatchDecoder(of, shared).decode_each(batch(seen))
    return UniformDecoder(of, shared).decode(message)


def members(one: Batch) -> list[tuple[bytes, int]]:
    found = [each for each in one.outcomes if isinstance(each, Member)]
    assert len(found) == len(one.outcomes)
    return [(each.id_field, each.first_row) for each in found]


def encode(of: Signature, one: Batch) -> bytes:
    tensors = PuppetBackend().answer(one.inputs)
    blocks = scatter(of, one.outputs, tensors, one.rows)
    return b"".join(ReplyEncoder(of).encode(one, blocks))


@settings(deadline=None)
@given(ids=st.lists(IDS, min_size=1, max_size=20), rows=st.integers(1, 3))
def test_both_paths_decode_and_encode_alike(ids: list[str], rows: int) -> None:
    of = signature()
    requests = [
        request(
            {"A": ints(n, 1, 2, 3, rows=rows), "B": ints(4, 5, 6, n, rows=rows)},
            request_id=each,
        ).SerializeToString()
        for n, each in enumerate(ids)
    ]
    message = batch(*requests)
    fast = uniform(message, seen=requests[0], of=of)
    slow = decoder(of).decode_each(message)
    assert fast is not None
    assert members(fast) == members(slow)
    assert fast.rows == slow.rows == len(ids) * rows
    assert fast.outputs == slow.outputs
    assert fast.inputs.keys() == slow.inputs.keys()
    for name, array in slow.inputs.items():
        assert fast.inputs[name].dtype == array.dtype
        assert np.array_equal(fast.inputs[name], array)
    assert encode(of, fast) == encode(of, slow)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_changed_byte_is_judged_alike(data: st.DataObject) -> None:
    of = signature()
    message = bytearray(
        batch(*alike(2, request_id="r"), *alike(2, request_id="longer"))
    )
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(message), len(message), place]))
    changed = bytes(message[:cut])
    assert judged(of, changed, fast=True) == judged(of, changed, fast=False)


def judged(of: Signature, message: bytes, *, fast: bool) -> object:
    one = decoder(of)
    # Both have seen good requests: what was learned must not blur the verdict.
    one.decode(batch(*alike(4, request_id="s")))
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
        (alike(1), True),
        (alike(3), True),
        (alike(3, request_id="r"), True),
        ([*alike(2), *alike(2, request_id="r")], True),
        (alike(12, request_id="r"), True),
        (alike(3, request_id="x" * 126), True),
        (alike(3, request_id="x" * 127), False),
        ([*alike(3), *alike(1, rows=2)], False),
        (alike(3, request_id="é"), False),
    ],
)
def test_the_path_is_taken_for_equal_headers_and_short_plain_ids_only(
    messages: list[bytes],
    is_uniform: bool,
) -> None:
    found = uniform(batch(*messages), seen=alike(1)[0])
    assert (found is not None) is is_uniform


def test_nothing_is_uniform_before_anything_was_seen() -> None:
    of = signature()
    assert UniformDecoder(of, reader(of)).decode(batch(*alike(3))) is None


def test_requests_of_equal_length_with_other_names_are_told_apart() -> None:
    other = request({"B": ints(4, 5, 6, 7), "A": ints(0, 1, 2, 3)}).SerializeToString()
    message = batch(*alike(3), other)
    assert uniform(message, seen=alike(1)[0]) is None
    assert decoder().decode(message).inputs["A"][-1].tolist() == [0, 1, 2, 3]


def test_a_version_as_long_as_the_others_ids_is_told_apart() -> None:
    arrays = {"A": ints(0, 1, 2, 3), "B": ints(4, 5, 6, 7)}
    others = [request(arrays, request_id=f"r{n}") for n in range(3)]
    message = batch(*others, request(arrays, version="r9"))
    assert uniform(message, seen=others[0].SerializeToString()) is None
    ids = [id_field for id_field, _ in members(decoder().decode(message))]
    assert ids[-2:] == [b"\x1a\x02r2", b""]


def test_a_request_cut_short_inside_its_names_is_no_member() -> None:
    whole = alike(1, request_id="r")[0]
    assert uniform(batch(whole, whole[4:]), seen=whole) is None
    assert uniform(batch(whole) + b"\x12", seen=whole) is None
    assert uniform(batch(whole) + b"\x12\xff", seen=whole) is None


def test_strings_never_take_the_path() -> None:
    of = signature([tensor("X", [1], DataType.BYTES)])
    one = request({"X": np.array([[b"abc"]], object)})
    assert uniform(batch(*[one] * 5), seen=one.SerializeToString(), of=of) is None


@pytest.mark.parametrize("elements", [480, 500])
def test_large_tensors_never_take_the_path(elements: int) -> None:
    of = signature([tensor("X", [elements])])
    one = request({"X": ints(*range(elements))}).SerializeToString()
    found = uniform(batch(one, one), seen=one, of=of)
    assert (found is None) is (len(one) > LONGEST_TAIL_BYTES)


def test_a_tensor_without_elements_takes_the_path() -> None:
    of = signature([tensor("X", [-1])])
    one = request({"X": np.zeros((1, 0), np.int32)}).SerializeToString()
    found = uniform(batch(one, one), seen=one, of=of)
    assert found is not None
    assert found.inputs["X"].shape == (2, 0)
