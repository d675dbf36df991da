"""Whether two versions have answered the same."""

import math
import struct

import pytest

from protos import inference_pb2 as pb
from services.router.same_answers import are_same_answers


def response(
    *values: float, version: str = "1", name: str = "Y", datatype: str = "FP32"
) -> bytes:
    output = pb.ModelInferResponse.InferOutputTensor(
        name=name, datatype=datatype, shape=[len(values)]
    )
    return pb.ModelInferResponse(
        model_name="m",
        model_version=version,
        id=version,
        outputs=[output],
        raw_output_contents=[struct.pack(f"<{len(values)}f", *values)],
    ).SerializeToString()


def test_version_and_id_make_no_difference() -> None:
    assert are_same_answers(response(1, 2), response(1, 2, version="2"))


@pytest.mark.parametrize(
    "other",
    [
        response(1, 3),
        response(1),
        response(1, 2, 3),
        response(1, 2, name="Z"),
        response(1, 2, datatype="INT32"),
        pb.ModelInferResponse(model_name="m").SerializeToString(),
        b"\xff",
    ],
)
def test_other_outputs_are_a_difference(other: bytes) -> None:
    assert not are_same_answers(response(1, 2), other)
    assert not are_same_answers(other, response(1, 2))


@pytest.mark.parametrize(
    ("value", "other", "tolerance", "is_same"),
    [
        (1.0, 1.0005, 0.0, False),
        (1.0, 1.0005, 1e-3, True),
        (1.0, 1.01, 1e-3, False),
        (1000.0, 1000.5, 1e-3, True),
        (math.nan, math.nan, 1e-3, True),
        (math.nan, 1.0, 1e-3, False),
    ],
)
def test_what_is_near_enough_is_the_same(
    value: float, other: float, tolerance: float, *, is_same: bool
) -> None:
    assert are_same_answers(response(value), response(other), tolerance) is is_same


def test_integers_are_never_near() -> None:
    one, other = (response(value, datatype="INT32") for value in (1.0, 1.0001))
    assert not are_same_answers(one, other, 1e9)


def test_an_output_that_lies_elsewhere_has_no_contents_to_compare() -> None:
    message = pb.ModelInferResponse.FromString(response(1))
    del message.raw_output_contents[:]
    assert not are_same_answers(response(1), message.SerializeToString(), 1.0)
