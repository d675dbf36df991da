"""Typed contents as raw bytes: every number of every datatype, exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from services.core.errors import InvalidRequestError
from services.router.typed_contents import raw_contents

FIELDS = {
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
}


def tensor(datatype: str, values: list[int]) -> pb.ModelInferRequest.InferInputTensor:
    made = pb.ModelInferRequest.InferInputTensor(name="x", datatype=datatype)
    getattr(made.contents, FIELDS[datatype]).extend(values)
    return made


@given(data=st.data(), datatype=st.sampled_from(sorted(FIELDS)))
def test_integers_arrive_exactly(data: st.DataObject, datatype: str) -> None:
    dtype = np.dtype(datatype.lower())
    info = np.iinfo(dtype)
    number = st.integers(int(info.min), int(info.max))
    values = data.draw(st.lists(number, min_size=1, max_size=4))
    assert raw_contents(tensor(datatype, values), "m") == b"".join(
        value.to_bytes(dtype.itemsize, "little", signed=dtype.kind == "i")
        for value in values
    )


def test_large_and_small_unsigned_numbers_go_together() -> None:
    values = [1, 2**63 + 1, 2**64 - 1]
    raw = raw_contents(tensor("UINT64", values), "m")
    assert np.frombuffer(raw, np.uint64).tolist() == values


@pytest.mark.parametrize(
    ("datatype", "value"), [("INT8", 128), ("INT16", -32769), ("UINT8", 256)]
)
def test_a_number_beyond_the_datatype_is_named(datatype: str, value: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"value {value} of .* '{datatype}'"):
        raw_contents(tensor(datatype, [0, value]), "m")
