import numpy as np
import pytest

from protos import model_config_pb2
from services.core.datatype import DataType
from services.core.errors import InvalidRequestError


def test_every_datatype_of_the_schema_is_known_and_no_other() -> None:
    known = {datatype.config_name: datatype.config_number for datatype in DataType}
    assert known | {"TYPE_INVALID": 0} == dict(model_config_pb2.DataType.items())


@pytest.mark.parametrize("datatype", list(DataType))
def test_names_and_numbers_lead_back_to_the_datatype(datatype: DataType) -> None:
    assert DataType.from_protocol(datatype.value) is datatype
    assert DataType.from_config(datatype.config_number) is datatype


@pytest.mark.parametrize(
    ("name", "byte_size", "dtype"),
    [
        ("BOOL", 1, np.bool_),
        ("UINT8", 1, np.uint8),
        ("UINT16", 2, np.uint16),
        ("UINT32", 4, np.uint32),
        ("UINT64", 8, np.uint64),
        ("INT8", 1, np.int8),
        ("INT16", 2, np.int16),
        ("INT32", 4, np.int32),
        ("INT64", 8, np.int64),
        ("FP16", 2, np.float16),
        ("FP32", 4, np.float32),
        ("FP64", 8, np.float64),
        ("BYTES", None, np.object_),
        ("BF16", 2, np.uint16),
    ],
)
def test_sizes_and_array_types_are_those_of_the_protocol(
    name: str, byte_size: int | None, dtype: type[np.generic]
) -> None:
    datatype = DataType.from_protocol(name)
    assert datatype.byte_size == byte_size
    assert datatype.numpy_dtype == np.dtype(dtype)


@pytest.mark.parametrize("name", ["", "int32", "TYPE_INT32", "STRING"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"unknown datatype '{name}'"):
        DataType.from_protocol(name)


@pytest.mark.parametrize("number", [-1, 0, 15])
def test_an_unknown_number_is_refused(number: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"unknown datatype number {number}"):
        DataType.from_config(number)
