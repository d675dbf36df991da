"""Requests of different shapes as one batch: laid end to end, and told apart again.

An adapter, as ``padded_backend`` is: it takes requests one by one and gives its
backend arrays. A *ragged* input (``allow_ragged_batch``) is the elements of all
requests in one dimension; *batch inputs* say where each request's begin, and *batch
outputs* are cut by the shapes of an input. All others have rows as always.

Source: Triton's user guide, "Ragged Batching", and what its ONNX Runtime backend does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.core import byte_tensor
from services.core.errors import BackendError
from services.core.model_config import ModelConfig
from services.core.model_config_fields import VARIABLE
from services.worker.backend import (
    AnyBackend,
    Backend,
    BackendAnswer,
    BackendCall,
    BackendReply,
    DecoupledBackend,
    ReplyTensor,
    RequestBackend,
    Tensors,
)
from services.worker.batch_inputs import batch_input
from services.worker.request_arrays import array_of
from services.worker.scatter import OutputBlock, scatter
from services.worker.signature import Signature, element_count


def with_ragged_batches(
    backend: AnyBackend, config: ModelConfig, signature: Signature
) -> AnyBackend:
    """Return ``backend``, behind what its ragged inputs need if it has some.

    A backend that takes requests one by one gets each in its own shape as it is.
    """
    is_ragged = any(one.allow_ragged_batch for one in config.inputs)
    if not (is_ragged or config.batch_inputs or config.batch_outputs):
        return backend
    if isinstance(backend, RequestBackend | DecoupledBackend):
        return backend
    return RaggedBackend(backend, config, signature)


class RaggedBackend:
    """One instance of a model with ragged or batch tensors; see RequestBackend."""

    def __init__(
        self, backend: Backend, config: ModelConfig, signature: Signature
    ) -> None:
        """Lay requests end to end for ``backend``, as ``config`` says."""
        self._backend = backend
        self._signature = signature
        self._ragged = {one.name for one in config.inputs if one.allow_ragged_batch}
        self._batch_inputs = config.batch_inputs
        self._slots = {spec.name: i for i, spec in enumerate(signature.inputs)}
        self._sources = {
            name: declared.source_input
            for declared in config.batch_outputs
            for name in declared.target_names
        }
        # Batch outputs are looked at as a whole: they have no rows.
        self._whole = replace(
            signature,
            max_batch_size=0,
            outputs=tuple(replace(spec, reshape=None) for spec in signature.outputs),
        )

    def execute_requests(self, calls: Sequence[BackendCall]) -> Sequence[BackendAnswer]:
        """Run one batch; see RequestBackend."""
        inputs = self._inputs(calls)
        wanted = sorted({output for call in calls for output in call.outputs})
        names = [self._signature.outputs[index].name for index in wanted]
        outputs = self._backend.execute(inputs, names)
        is_batched = self._signature.is_batched
        rows = [call.inputs[0].shape[0] if is_batched else 1 for call in calls]
        plain = [i for i in wanted if self._name(i) not in self._sources]
        blocks = scatter(self._signature, plain, outputs, sum(rows))
        replies: list[list[ReplyTensor]] = [[] for _ in calls]
        for index in wanted:
            cut = (
                self._by_rows(index, blocks[index], outputs[self._name(index)], rows)
                if index in blocks
                else self._by_shapes(index, outputs, calls)
            )
            for call, tensors, tensor in zip(calls, replies, cut, strict=True):
                if index in call.outputs:
                    tensors.append(tensor)
        return [BackendReply(tuple(tensors), {}) for tensors in replies]

    def unload(self) -> None:
        """Release everything."""
        self._backend.unload()

    def _name(self, output: int) -> str:
        return self._signature.outputs[output].name

    def _inputs(self, calls: Sequence[BackendCall]) -> Tensors:
        inputs: dict[str, NDArray[Any]] = {}
        for slot, spec in enumerate(self._signature.inputs):
            arrays = [
                array_of(tensor, spec.datatype)
                for call in calls
                for tensor in call.inputs
                if tensor.slot == slot
            ]
            if not arrays:
                continue
            if len(arrays) != len(calls):
                text = f"input '{spec.name}' is missing in a part of the batch"
                raise BackendError(text)
            if spec.name in self._ragged:
                arrays = [array.reshape(-1) for array in arrays]
            inputs[spec.name] = (
                arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            )
        inputs.update(self._made(calls))
        return inputs

    def _made(self, calls: Sequence[BackendCall]) -> Mapping[str, NDArray[Any]]:
        made: dict[str, NDArray[Any]] = {}
        for declared in self._batch_inputs:
            shapes = [self._shape(call, declared.source_input) for call in calls]
            array = batch_input(declared, shapes)
            made.update(dict.fromkeys(declared.target_names, array))
        return made

    def _shape(self, call: BackendCall, name: str) -> tuple[int, ...]:
        """Return the shape of an input, rows first.

        Raises:
            BackendError: the request left it out.
        """
        slot = self._slots[name]
        for tensor in call.inputs:
            if tensor.slot == slot:
                return tensor.shape
        text = f"input '{name}' is missing, and the batch is described by its shape"
        raise BackendError(text)

    def _by_rows(
        self, index: int, block: OutputBlock, array: NDArray[Any], rows: list[int]
    ) -> list[ReplyTensor]:
        spec = self._signature.outputs[index]
        if not self._signature.is_batched:
            data = memoryview(block.rows(0, 1))
            return [ReplyTensor(index, spec.datatype, array.shape, data)]
        tensors = []
        first = 0
        for count in rows:
            data = memoryview(block.rows(first, count))
            shape = (count, *array.shape[1:])
            tensors.append(ReplyTensor(index, spec.datatype, shape, data))
            first += count
        return tensors

    def _by_shapes(
        self, index: int, outputs: Tensors, calls: Sequence[BackendCall]
    ) -> list[ReplyTensor]:
        """Cut a batch output: what varies in it is as in its source input.

        Source:
            BATCH_SCATTER_WITH_INPUT_SHAPE, as Triton's backends read it: the n-th
            dimension of the output, if it varies, has the size of the input's n-th.
        """
        spec = self._signature.outputs[index]
        dims = (VARIABLE, *spec.model_dims)[int(not self._signature.is_batched) :]
        source = self._sources[spec.name]
        shapes = [_filled(dims, self._shape(call, source)) for call in calls]
        counts = [element_count(shape) for shape in shapes]
        block = scatter(self._whole, (index,), outputs, 1)[index]
        if sum(counts) != block.row_elements:
            text = (
                f"output '{spec.name}' of model '{self._signature.model_name}':"
                f" expected {sum(counts)} elements for the batch, by the shapes of"
                f" input '{source}', the model produced {block.row_elements}"
                f" (shape {list(outputs[spec.name].shape)})"
            )
            raise BackendError(text)
        tensors = []
        first = 0
        for shape, count in zip(shapes, counts, strict=True):
            data = _elements(block, first, count)
            tensors.append(ReplyTensor(index, spec.datatype, shape, data))
            first += count
        return tensors


def _filled(dims: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``dims`` with what varies taken from ``shape``, place by place."""
    return tuple(
        shape[place] if dim == VARIABLE else dim for place, dim in enumerate(dims)
    )


def _elements(block: OutputBlock, first: int, count: int) -> memoryview:
    """Return some elements of an output that was taken as a whole, as on the wire."""
    if block.elements is not None:
        return memoryview(byte_tensor.encode(block.elements[first : first + count]))
    size = block.row_bytes // block.row_elements if block.row_elements else 0
    return memoryview(block.data)[first * size : (first + count) * size]
