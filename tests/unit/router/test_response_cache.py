"""What an answer depends on, and which answers are kept."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from services.core.shared_memory_region import REGION_PARAMETER
from services.router.response_cache import ENTRY_BYTES, ResponseCache, request_key
from tests.unit.router.routes import add_sub_request

Request, Response = pb.ModelInferRequest, pb.ModelInferResponse
Change = Callable[[pb.ModelInferRequest], object]


def request(identity: str = "") -> pb.ModelInferRequest:
    """Return a request with two inputs, a parameter and two wanted outputs."""
    whole = add_sub_request(id=identity)
    whole.raw_input_contents[1] = b"\2" * 64
    whole.parameters["custom"].string_param = "x"
    for name in ("OUTPUT1", "OUTPUT0"):
        whole.outputs.add(name=name)
    return whole


def key(whole: pb.ModelInferRequest, generation: int = 1) -> bytes:
    return request_key(generation, whole.SerializeToString())[0]


def swap(whole: pb.ModelInferRequest) -> None:
    """Send the inputs, and ask for the outputs, the other way round."""
    inputs, outputs = list(whole.inputs), list(whole.outputs)
    raws = list(whole.raw_input_contents)
    del whole.inputs[:], whole.outputs[:], whole.raw_input_contents[:]
    whole.inputs.extend(reversed(inputs))
    whole.outputs.extend(reversed(outputs))
    whole.raw_input_contents.extend(reversed(raws))


def swap_contents(whole: pb.ModelInferRequest) -> None:
    first, second = whole.raw_input_contents
    del whole.raw_input_contents[:]
    whole.raw_input_contents.extend((second, first))


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: setattr(whole, "id", "another"),
        lambda whole: setattr(whole, "model_version", "1"),
        lambda whole: setattr(whole.parameters["priority"], "int64_param", 3),
        lambda whole: setattr(whole.parameters["timeout"], "int64_param", 9),
        swap,
    ],
    ids=["id", "version by number", "priority", "timeout", "order"],
)
def test_what_does_not_reach_the_model_makes_no_difference(change: Change) -> None:
    changed = request("one")
    change(changed)
    assert key(changed) == key(request("one"))


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: setattr(whole.inputs[0], "name", "INPUT9"),
        lambda whole: setattr(whole.inputs[0], "datatype", "UINT32"),
        lambda whole: whole.inputs[0].shape.__setitem__(0, 2),
        lambda whole: whole.raw_input_contents.__setitem__(0, b"\1" * 64),
        swap_contents,
        lambda whole: setattr(whole.parameters["custom"], "string_param", "y"),
        # Looks like a parameter that makes no difference, and is none.
        lambda whole: setattr(
            whole.parameters["custom"], "string_param", "\n\x08priority"
        ),
        lambda whole: setattr(whole.parameters["more"], "bool_param", True),
        lambda whole: whole.outputs.pop(),
        lambda whole: setattr(
            whole.outputs[0].parameters["classification"], "int64_param", 1
        ),
    ],
)
def test_what_reaches_the_model_makes_another_key(change: Change) -> None:
    changed = request()
    change(changed)
    assert key(changed) not in (key(request()), b"")


def test_another_loading_of_the_version_has_other_answers() -> None:
    assert key(request(), generation=2) != key(request(), generation=1)


def test_the_end_of_one_tensor_is_not_the_beginning_of_the_next() -> None:
    first, second = request(), request()
    first.raw_input_contents[:] = [b"ab", b"c"]
    second.raw_input_contents[:] = [b"a", b"bc"]
    assert key(first) != key(second)


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: setattr(
            whole.inputs[0].parameters[REGION_PARAMETER], "string_param", "0:8:k"
        ),
        lambda whole: setattr(
            whole.outputs[0].parameters[REGION_PARAMETER], "string_param", "0:8:k"
        ),
        lambda whole: setattr(whole.parameters["sequence_id"], "int64_param", 1),
    ],
    ids=["input elsewhere", "output elsewhere", "sequence"],
)
def test_some_answers_are_not_kept(change: Change) -> None:
    changed = request("seven")
    change(changed)
    found, identity = request_key(1, changed.SerializeToString())
    assert found == b""
    assert Request.FromString(identity).id == "seven"


def response(identity: str = "", size: int = 100) -> bytes:
    return Response(
        model_name="m",
        model_version="1",
        id=identity,
        outputs=[Response.InferOutputTensor(name="O", datatype="UINT8", shape=[size])],
        raw_output_contents=[bytes(size)],
    ).SerializeToString()


def identity_field(identity: str) -> bytes:
    return request_key(1, Request(id=identity).SerializeToString())[1]


@pytest.mark.parametrize("first", ["", "one"])
@pytest.mark.parametrize("then", ["", "two"])
def test_an_answer_comes_back_with_the_id_of_its_request(first: str, then: str) -> None:
    cache = ResponseCache(10_000)
    assert cache.find(b"k", identity_field(first)) is None
    cache.insert(b"k", response(first))
    assert cache.find(b"k", identity_field(then)) == response(then)
    assert (cache.hits, cache.misses, len(cache)) == (1, 1, 1)


def entry_bytes(size: int = 100) -> int:
    return len(response(size=size)) + ENTRY_BYTES


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = ResponseCache(2 * entry_bytes())
    cache.insert(b"a", response())
    cache.insert(b"b", response())
    assert cache.find(b"a", b"") is not None
    cache.insert(b"c", response())
    assert cache.find(b"b", b"") is None
    assert cache.find(b"a", b"") is not None
    assert cache.find(b"c", b"") is not None
    assert cache.evictions == 1


@pytest.mark.parametrize(("missing", "kept"), [(0, 1), (1, 0)])
def test_an_answer_larger_than_the_cache_is_not_kept(missing: int, kept: int) -> None:
    cache = ResponseCache(entry_bytes() - missing)
    cache.insert(b"a", response())
    assert len(cache) == kept


def test_a_large_answer_is_no_reason_to_forget_small_ones() -> None:
    cache = ResponseCache(entry_bytes())
    cache.insert(b"a", response())
    cache.insert(b"b", response(size=5000))
    assert cache.find(b"a", b"") is not None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300)), max_size=40))
def test_the_cache_is_never_larger_than_it_may_be(
    inserted: list[tuple[int, int]],
) -> None:
    cache = ResponseCache(1500)
    for number, size in inserted:
        cache.insert(bytes((number,)), response(size=size))
        kept = [
            found
            for k in range(6)
            if (found := cache.find(bytes((k,)), b"")) is not None
        ]
        assert cache.size_bytes == sum(len(each) + ENTRY_BYTES for each in kept)
        assert cache.size_bytes <= cache.capacity_bytes
        assert cache.find(bytes((number,)), b"") == response(size=size)
