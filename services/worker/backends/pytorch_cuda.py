"""Executions on a GPU, each instance on a stream of its own."""

from typing import Any

import torch

from services.worker.backends.pytorch_form import BoundModel, Values


class CudaModel:
    """Runs a model on the device that it was loaded to.

    Inputs go there by way of pinned memory, without waiting; reading an output
    waits for the stream.
    """

    def __init__(self, model: BoundModel, device: str, *, pins_inputs: bool) -> None:
        """Serve ``model``, which is on ``device``."""
        self._model = model
        self._device = device
        self._pins_inputs = pins_inputs
        self._stream = torch.cuda.Stream(device)

    def call(self, values: Values) -> Values:
        """Run it; see BoundModel. The outputs are on the host."""
        with torch.cuda.stream(self._stream):
            found = self._model.call({n: self._there(v) for n, v in values.items()})
            return {n: _here(v) for n, v in found.items()}

    def _there(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if self._pins_inputs:
            value = value.pin_memory()
        return value.to(self._device, non_blocking=self._pins_inputs)


def _here(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value
