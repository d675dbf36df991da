"""Tensors so large that a copy of them counts."""

import numpy as np
import pytest

from services.core.datatype import DataType
from services.worker.batch_decoder import BatchDecoder, in_place
from services.worker.gather import GatherBuffer
from tests.unit.worker.messages import batch, reader, request, signature, tensor

WIDE = signature([tensor("X", (-1,))], [tensor("Y", (-1,))], max_batch_size=2)
ELEMENTS = 1 << 16


@pytest.mark.parametrize("request_id", ["", "a", "ab", "abc", "abcd"])
def test_a_large_tensor_arrives_wherever_it_lies(request_id: str) -> None:
    array = np.arange(ELEMENTS, dtype=np.int32).reshape(1, -1)
    decoder = BatchDecoder(WIDE, reader(WIDE))
    found = decoder.decode(batch(request({"X": array}, request_id=request_id)))
    np.testing.assert_array_equal(found.inputs["X"], array)
    assert found.inputs["X"].flags.aligned
    assert not found.inputs["X"].flags.writeable


def test_two_large_tensors_are_put_together() -> None:
    array = np.arange(ELEMENTS, dtype=np.int32).reshape(1, -1)
    decoder = BatchDecoder(WIDE, reader(WIDE))
    messages = (request({"X": array}), request({"X": array + 1}))
    found = decoder.decode(batch(*messages))
    np.testing.assert_array_equal(found.inputs["X"], np.concatenate((array, array + 1)))


def test_a_tensor_is_used_where_it_lies_if_its_elements_are_in_step() -> None:
    memory = np.zeros(64, np.uint8)
    offset = -memory.ctypes.data % 8
    source = memory.data
    eight = np.dtype(np.int64)
    found = in_place(source, (offset, offset + 16), eight, (2, 1))
    assert found is not None
    assert found.base is not None
    assert found.shape == (2, 1)
    memory[offset] = 7
    assert found[0, 0] == 7
    assert in_place(source, (offset + 1, offset + 17), eight, (2, 1)) is None


def test_memory_for_a_huge_batch_goes_with_the_next_small_one() -> None:
    buffer = GatherBuffer(tensor("X", (-1,), DataType.UINT8), WIDE)
    assert len(buffer.reserve(100 << 20)) == 100 << 20
    assert len(buffer.reserve(100)) < 1 << 20


def test_memory_for_usual_batches_is_kept() -> None:
    buffer = GatherBuffer(tensor("X", (-1,), DataType.UINT8), WIDE)
    room = len(buffer.reserve(10 << 20))
    assert room >= 10 << 20
    assert len(buffer.reserve(100)) == room
    full = tensor("X", (40 << 20,), DataType.UINT8)
    assert len(GatherBuffer(full, WIDE).reserve(1)) == 80 << 20
