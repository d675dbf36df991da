"""Requests as clients write them, and answers as routers read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protos import inference_pb2, worker_pb2
from services.core import byte_tensor
from services.core.datatype import DataType
from services.worker import wire
from services.worker.request_reader import RequestReader
from services.worker.signature import Signature, TensorSpec


def tensor(
    name: str,
    dims: Sequence[int] = (4,),
    datatype: DataType = DataType.INT32,
    *,
    reshape: Sequence[int] | None = None,
    optional: bool = False,
) -> TensorSpec:
    return TensorSpec(
        name=name,
        datatype=datatype,
        dims=tuple(dims),
        reshape=None if reshape is None else tuple(reshape),
        optional=optional,
    )


def signature(
    inputs: Sequence[TensorSpec] = (tensor("A"), tensor("B")),
    outputs: Sequence[TensorSpec] = (tensor("SUM"), tensor("DIFF")),
    *,
    max_batch_size: int = 8,
) -> Signature:
    return Signature(
        model_name="m",
        model_version=3,
        max_batch_size=max_batch_size,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )


def reader(of: Signature) -> RequestReader:
    return RequestReader(of, wire.parse_request, wire.canonical_request)


def request(
    arrays: dict[str, NDArray[Any]],
    *,
    request_id: str = "",
    outputs: Sequence[str] = (),
    version: str = "",
    parameters: dict[str, str] | None = None,
) -> inference_pb2.ModelInferRequest:
    """Return a request; uint16 arrays are BF16 if their name says so."""
    message = inference_pb2.ModelInferRequest(
        model_name="m", model_version=version, id=request_id
    )
    for key, value in (parameters or {}).items():
        message.parameters[key].string_param = value
    for name, array in arrays.items():
        message.inputs.add(
            name=name, datatype=_datatype(name, array), shape=array.shape
        )
        message.raw_input_contents.append(raw(array))
    for name in outputs:
        message.outputs.add(name=name)
    return message


def raw(array: NDArray[Any]) -> bytes:
    if array.dtype.hasobject:
        return byte_tensor.encode(array.reshape(-1).tolist())
    return array.tobytes()


def _datatype(name: str, array: NDArray[Any]) -> str:
    if "BF16" in name:
        return "BF16"
    matches = [
        one
        for one in DataType
        if one is not DataType.BF16 and one.numpy_dtype == array.dtype
    ]
    return str(matches[0].value)


def batch(*requests: inference_pb2.ModelInferRequest | bytes) -> bytes:
    return worker_pb2.BatchRequest(
        request=[
            one if isinstance(one, bytes) else one.SerializeToString()
            for one in requests
        ]
    ).SerializeToString()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One reply: an error, or a response."""

    error: tuple[int, str] | None = None
    request_id: str = ""
    names: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    datatypes: tuple[str, ...] = ()
    contents: tuple[bytes, ...] = ()
    model: tuple[str, str] = ("", "")

    def array(self, name: str, dtype: type = np.int32) -> NDArray[Any]:
        index = self.names.index(name)
        flat: NDArray[Any] = np.frombuffer(self.contents[index], dtype)
        return flat.reshape(self.shapes[index])


def answers(message: bytes) -> list[Answer]:
    parsed = worker_pb2.BatchResponse.FromString(message)
    return [_answer(reply) for reply in parsed.reply]


def _answer(reply: worker_pb2.Reply) -> Answer:
    if reply.WhichOneof("outcome") == "error":
        return Answer(error=(reply.error.code, reply.error.message))
    response = inference_pb2.ModelInferResponse.FromString(reply.response)
    return Answer(
        request_id=response.id,
        model=(response.model_name, response.model_version),
        names=tuple(output.name for output in response.outputs),
        shapes=tuple(tuple(output.shape) for output in response.outputs),
        datatypes=tuple(output.datatype for output in response.outputs),
        contents=tuple(response.raw_output_contents),
    )


def ints(*values: int, rows: int = 1) -> NDArray[np.int32]:
    """Return rows of four: the first holds ``values``, the next one more each."""
    return np.arange(rows, dtype=np.int32)[:, None] + np.array(values, np.int32)
