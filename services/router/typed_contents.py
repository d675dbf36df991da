"""Typed tensor contents turned into raw bytes, so that workers know one form.

Source: the KServe V2 protocol, "Tensor Data": which field of InferTensorContents
carries which datatype. FP16 and BF16 have no field: they travel raw only.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from protos import inference_pb2
from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError

_FIELDS: Final[Mapping[DataType, str]] = {
    DataType.BOOL: "bool_contents",
    DataType.INT8: "int_contents",
    DataType.INT16: "int_contents",
    DataType.INT32: "int_contents",
    DataType.INT64: "int64_contents",
    DataType.UINT8: "uint_contents",
    DataType.UINT16: "uint_contents",
    DataType.UINT32: "uint_contents",
    DataType.UINT64: "uint64_contents",
    DataType.FP32: "fp32_contents",
    DataType.FP64: "fp64_contents",
    DataType.BYTES: "bytes_contents",
}

# How the oracle names the datatype of a field that should not have been used.
_FIELD_DATATYPES: Final[Mapping[str, str]] = {
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": "BYTES",
}
# What the fields hold.
_WIDE: Final[Mapping[str, type[np.generic]]] = {
    "bool_contents": np.bool_,
    "int_contents": np.int32,
    "int64_contents": np.int64,
    "uint_contents": np.uint32,
    "uint64_contents": np.uint64,
    "fp32_contents": np.float32,
    "fp64_contents": np.float64,
}


def raw_contents(
    tensor: inference_pb2.ModelInferRequest.InferInputTensor, model: str
) -> bytes:
    """Return the typed contents of ``tensor`` as raw little-endian bytes.

    Raises:
        InvalidRequestError: no contents at all, contents in another field than
            the datatype's, or a number that the datatype cannot hold.
    """
    used = [field.name for field, _ in tensor.contents.ListFields()]
    if not used:
        message = (
            f"unable to find data for input tensor '{tensor.name}' for model "
            f"'{model}' in request."
        )
        raise InvalidRequestError(message)
    datatype = DataType.from_protocol(tensor.datatype)
    field = _FIELDS.get(datatype)
    if field is None:
        message = (
            f"{datatype.value} data of input tensor '{tensor.name}' for model "
            f"'{model}' can only be sent in raw_input_contents"
        )
        raise InvalidRequestError(message)
    for name in used:
        if name != field:
            message = (
                f"unexpected explicit tensor data for input tensor '{tensor.name}' "
                f"for model '{model}' of type '{_FIELD_DATATYPES[name]}', expected "
                f"datatype '{datatype.value}'"
            )
            raise InvalidRequestError(message)
    values = getattr(tensor.contents, field)
    if datatype is DataType.BYTES:
        return byte_tensor.encode(values)
    # Left to itself numpy makes one float64 of small and of large uint64.
    wide = np.array(values, _WIDE[field])
    narrow = wide.astype(datatype.numpy_dtype)
    if datatype.numpy_dtype.kind in "iu" and not np.array_equal(wide, narrow):
        wrong = wide[wide != narrow][0]
        message = (
            f"value {wrong} of input tensor '{tensor.name}' for model '{model}' does "
            f"not fit into datatype '{datatype.value}'"
        )
        raise InvalidRequestError(message)
    return narrow.tobytes()
