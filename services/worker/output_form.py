"""Outputs that a client wants as classes, or in its own shared memory."""

from dataclasses import dataclass, replace

from services.core.datatype import DataType
from services.core.errors import InternalError
from services.worker.classification import classify
from services.worker.layout import OutputForm
from services.worker.shared_memory import write_region
from services.worker.signature import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FormedOutput:
    """An output of one reply.

    Attributes:
        datatype: Of its elements.
        shape: The client's, with rows.
        raw: Its contents, as far as they are part of the reply.
    """

    datatype: DataType
    shape: tuple[int, ...]
    raw: bytes | memoryview


def form_output(
    output: FormedOutput, form: OutputForm, spec: TensorSpec, *, is_batched: bool
) -> FormedOutput:
    """Give an output the form that the client wants.

    Raises:
        InvalidRequestError: its elements cannot be classes.
        InternalError: it does not fit into the region, or that is not here.
    """
    if form.class_count:
        rows = output.shape[0] if is_batched else 1
        count, raw = classify(
            output.raw,
            output.datatype,
            rows=rows,
            class_count=form.class_count,
            labels=spec.labels,
        )
        shape = (rows, count) if is_batched else (count,)
        output = FormedOutput(datatype=DataType.BYTES, shape=shape, raw=raw)
    region = form.region
    if region is None:
        return output
    size = len(output.raw)
    if size > region.byte_size:
        message = (
            f"shared memory size specified with the request for output '{spec.name}' "
            f"({region.byte_size} bytes) should be at least {size} bytes to hold the "
            "results"
        )
        raise InternalError(message)
    write_region(region, output.raw)
    return replace(output, raw=b"")
