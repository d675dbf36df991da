"""Which errors say that a batch was too large for its device."""

import pytest

from services.core.errors import BackendError
from services.worker.exhaustion import is_exhaustion


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        BackendError(
            "onnx runtime error 6: Non-zero status code returned while running Add "
            "node: Failed to allocate memory for requested buffer of size 4294967296"
        ),
        BackendError("onnx runtime error 6: std::bad_alloc"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("CUDNN_STATUS_ALLOC_FAILED"),
        BackendError("Failed to process the request(s), message: MemoryError: "),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
    ],
)
def test_too_little_memory_is_recognised(error: Exception) -> None:
    assert is_exhaustion(error)


@pytest.mark.parametrize(
    "error", [BackendError("onnx runtime error 2: bad input"), ValueError("x")]
)
def test_any_other_error_is_not_taken_for_it(error: Exception) -> None:
    assert not is_exhaustion(error)
