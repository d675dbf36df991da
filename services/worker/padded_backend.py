"""Requests of different lengths as one batch: padded, executed, cut back.

An adapter: it takes requests one by one and gives its backend arrays, with what the
model declares in between (``services.core.model_config_padding``). The result for a
request is what it would be alone, provided the model minds its mask.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config import ModelConfig
from services.core.model_config_padding import LengthOf, Padding
from services.worker.backend import (
    AnyBackend,
    Backend,
    BackendAnswer,
    BackendCall,
    BackendReply,
    DecoupledBackend,
    ModelSource,
    ReplyTensor,
    RequestBackend,
    RequestTensor,
    Tensors,
)
from services.worker.model_metrics import Metric, MetricFamily, MetricsSource
from services.worker.request_arrays import array_of, bytes_of
from services.worker.scatter import scatter
from services.worker.signature import Signature


def with_padding(
    backend: AnyBackend, config: ModelConfig, signature: Signature
) -> AnyBackend:
    """Return ``backend``, with padding before it if the model declares some.

    Raises:
        ConfigError: the backend takes requests one by one: nothing to pad.
    """
    if config.padding is None:
        return backend
    if isinstance(backend, RequestBackend | DecoupledBackend):
        message = (
            f"model '{config.name}' declares padding, but its backend takes requests "
            "one by one"
        )
        raise ConfigError(message)
    return PaddedBackend(backend, signature, config.padding)


class PaddedBackend:
    """One instance of a model that declares padding; see RequestBackend."""

    def __init__(
        self, backend: Backend, signature: Signature, padding: Padding
    ) -> None:
        """Pad as ``padding`` says for ``backend``."""
        self._backend = backend
        self._signature = signature
        self._padding = padding
        self._slots = {spec.name: i for i, spec in enumerate(signature.inputs)}
        self._batch_elements = 0
        self._padded_elements = 0
        self._metrics: MetricsSource | None = None

    def show(self, source: ModelSource) -> None:
        """Count from now on, and show how much of the batches is padding."""
        labels = {"model": source.config.name, "version": str(source.version)}

        def counter(name: str, text: str, value: int) -> MetricFamily:
            metric = Metric(labels=labels, value=value)
            return MetricFamily(name=name, text=text, kind="COUNTER", metrics=(metric,))

        self._batch_elements = self._padded_elements = 0
        self._metrics = source.metrics.open(
            lambda: (
                counter(
                    "nereid_batch_elements_total",
                    "Elements of padded inputs as executed, padding included",
                    self._batch_elements,
                ),
                counter(
                    "nereid_padded_elements_total",
                    "Elements of padded inputs that are padding",
                    self._padded_elements,
                ),
            )
        )
        self._metrics.changed()

    def execute_requests(self, calls: Sequence[BackendCall]) -> Sequence[BackendAnswer]:
        """Run one batch; see RequestBackend."""
        rows = [call.inputs[0].shape[0] for call in calls]
        inputs = self._inputs(calls, rows)
        wanted = tuple(sorted({output for call in calls for output in call.outputs}))
        names = [self._signature.outputs[index].name for index in wanted]
        outputs = self._backend.execute(inputs, names)
        if self._metrics is not None:
            self._metrics.changed()
        scatter(self._signature, wanted, outputs, sum(rows))
        answers = []
        first = 0
        for call, count in zip(calls, rows, strict=True):
            answers.append(self._answer(call, outputs, first, count))
            first += count
        return answers

    def unload(self) -> None:
        """Release everything."""
        self._backend.unload()
        if self._metrics is not None:
            self._metrics.close()

    def _inputs(self, calls: Sequence[BackendCall], rows: list[int]) -> Tensors:
        inputs: dict[str, NDArray[Any]] = {}
        for slot, spec in enumerate(self._signature.inputs):
            tensors = [t for call in calls for t in call.inputs if t.slot == slot]
            if not tensors:
                continue
            if len(tensors) != len(calls):
                text = f"input '{spec.name}' is missing in a part of the batch"
                raise BackendError(text)
            inputs[spec.name] = self._padded(spec.name, spec.datatype, tensors, rows)
        inputs.update(self._generated(calls, rows, inputs))
        return inputs

    def _padded(
        self,
        name: str,
        datatype: DataType,
        tensors: Sequence[RequestTensor],
        rows: list[int],
    ) -> NDArray[Any]:
        """Return one input of all requests, each in its corner of the batch."""
        arrays = [array_of(tensor, datatype) for tensor in tensors]
        dims = self._padding.padded_dims(name)
        shape = [sum(rows), *arrays[0].shape[1:]]
        for dim in dims:
            longest = max(array.shape[1 + dim] for array in arrays)
            shape[1 + dim] = self._padding.bucket_of(longest)
        value = next((p.value for p in self._padding.inputs if p.name == name), 0)
        padded = np.full(shape, value, arrays[0].dtype)
        first = 0
        for array, count in zip(arrays, rows, strict=True):
            corner = tuple(slice(size) for size in array.shape[1:])
            padded[(slice(first, first + count), *corner)] = array
            first += count
        if dims:
            self._batch_elements += padded.size
            self._padded_elements += padded.size - sum(array.size for array in arrays)
        return padded

    def _generated(
        self, calls: Sequence[BackendCall], rows: list[int], inputs: Tensors
    ) -> Mapping[str, NDArray[Any]]:
        """Return the mask and the lengths, as far as the model wants them."""
        made: dict[str, NDArray[Any]] = {}
        padding = self._padding
        if padding.lengths is not None:
            lengths = self._row_lengths(calls, rows, padding.lengths.of)
            dtype = self._dtype(padding.lengths.name)
            made[padding.lengths.name] = lengths.astype(dtype).reshape(-1, 1)
        if padding.mask is not None:
            of = padding.mask.of
            lengths = self._row_lengths(calls, rows, of)
            size = inputs[of.name].shape[1 + of.dim]
            mask = np.arange(size) < lengths.reshape(-1, 1)
            made[padding.mask.name] = mask.astype(self._dtype(padding.mask.name))
        return made

    def _row_lengths(
        self, calls: Sequence[BackendCall], rows: list[int], of: LengthOf
    ) -> NDArray[np.int64]:
        lengths = [self._length(call, of) for call in calls]
        return np.repeat(np.array(lengths, np.int64), rows)

    def _length(self, call: BackendCall, of: LengthOf) -> int:
        slot = self._slots[of.name]
        return next(t.shape[1 + of.dim] for t in call.inputs if t.slot == slot)

    def _dtype(self, name: str) -> np.dtype[Any]:
        spec = self._signature.inputs[self._slots[name]]
        return spec.datatype.numpy_dtype

    def _answer(
        self, call: BackendCall, outputs: Tensors, first: int, count: int
    ) -> BackendReply:
        tensors = []
        for index in call.outputs:
            spec = self._signature.outputs[index]
            array = outputs[spec.name][first : first + count]
            for cut in self._padding.outputs:
                if cut.name == spec.name:
                    length = self._length(call, cut.of)
                    around = (slice(None),) * (1 + cut.dim)
                    array = array[(*around, slice(length))]
            tensors.append(
                ReplyTensor(index, spec.datatype, array.shape, bytes_of(array))
            )
        return BackendReply(tuple(tensors), {})
