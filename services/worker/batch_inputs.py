"""Inputs that tell a model how its batch was put together. Pure.

Source: BatchInput in Triton's model_config.proto, and what Triton's backends make of
it: counts are of whole requests, all their rows together; shapes are of each row.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.core.model_config import BatchInput, BatchInputKind
from services.worker.signature import element_count


def batch_input(
    declared: BatchInput, shapes: Sequence[tuple[int, ...]]
) -> NDArray[Any]:
    """Return one batch input.

    Args:
        declared: Which.
        shapes: Of the source input in each request, rows first.

    Returns:
        One-dimensional, but ``(rows, dims)`` for ITEM_SHAPE. Of
        MAX_ELEMENT_COUNT_AS_SHAPE only the shape means something.
    """
    counts = [element_count(shape) for shape in shapes]
    dtype = declared.datatype.numpy_dtype
    kind = declared.kind
    if kind is BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE:
        return np.zeros(max(counts, default=0), dtype)
    if kind is BatchInputKind.ELEMENT_COUNT:
        return np.array(counts, dtype)
    if kind is BatchInputKind.ACCUMULATED_ELEMENT_COUNT:
        return np.cumsum(counts).astype(dtype)
    if kind is BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO:
        return np.cumsum([0, *counts]).astype(dtype)
    items = [shape[1:] for shape in shapes for _ in range(shape[0])]
    rank = len(shapes[0]) - 1 if shapes else 0
    array = np.array(items, dtype).reshape(len(items), rank)
    return array.reshape(-1) if kind is BatchInputKind.ITEM_SHAPE_FLATTEN else array
