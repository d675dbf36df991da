"""AOTInductor packages: model.pt2, made by torch._inductor.aoti_compile_and_package.

They hold machine code for one kind of device. PyTorch holds the interpreter's lock
while it computes.
"""

import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch._inductor.package import load_package

from services.core.errors import BackendError, ConfigError
from services.core.model_config import ModelConfig
from services.worker.backend import FoundModel, FoundTensor
from services.worker.backends.pytorch_form import (
    BoundModel,
    Values,
    model_inputs,
    model_outputs,
)
from services.worker.backends.pytorch_names import (
    assign,
    input_place,
    leaf_paths,
    output_place,
)
from services.worker.backends.pytorch_package import CompiledInput, compiled_inputs
from services.worker.backends.pytorch_tensors import datatype_of
from services.worker.model_check import check_model

_DEVICE_KEY: Final = "AOTI_DEVICE_KEY"
_SOURCE: Final = ".wrapper.cpp"


class CompiledModel:
    """An AOTInductor package; see ModelForm."""

    def __init__(self, path: str, device: str | None, runners: int) -> None:
        """Load it.

        Args:
            path: Of the package.
            device: Where it is to run; None: where it was compiled for.
            runners: How many threads may execute it at a time.

        Raises:
            ConfigError: it was compiled for another kind of device.
        """
        loaded = load_package(path, num_runners=runners)
        compiled_for = loaded.get_metadata().get(_DEVICE_KEY, "")
        wanted = device.partition(":")[0] if device else compiled_for
        if compiled_for and compiled_for != wanted:
            message = (
                f"{path} was compiled for {compiled_for}, the instance runs on {wanted}"
            )
            raise ConfigError(message)
        self._loader = loaded.loader
        inputs, outputs = map(leaf_paths, self._loader.get_call_spec())
        # With what is no tensor, and was compiled in.
        self._arguments = [input_place(path, ()) for path in inputs]
        self._results = [output_place(path) for path in outputs]
        self._inputs = compiled_inputs(_source(path))

    @property
    def input_count(self) -> int:
        """See ModelForm."""
        return len(self._inputs or self._arguments)

    @property
    def found(self) -> None:
        """See ModelForm; of its outputs it tells nothing."""
        return

    def bind(self, config: ModelConfig) -> BoundModel:
        """Return the model by the configuration's names; see ModelForm.

        Nobody knows which inputs it writes to: all count as such.
        """
        inputs = [spec.name for spec in model_inputs(config)]
        outputs = [output.name for output in model_outputs(config)]
        if len(inputs) != self.input_count:
            message = (
                f"unable to load model '{config.name}', configuration expects"
                f" {len(inputs)} inputs, model provides {self.input_count}"
            )
            raise ConfigError(message)
        to = assign(config.name, "input", inputs, self._arguments)
        of = assign(config.name, "output", outputs, self._results)
        ordered = [name for _, name in sorted(zip(to, inputs, strict=True))]
        if self._inputs:
            check_model(config, _found(config, ordered, self._inputs))
        call = self._call(ordered, dict(zip(outputs, of, strict=True)))
        return BoundModel(call=call, written_inputs=frozenset(inputs))

    def _call(
        self, inputs: Sequence[str], outputs: Mapping[str, int]
    ) -> Callable[[Values], Values]:
        run = self._loader.run
        compiled = self._inputs
        count = len(self._results)

        def call(values: Values) -> Values:
            tensors = [values[name] for name in inputs]
            # Not strict: a package without its source does not tell.
            for name, tensor, expected in zip(inputs, tensors, compiled, strict=False):
                if not expected.accepts(tensor.shape):
                    raise BackendError(_misfit(name, tensor.shape, expected))
            found = run(tensors)
            if len(found) != count:
                message = f"the package gave {len(found)} tensors for {count} results"
                raise BackendError(message)
            return {name: found[i] for name, i in outputs.items()}

        return call


def _source(path: str) -> str:
    """Return the C++ that calls the package's kernels; "" if it is left out."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(_SOURCE):
                return archive.read(name).decode()
    return ""


def _found(
    config: ModelConfig, names: Sequence[str], compiled: Sequence[CompiledInput]
) -> FoundModel:
    """Return what the package says; its outputs are as they are configured."""
    inputs = []
    for name, one in zip(names, compiled, strict=True):
        datatype = datatype_of(getattr(torch, one.dtype, None))
        if datatype is None:
            message = f"tensor '{name}' is a {one.dtype}, which the protocol lacks"
            raise ConfigError(message)
        inputs.append(FoundTensor(name=name, datatype=datatype, shape=one.shape))
    rows = (-1,) if config.max_batch_size else ()
    return FoundModel(
        inputs=tuple(inputs),
        outputs=tuple(
            FoundTensor(name=o.name, datatype=o.datatype, shape=(*rows, *o.model_dims))
            for o in model_outputs(config)
        ),
        max_rows=min((one.most[0] for one in compiled if 0 in one.most), default=None),
    )


def _misfit(name: str, shape: Sequence[int], expected: CompiledInput) -> str:
    return (
        f"input '{name}' has shape {list(shape)}, the package was compiled for"
        f" {list(expected.shape)}"
        + "".join(f", at most {size} at {i}" for i, size in expected.most.items())
    )
