"""Batches from bytes to bytes, on a backend that does as it is told."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protos import inference_pb2, worker_pb2
from services.core.datatype import DataType
from services.core.errors import BackendError
from services.core.wire_format import WireFormatError
from services.worker.backend import Tensors
from services.worker.execution import Execution
from services.worker.signature import Signature
from tests.unit.worker.messages import (
    Answer,
    answers,
    batch,
    ints,
    raw,
    request,
    signature,
    tensor,
)
from tests.unit.worker.puppets import ManualClock, PuppetBackend

A = ints(1, 2, 3, 4)
B = ints(10, 20, 30, 40)
INTERNAL = 13
RESOURCE_EXHAUSTED = 8
INVALID_ARGUMENT = 3


def run(
    *requests: inference_pb2.ModelInferRequest | bytes,
    of: Signature | None = None,
    backend: PuppetBackend | None = None,
) -> list[Answer]:
    execution = Execution(of or signature(), backend or PuppetBackend(), ManualClock())
    return answers(execution.run(batch(*requests)))


def identity(spec_in: str = "X", spec_out: str = "Y") -> PuppetBackend:
    return PuppetBackend(lambda inputs: {spec_out: inputs[spec_in].copy()})


def test_one_request_gets_its_answer() -> None:
    (answer,) = run(request({"A": A, "B": B}, request_id="one"))
    assert answer.model == ("m", "3")
    assert answer.request_id == "one"
    assert answer.names == ("SUM", "DIFF")
    assert answer.datatypes == ("INT32", "INT32")
    assert answer.array("SUM").tolist() == (A + B).tolist()
    assert answer.array("DIFF").tolist() == (A - B).tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_everyone_in_a_batch_gets_their_own_answer(count: int) -> None:
    backend = PuppetBackend()
    found = run(
        *(request({"A": A + n, "B": B}, request_id=f"r{n}") for n in range(count)),
        backend=backend,
    )
    assert [answer.request_id for answer in found] == [f"r{n}" for n in range(count)]
    for n, answer in enumerate(found):
        assert answer.array("SUM").tolist() == (A + n + B).tolist()
    assert len(backend.batches) == 1


def test_rows_are_counted_not_requests() -> None:
    rows = (2, 1, 3)
    backend = PuppetBackend()
    found = run(
        *(
            request({"A": ints(n, 0, 0, 0, rows=n), "B": np.zeros((n, 4), np.int32)})
            for n in rows
        ),
        backend=backend,
    )
    assert backend.batches[0]["A"].shape == (6, 4)
    for n, answer in zip(rows, found, strict=True):
        assert answer.array("SUM").tolist() == ints(n, 0, 0, 0, rows=n).tolist()


def test_each_request_gets_the_outputs_it_asked_for_in_the_models_order() -> None:
    backend = PuppetBackend()
    found = run(
        request({"A": A, "B": B}, outputs=["SUM"]),
        request({"A": A, "B": B}, outputs=["DIFF"]),
        request({"A": A, "B": B}, outputs=["DIFF", "SUM"]),
        request({"B": B, "A": A}),
        backend=backend,
    )
    assert [answer.names for answer in found] == [
        ("SUM",),
        ("DIFF",),
        ("SUM", "DIFF"),
        ("SUM", "DIFF"),
    ]
    for answer in found:
        for name in answer.names:
            expected = A + B if name == "SUM" else A - B
            assert answer.array(name).tolist() == expected.tolist()
    assert len(backend.batches) == 1


def test_the_backend_is_asked_only_for_what_somebody_wants() -> None:
    backend = PuppetBackend()
    run(request({"A": A, "B": B}, outputs=["DIFF"]), backend=backend)
    run(request({"A": A, "B": B}), backend=backend)
    assert backend.asked == [("DIFF",), ("SUM", "DIFF")]


def test_a_bad_request_fails_alone() -> None:
    good = request({"A": A, "B": B}, request_id="good")
    found = run(good, request({"A": A}), b"\xff", b"", good)
    assert [answer.error and answer.error[0] for answer in found] == [
        None,
        INVALID_ARGUMENT,
        INVALID_ARGUMENT,
        INVALID_ARGUMENT,
        None,
    ]
    assert found[4].array("SUM").tolist() == (A + B).tolist()


def test_a_batch_without_a_good_request_does_not_run() -> None:
    backend = PuppetBackend()
    (answer,) = run(request({"A": A}), backend=backend)
    assert answer.error is not None
    assert backend.batches == []


def test_a_request_of_another_shape_does_not_disturb_its_batch() -> None:
    of = signature([tensor("X", [-1])], [tensor("Y", [-1])])
    found = run(
        request({"X": ints(1, 2)}),
        request({"X": ints(1, 2, 3)}),
        of=of,
        backend=identity(),
    )
    assert found[0].array("Y").tolist() == [[1, 2]]
    assert found[1].error is not None
    assert found[1].error[0] == INTERNAL


def failing(error: Exception) -> PuppetBackend:
    def fail(_inputs: Tensors) -> Tensors:
        raise error

    return PuppetBackend(fail)


@pytest.mark.parametrize("count", [1, 3])
def test_a_failure_of_the_backend_is_everybodys(count: int) -> None:
    backend = failing(BackendError("onnx runtime error 2: no"))
    found = run(*[request({"A": A, "B": B})] * count, backend=backend)
    assert [answer.error for answer in found] == [
        (INTERNAL, "onnx runtime error 2: no")
    ] * count


def test_a_bad_request_keeps_its_own_error_when_the_backend_fails() -> None:
    found = run(
        request({"A": A, "B": B}),
        request({"A": A}),
        backend=failing(BackendError("broken")),
    )
    assert [answer.error and answer.error[0] for answer in found] == [
        INTERNAL,
        INVALID_ARGUMENT,
    ]


def test_out_of_memory_is_told_and_survived() -> None:
    execution = Execution(signature(), failing(MemoryError("64 GiB")), ManualClock())
    for _ in range(2):
        (answer,) = answers(execution.run(batch(request({"A": A, "B": B}))))
        assert answer.error == (RESOURCE_EXHAUSTED, "out of memory: 64 GiB")


def test_a_bug_is_not_explained_to_the_client() -> None:
    (answer,) = run(request({"A": A, "B": B}), backend=failing(KeyError("secret")))
    assert answer.error == (INTERNAL, "internal error")


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"SUM": ints(0, 0, 0, 0, rows=3)}, "expected 2 rows .* produced 3"),
        ({"SUM": np.int32(1)}, "expected 2 rows .* produced none"),
        ({"SUM": np.zeros((2, 4), np.int64)}, "is int64 where .* INT32"),
        ({}, "did not produce output 'SUM'"),
    ],
)
def test_an_output_that_breaks_the_promise_fails_the_batch(
    tensors: dict[str, np.ndarray], text: str
) -> None:
    of = signature(outputs=[tensor("SUM")])
    backend = PuppetBackend(lambda _: {n: np.asarray(a) for n, a in tensors.items()})
    found = run(*[request({"A": A, "B": B})] * 2, of=of, backend=backend)
    for answer in found:
        assert answer.error is not None
        assert answer.error[0] == INTERNAL
        with pytest.raises(AssertionError, match=text):
            raise AssertionError(answer.error[1])


def test_a_model_that_does_not_batch_sees_the_full_shape() -> None:
    of = signature([tensor("X", [2, -1])], [tensor("Y", [2, -1])], max_batch_size=0)
    backend = identity()
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    (answer,) = run(request({"X": x}), of=of, backend=backend)
    assert backend.batches[0]["X"].shape == (2, 3)
    assert answer.array("Y").tolist() == x.tolist()


def test_a_model_that_does_not_batch_runs_one_request_only() -> None:
    of = signature([tensor("X")], [tensor("Y")], max_batch_size=0)
    found = run(*[request({"X": A[0]})] * 3, of=of, backend=identity())
    assert found[0].error is None
    assert [answer.error for answer in found[1:]] == [
        (INTERNAL, "model 'm' does not support batching")
    ] * 2


@pytest.mark.parametrize("datatype", list(DataType), ids=lambda one: one.value)
@pytest.mark.parametrize("count", [1, 4])
def test_every_datatype_goes_through(datatype: DataType, count: int) -> None:
    name = f"IN_{datatype.value}"
    of = signature([tensor(name, [3], datatype)], [tensor("Y", [3], datatype)])
    arrays = [
        np.array([[b"", b"\xff\x00", b"long" * n]], object)
        if datatype is DataType.BYTES
        else np.array([[0, 1, n]]).astype(datatype.numpy_dtype)
        for n in range(count)
    ]
    found = run(
        *(request({name: array}) for array in arrays), of=of, backend=identity(name)
    )
    for array, answer in zip(arrays, found, strict=True):
        assert answer.error is None
        assert answer.datatypes == (datatype.value,)
        assert answer.shapes == ((1, 3),)
        assert answer.contents == (raw(array),)


def test_text_from_a_backend_becomes_utf8() -> None:
    of = signature([tensor("X", [1])], [tensor("Y", [1], DataType.BYTES)])
    backend = PuppetBackend(lambda _: {"Y": np.array([["é"]], object)})
    (answer,) = run(request({"X": ints(1)}), of=of, backend=backend)
    assert answer.contents == ("\x02\0\0\0é".encode(),)


def test_a_wrong_number_of_strings_fails_alone() -> None:
    of = signature(
        [tensor("X", [2], DataType.BYTES)], [tensor("Y", [2], DataType.BYTES)]
    )
    good = request({"X": np.array([[b"a", b"b"]], object)})
    wrong = request({"X": np.array([[b"a", b"b"]], object)})
    wrong.raw_input_contents[0] = b"\x01\0\0\0a"
    cut = request({"X": np.array([[b"a", b"b"]], object)})
    cut.raw_input_contents[0] = b"\x01\0\0\0a\x09\0\0\0b"
    found = run(good, wrong, cut, good, of=of, backend=identity())
    assert [answer.error is None for answer in found] == [True, False, False, True]
    assert "expected 2 string elements" in (found[1].error or (0, ""))[1]
    assert found[3].contents == (b"\x01\0\0\0a\x01\0\0\0b",)


@pytest.mark.parametrize("count", [1, 3])
def test_reshapes_are_undone_for_the_client(count: int) -> None:
    of = signature(
        [tensor("X", [1], reshape=[])],
        [tensor("Y", [1], reshape=[])],
    )
    backend = identity()
    found = run(*[request({"X": ints(7)})] * count, of=of, backend=backend)
    assert backend.batches[0]["X"].shape == (count,)
    assert [answer.shapes for answer in found] == [((1, 1),)] * count
    assert found[-1].array("Y").tolist() == [[7]]


def test_reshapes_carry_variable_dimensions_over_in_order() -> None:
    of = signature(
        [tensor("X", [-1, 2, -1], reshape=[2, -1, 1, -1])],
        [tensor("Y", [-1, 2, -1], reshape=[2, -1, 1, -1])],
    )
    backend = identity()
    x = np.arange(30, dtype=np.int32).reshape(1, 3, 2, 5)
    (answer,) = run(request({"X": x}), of=of, backend=backend)
    assert backend.batches[0]["X"].shape == (1, 2, 3, 1, 5)
    assert answer.array("Y").tolist() == x.tolist()


def test_an_output_unlike_its_reshape_fails_the_batch() -> None:
    of = signature([tensor("X", [1])], [tensor("Y", [1], reshape=[])])
    (answer,) = run(request({"X": ints(7)}), of=of, backend=identity())
    assert answer.error is not None
    assert "the configuration's reshape says []" in answer.error[1]


@pytest.mark.parametrize("count", [1, 3])
def test_tensors_without_elements_go_through(count: int) -> None:
    of = signature([tensor("X", [-1])], [tensor("Y", [-1])])
    empty = np.zeros((1, 0), np.int32)
    found = run(*[request({"X": empty})] * count, of=of, backend=identity())
    assert [answer.shapes for answer in found] == [((1, 0),)] * count
    assert [answer.contents for answer in found] == [(b"",)] * count


def test_output_dimensions_may_change_from_batch_to_batch() -> None:
    of = signature([tensor("X", [-1])], [tensor("Y", [-1])])
    execution = Execution(of, identity(), ManualClock())
    for size in (1, 5, 1, 3):
        x = np.arange(size, dtype=np.int32).reshape(1, size)
        (answer,) = answers(execution.run(batch(request({"X": x}))))
        assert answer.array("Y").tolist() == x.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_large_tensors_are_cut_at_the_right_rows(dtype: type) -> None:
    size = 100_000
    spec = DataType.FP32 if dtype is np.float32 else DataType.UINT8
    of = signature([tensor("X", [size], spec)], [tensor("Y", [size], spec)])
    arrays: list[NDArray[Any]] = [np.full((1, size), n, dtype) for n in range(3)]
    found = run(*(request({"X": x}) for x in arrays), of=of, backend=identity())
    for x, answer in zip(arrays, found, strict=True):
        assert answer.contents == (x.tobytes(),)


def test_an_output_that_is_not_contiguous_is_sent_in_row_order() -> None:
    of = signature([tensor("X", [2, 3])], [tensor("Y", [3, 2])])
    backend = PuppetBackend(lambda inputs: {"Y": inputs["X"].transpose(0, 2, 1)})
    x = np.arange(6, dtype=np.int32).reshape(1, 2, 3)
    (answer,) = run(request({"X": x}), of=of, backend=backend)
    assert answer.array("Y").tolist() == x.transpose(0, 2, 1).tolist()


def test_inputs_cannot_be_written_by_a_backend() -> None:
    def write(inputs: Tensors) -> Tensors:
        inputs["A"][0, 0] = 9
        return {}

    (answer,) = run(request({"A": A, "B": B}), backend=PuppetBackend(write))
    assert answer.error == (INTERNAL, "internal error")


def test_timing_comes_first_and_in_the_order_of_the_stages() -> None:
    execution = Execution(signature(), PuppetBackend(), ManualClock(step_ns=7))
    message = execution.run(batch(request({"A": A, "B": B})))
    assert message[0] == 0x0A
    timing = worker_pb2.BatchResponse.FromString(message).timing
    assert timing == worker_pb2.BatchTiming(
        compute_input_ns=7, compute_infer_ns=7, compute_output_ns=7
    )


@pytest.mark.parametrize("message", [b"\x0a\x00", b"\x12\x05abc", b"\x12", b"\x12\x80"])
def test_a_message_that_is_no_batch_is_refused_as_a_whole(message: bytes) -> None:
    execution = Execution(signature(), PuppetBackend(), ManualClock())
    with pytest.raises(WireFormatError):
        execution.run(message)


# One by one and all at once: the same answers.

VALUES = st.integers(-(2**31), 2**31 - 1)
REQUEST_IDS = st.sampled_from(["", "a", "b", "é", "ab", "x" * 127, "x" * 128])
WANTED = st.sampled_from([(), ("SUM",), ("DIFF",), ("DIFF", "SUM"), ("SUM", "DIFF")])


@st.composite
def members(draw: st.DrawFn) -> inference_pb2.ModelInferRequest:
    rows = draw(st.integers(1, 2))
    values = draw(st.lists(VALUES, min_size=4, max_size=4))
    row = np.array(values, np.int64).astype(np.int32)
    arrays = {"A": np.tile(row, (rows, 1)), "B": np.tile(row[::-1], (rows, 1))}
    if draw(st.booleans()):
        arrays = dict(reversed(arrays.items()))
    return request(
        arrays,
        request_id=draw(REQUEST_IDS),
        outputs=draw(WANTED),
        version=draw(st.sampled_from(["", "3"])),
    )


def one_by_one(messages: Sequence[inference_pb2.ModelInferRequest]) -> list[Answer]:
    return [run(message)[0] for message in messages]


@settings(deadline=None)
@given(st.lists(members(), min_size=1, max_size=6))
def test_a_batch_answers_as_its_requests_alone_do(
    messages: list[inference_pb2.ModelInferRequest],
) -> None:
    assert run(*messages) == one_by_one(messages)


@settings(deadline=None)
@given(members(), st.lists(st.tuples(VALUES, st.text("abc", min_size=2, max_size=2))))
def test_a_uniform_batch_answers_as_its_requests_alone_do(
    pattern: inference_pb2.ModelInferRequest, changes: list[tuple[int, str]]
) -> None:
    messages = [pattern]
    for value, request_id in changes:
        message = inference_pb2.ModelInferRequest()
        message.CopyFrom(pattern)
        message.id = request_id if pattern.id else ""
        size = len(pattern.raw_input_contents[0])
        message.raw_input_contents[0] = (value % 2**32).to_bytes(4, "little") * (
            size // 4
        )
        messages.append(message)
    assert run(*messages) == one_by_one(messages)
