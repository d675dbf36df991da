"""One traced request as the records of a trace file. Pure.

Source: the JSON files that Triton 2.51 writes. Unlike there, every file is valid
JSON whatever a tensor holds, and FP16, BF16, INT8 and UINT8 have their values.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# What a request's own record and its input tensors come before and after.
_FIRST: Final = "REQUEST_START"
_QUEUED: Final = "QUEUE_START"
_RESPONDED: Final = "COMPUTE_END"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorText:
    """A tensor in words.

    Attributes:
        name: The model's.
        data: The values, with commas between them; BYTES as JSON strings.
        shape: As the request or response has it.
        datatype: The protocol's name.
    """

    name: str
    data: str
    shape: tuple[int, ...]
    datatype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What happened to one request.

    Attributes:
        model: Its model.
        version: The version that was asked.
        request_id: The client's; may be empty.
        timestamps: (name, nanoseconds), in order.
        inputs: Empty unless the level asks for tensors.
        outputs: The same.
        children: What an ensemble made of it.
        traceparent: The caller's W3C trace context; may be empty.
        wall_clock_offset_ns: What makes nanoseconds since 1970 of a timestamp.
        error: Why it failed; empty if it did not.
    """

    model: str
    version: int
    request_id: str = ""
    timestamps: tuple[tuple[str, int], ...] = ()
    inputs: tuple[TensorText, ...] = ()
    outputs: tuple[TensorText, ...] = ()
    children: Sequence["Trace"] = ()
    traceparent: str = ""
    wall_clock_offset_ns: int = 0
    error: str = ""


def records_of(trace: Trace, first_id: int) -> tuple[tuple[str, ...], int]:
    """Return the records of a trace and of its children, each as JSON text.

    Args:
        trace: Of a request that a client sent.
        first_id: Its id; children get the ids after it.

    Returns:
        The records, and the id after the last that was used.
    """
    records: list[str] = []
    next_id = first_id

    def write(each: Trace, parent_id: int) -> None:
        nonlocal next_id
        own_id = next_id
        next_id += 1
        records.extend(_text(r) for r in _own_records(each, own_id, parent_id))
        for child in each.children:
            write(child, own_id)

    write(trace, 0)
    return tuple(records), next_id


def _own_records(
    trace: Trace, own_id: int, parent_id: int
) -> Iterator[dict[str, object]]:
    description: dict[str, object] = {
        "id": own_id,
        "model_name": trace.model,
        "model_version": trace.version,
    }
    if trace.request_id:
        description["request_id"] = trace.request_id
    if parent_id:
        description["parent_id"] = parent_id
    names = [name for name, _ in trace.timestamps]
    if _FIRST not in names:
        yield description
    if _QUEUED not in names:
        yield from _tensors(own_id, "TENSOR_QUEUE_INPUT", trace.inputs)
    if _RESPONDED not in names:
        yield from _tensors(own_id, "TENSOR_BACKEND_OUTPUT", trace.outputs)
    for name, ns in trace.timestamps:
        if name == _FIRST:
            yield description
        if name == _RESPONDED:
            yield from _tensors(own_id, "TENSOR_BACKEND_OUTPUT", trace.outputs)
        yield {"id": own_id, "timestamps": [{"name": name, "ns": ns}]}
        if name == _QUEUED:
            yield from _tensors(own_id, "TENSOR_QUEUE_INPUT", trace.inputs)


def _tensors(
    own_id: int, activity: str, tensors: Sequence[TensorText]
) -> Iterator[dict[str, object]]:
    for tensor in tensors:
        yield {
            "id": own_id,
            "activity": activity,
            "tensor": {
                "name": tensor.name,
                "data": tensor.data,
                "shape": ",".join(map(str, tensor.shape)),
                "dtype": tensor.datatype,
            },
        }


def _text(record: dict[str, object]) -> str:
    return json.dumps(record, separators=(",", ":"))
