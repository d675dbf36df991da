"""Whether two versions of a model have answered the same. Pure."""

from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from protos import inference_pb2 as pb
from services.core.datatype import DataType

_FLOATING: Final = {each.value: each for each in DataType if each.value[:2] == "FP"}


def are_same_answers(one: bytes, other: bytes, tolerance: float = 0.0) -> bool:
    """Whether two serialized ModelInferResponses have the same outputs.

    Their order counts, and so do names, datatypes and shapes; versions, ids and
    parameters do not.

    Args:
        one: The first.
        other: The second.
        tolerance: How far values of FP16, FP32 and FP64 may be apart, absolute or
            relative, whichever is more; NaNs are the same. Others must be equal.
    """
    try:
        first = pb.ModelInferResponse.FromString(one)
        second = pb.ModelInferResponse.FromString(other)
    except DecodeError:
        return False
    contents = first.raw_output_contents, second.raw_output_contents
    if [_form(each) for each in first.outputs] != [
        _form(each) for each in second.outputs
    ] or len(contents[0]) != len(contents[1]):
        return False
    if contents[0] == contents[1]:
        return True
    return tolerance > 0 and all(
        left == right or _are_near(output.datatype, left, right, tolerance)
        for output, left, right in zip(first.outputs, *contents, strict=False)
    )


def _form(
    output: pb.ModelInferResponse.InferOutputTensor,
) -> tuple[str, str, tuple[int, ...]]:
    return output.name, output.datatype, tuple(output.shape)


def _are_near(datatype: str, left: bytes, right: bytes, tolerance: float) -> bool:
    floating = _FLOATING.get(datatype)
    if floating is None or len(left) != len(right):
        return False
    values, others = (
        np.frombuffer(raw, floating.numpy_dtype).astype(np.float64)
        for raw in (left, right)
    )
    return np.allclose(values, others, rtol=tolerance, atol=tolerance, equal_nan=True)
