"""TorchScript models: model.pt, made by torch.jit.script or torch.jit.trace.

Source:
    Which arguments and results are served, and the messages about others: Triton's
    PyTorch backend. Beyond it: dicts and lists of tensors as results, one list of
    tensors as the argument, and arguments with defaults.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch

from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config import ModelConfig, ModelOutput
from services.worker.backends.pytorch_form import (
    BoundModel,
    Values,
    model_inputs,
    model_outputs,
)
from services.worker.backends.pytorch_names import TensorPlace, assign
from services.worker.signature import TensorSpec

# Few of TorchScript's operators take these.
_UNSUPPORTED: Final = (DataType.UINT16, DataType.UINT32, DataType.UINT64)

# Of torch._C, which has no types.
_Type: TypeAlias = Any
_Argument: TypeAlias = Any


class ScriptModel:
    """A TorchScript module; see ModelForm.

    Several threads may call it, unless it keeps a state.
    """

    def __init__(self, path: str, device: str | None) -> None:
        """Load it to ``device``; None: to where it was saved from."""
        self._module = torch.jit.load(path, map_location=device)
        self._forward = self._module.forward
        self._arguments = self._forward.schema.arguments[1:]
        only = self._arguments[0].type if len(self._arguments) == 1 else None
        self._takes_dict = only is not None and only.kind() == "DictType"
        self._takes_list = only is not None and _is_list_of(only, "TensorType")
        if not (self._takes_dict or self._takes_list):
            _require_served(self._arguments)

    @property
    def input_count(self) -> int:
        """See ModelForm; a dict or a list of any length counts as one."""
        return len(self._arguments)

    @property
    def found(self) -> None:
        """See ModelForm; it tells nothing of datatypes and shapes."""
        return

    def bind(self, config: ModelConfig) -> BoundModel:
        """Return the model by the configuration's names; see ModelForm."""
        _require_datatypes(config)
        names = [spec.name for spec in model_inputs(config)]
        if self._takes_dict:
            run = self._run_dict()
            written = frozenset(names)
        elif self._takes_list:
            run = self._run_list(config, names)
            written = frozenset(names)
        else:
            offered = [one for one in self._arguments if _is_served(one.type)]
            chosen = _choose_arguments(config, offered)
            arguments = {
                name: offered[i].name for name, i in zip(names, chosen, strict=True)
            }
            run = self._run_arguments(arguments)
            in_code = self._written_arguments()
            written = frozenset(n for n in names if arguments[n] in in_code)
        return BoundModel(call=self._named(config, run), written_inputs=written)

    def _run_dict(self) -> Callable[[Values], Any]:
        return lambda inputs: self._forward(dict(inputs))

    def _run_list(
        self, config: ModelConfig, names: Sequence[str]
    ) -> Callable[[Values], Any]:
        places = [TensorPlace()] * len(names)
        chosen = assign(config.name, "input", names, places)
        ordered = [names[chosen.index(i)] for i in range(len(names))]
        return lambda inputs: self._forward([inputs[name] for name in ordered])

    def _run_arguments(self, arguments: dict[str, str]) -> Callable[[Values], Any]:
        return lambda inputs: self._forward(
            **{arguments[name]: value for name, value in inputs.items()}
        )

    def _written_arguments(self) -> frozenset[str]:
        """Return the arguments whose tensors the code may write to."""
        graph = self._module.inlined_graph
        aliases = graph.alias_db()
        values = list(graph.inputs())[1:]
        return frozenset(
            argument.name
            for argument, value in zip(self._arguments, values, strict=True)
            if aliases.has_writers(value)
        )

    def _named(
        self, config: ModelConfig, run: Callable[[Values], Any]
    ) -> Callable[[Values], Values]:
        """Return ``run`` with its results by the configuration's names."""
        result = self._forward.schema.returns[0].type
        if result.kind() == "DictType":
            return run
        names = [output.name for output in model_outputs(config)]
        if _is_list_of(result, "TensorType"):
            chosen = assign(config.name, "output", names, None)
            return lambda inputs: _pick(config, names, chosen, run(inputs))
        if result.kind() != "TupleType":
            _choose_results(config, [result])
            return lambda inputs: {names[0]: run(inputs)}
        chosen = _choose_results(config, list(result.elements()))
        return lambda inputs: _pick(config, names, chosen, run(inputs))


def _choose_arguments(
    config: ModelConfig, offered: Sequence[_Argument]
) -> tuple[int, ...]:
    """Return which of the arguments each input is."""
    specs = model_inputs(config)
    required = [i for i, one in enumerate(offered) if not one.has_default_value()]
    if not len(required) <= len(specs) <= len(offered):
        message = (
            f"unable to load model '{config.name}', configuration expects"
            f" {len(specs)} inputs, model provides {len(offered)}"
        )
        raise ConfigError(message)
    places = [TensorPlace(names=(one.name,)) for one in offered]
    chosen = assign(config.name, "input", [spec.name for spec in specs], places)
    for i in required:
        if i not in chosen:
            message = (
                f"argument '{offered[i].name}' of forward of model '{config.name}' is"
                " none of the configuration's inputs"
            )
            raise ConfigError(message)
    for spec, i in zip(specs, chosen, strict=True):
        _require_kind(config, "input", spec, offered[i].type)
    return chosen


def _choose_results(config: ModelConfig, kinds: Sequence[_Type]) -> tuple[int, ...]:
    """Return which of the results each output is."""
    names = [output.name for output in model_outputs(config)]
    chosen = assign(config.name, "output", names, [TensorPlace()] * len(kinds))
    for output, i in zip(model_outputs(config), chosen, strict=True):
        if not _is_served(kinds[i]):
            message = (
                f"output '{output.name}' must be of type Tensor or List[str]. It is of"
                f" type {kinds[i]}"
            )
            raise ConfigError(message)
        _require_kind(config, "output", output, kinds[i])
    return chosen


def _pick(
    config: ModelConfig, names: Sequence[str], chosen: Sequence[int], found: Any
) -> Values:
    try:
        return {name: found[i] for name, i in zip(names, chosen, strict=True)}
    except IndexError:
        message = (
            f"model '{config.name}' gave {len(found)} outputs, the configuration"
            f" wants output number {max(chosen)}"
        )
        raise BackendError(message) from None


def _require_served(arguments: Sequence[_Argument]) -> None:
    for one in arguments:
        if one.type.kind() == "DictType" and len(arguments) > 1:
            message = (
                "Multiple inputs of kind DictType were detected. Only a single input"
                " of type Dict(str, Tensor) is supported."
            )
            raise ConfigError(message)
        if not _is_served(one.type) and not one.has_default_value():
            message = (
                f"An input of type '{one.type}' was detected in the model. Only a"
                " single input of type Dict(str, Tensor) or input(s) of type Tensor"
                " are supported."
            )
            raise ConfigError(message)


def _require_datatypes(config: ModelConfig) -> None:
    tensors: list[tuple[str, TensorSpec | ModelOutput]] = [
        *(("input", spec) for spec in model_inputs(config)),
        *(("output", output) for output in model_outputs(config)),
    ]
    for kind, tensor in tensors:
        if tensor.datatype in _UNSUPPORTED:
            message = (
                f"unsupported datatype {tensor.datatype.config_name} for {kind}"
                f" '{tensor.name}' for model '{config.name}'"
            )
            raise ConfigError(message)


def _require_kind(
    config: ModelConfig, kind: str, tensor: TensorSpec | ModelOutput, of: _Type
) -> None:
    """Refuse BYTES for what is no list of strings, and the other way round."""
    is_text = tensor.datatype is DataType.BYTES
    if is_text is not _is_list_of(of, "StringType"):
        message = (
            f"unable to load model '{config.name}', configuration expects datatype"
            f" {tensor.datatype.config_name} for {kind} '{tensor.name}', model provides"
            f" {of}"
        )
        raise ConfigError(message)
    if is_text and len(tensor.model_dims) + (config.max_batch_size > 0) > 1:
        message = (
            f"Triton only supports 1 dimensional List of String as {kind} for"
            f" '{tensor.name}' for model '{config.name}'"
        )
        raise ConfigError(message)


def _is_served(of: _Type) -> bool:
    if of.kind() == "OptionalType":
        of = of.getElementType()
    return bool(of.kind() == "TensorType") or _is_list_of(of, "StringType")


def _is_list_of(of: _Type, element: str) -> bool:
    return bool(of.kind() == "ListType" and of.getElementType().kind() == element)
