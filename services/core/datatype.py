"""The tensor datatypes of the protocol."""

import enum
from typing import Self

import numpy as np

from services.core.errors import InvalidRequestError


class DataType(enum.Enum):
    """One datatype; the value is its name in requests and responses.

    Attributes:
        config_number: Its number in the protobuf enum inference.DataType.
        byte_size: Of one element; None for BYTES, whose elements vary.
        numpy_dtype: What an array of it has. BF16, which numpy lacks, is held
            as its bit pattern in uint16; BYTES as Python objects.

    Source:
        The datatype tables of KServe's V2 protocol and Triton's model
        configuration.
    """

    config_number: int
    byte_size: int | None
    numpy_dtype: np.dtype[np.generic]

    BOOL = ("BOOL", 1, "?")
    UINT8 = ("UINT8", 2, "u1")
    UINT16 = ("UINT16", 3, "<u2")
    UINT32 = ("UINT32", 4, "<u4")
    UINT64 = ("UINT64", 5, "<u8")
    INT8 = ("INT8", 6, "i1")
    INT16 = ("INT16", 7, "<i2")
    INT32 = ("INT32", 8, "<i4")
    INT64 = ("INT64", 9, "<i8")
    FP16 = ("FP16", 10, "<f2")
    FP32 = ("FP32", 11, "<f4")
    FP64 = ("FP64", 12, "<f8")
    BYTES = ("BYTES", 13, "O")
    BF16 = ("BF16", 14, "<u2")

    def __new__(cls, name: str, config_number: int, dtype: str) -> Self:
        """Make the member whose value is ``name``."""
        member = object.__new__(cls)
        member._value_ = name
        member.config_number = config_number
        member.numpy_dtype = np.dtype(dtype)
        has_size = not member.numpy_dtype.hasobject
        member.byte_size = member.numpy_dtype.itemsize if has_size else None
        return member

    @property
    def config_name(self) -> str:
        """Its name in a model configuration, e.g. "TYPE_STRING" for BYTES."""
        return "TYPE_STRING" if self is DataType.BYTES else f"TYPE_{self.name}"

    @classmethod
    def from_protocol(cls, name: str) -> "DataType":
        """Return the datatype a request calls ``name``.

        Raises:
            InvalidRequestError: there is none; the caller, who knows the
                tensor, may say more.
        """
        found = _BY_PROTOCOL_NAME.get(name)
        if found is None:
            msg = f"unknown datatype '{name}'"
            raise InvalidRequestError(msg)
        return found

    @classmethod
    def from_config(cls, number: int) -> "DataType":
        """Return the datatype with this number in inference.DataType.

        Raises:
            InvalidRequestError: there is none; TYPE_INVALID (0) is none.
        """
        found = _BY_CONFIG_NUMBER.get(number)
        if found is None:
            msg = f"unknown datatype number {number}"
            raise InvalidRequestError(msg)
        return found


_BY_PROTOCOL_NAME = {datatype.value: datatype for datatype in DataType}
_BY_CONFIG_NUMBER = {datatype.config_number: datatype for datatype in DataType}
