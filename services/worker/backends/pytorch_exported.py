"""Exported programs: model.pt2, made by torch.export.save.

Of all forms the one that tells everything: names, datatypes, shapes, and which
dimensions may vary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from services.core.errors import ConfigError
from services.core.model_config import ModelConfig
from services.worker.backend import FoundModel, FoundTensor
from services.worker.backends.pytorch_form import (
    BoundModel,
    Values,
    model_inputs,
    model_outputs,
)
from services.worker.backends.pytorch_names import (
    TensorPlace,
    assign,
    input_place,
    leaf_paths,
    output_place,
)
from services.worker.backends.pytorch_tensors import datatype_of
from services.worker.model_check import check_model

# Of torch.export and torch._subclasses.
_Program: TypeAlias = Any
_Meta: TypeAlias = Any
_Argument: TypeAlias = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """One tensor among the flattened arguments or results.

    Attributes:
        position: Among all of them, those included that are no tensors.
        place: How it may be called.
        meta: A tensor without contents; its shape has symbols where it may vary.
    """

    position: int
    place: TensorPlace
    meta: _Meta


class ExportedModel:
    """An exported program; see ModelForm."""

    def __init__(self, path: str, device: str | None) -> None:
        """Load it to ``device``; None: to where it was saved from."""
        program = torch.export.load(path)
        if device is not None:
            program = move_to_device_pass(program, device)
        self._program = program
        metas = {node.name: node.meta.get("val") for node in program.graph.nodes}
        self._constants, self._inputs = _inputs(program, metas)
        self._outputs = _outputs(program, metas)

    @property
    def input_count(self) -> int:
        """See ModelForm."""
        return len(self._inputs)

    @property
    def found(self) -> FoundModel:
        """See ModelForm; it tells everything."""
        leaves = (*self._inputs, *self._outputs)
        return FoundModel(
            inputs=tuple(_tensor(leaf, leaf.place.names[0]) for leaf in self._inputs),
            outputs=tuple(
                _tensor(leaf, _output_name(leaf, i))
                for i, leaf in enumerate(self._outputs)
            ),
            max_rows=_max_rows(self._program, [leaf.meta for leaf in leaves]),
        )

    def bind(self, config: ModelConfig) -> BoundModel:
        """Return the model by the configuration's names; see ModelForm."""
        inputs = [spec.name for spec in model_inputs(config)]
        outputs = [output.name for output in model_outputs(config)]
        if len(inputs) != len(self._inputs):
            message = (
                f"unable to load model '{config.name}', configuration expects"
                f" {len(inputs)} inputs, model provides {len(self._inputs)}"
            )
            raise ConfigError(message)
        to = assign(config.name, "input", inputs, [x.place for x in self._inputs])
        of = assign(config.name, "output", outputs, [x.place for x in self._outputs])
        found = self.found
        named = replace(
            found,
            inputs=_renamed(found.inputs, inputs, to),
            outputs=_renamed(found.outputs, outputs, of),
        )
        check_model(config, named)
        return BoundModel(
            call=self._call(
                {name: self._inputs[i] for name, i in zip(inputs, to, strict=True)},
                {name: self._outputs[i] for name, i in zip(outputs, of, strict=True)},
            ),
            written_inputs=frozenset(inputs if _has_writers(self._program) else ()),
        )

    def _call(
        self, inputs: Mapping[str, _Leaf], outputs: Mapping[str, _Leaf]
    ) -> Callable[[Values], Values]:
        module = self._program.module()
        spec = self._program.call_spec.in_spec
        constants = self._constants

        def call(values: Values) -> Values:
            leaves = list(constants)
            for name, leaf in inputs.items():
                leaves[leaf.position] = values[name]
            arguments, keywords = pytree.tree_unflatten(leaves, spec)
            found = pytree.tree_leaves(module(*arguments, **keywords))
            return {name: found[leaf.position] for name, leaf in outputs.items()}

        return call


def _inputs(
    program: _Program, metas: Mapping[str, _Meta]
) -> tuple[list[Any], tuple[_Leaf, ...]]:
    """Return the leaves of the arguments: what is fixed, and the tensors.

    A number, a string or None was compiled into the program, which insists on it.
    """
    paths = leaf_paths(pytree.treespec_dumps(program.call_spec.in_spec))
    names = program.module_call_graph[0].signature.forward_arg_names or ()
    arguments = [
        spec.arg
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    places = [input_place(path, names) for path in paths]
    constants = [getattr(argument, "value", None) for argument in arguments]
    return constants, _leaves(places, arguments, metas)


def _outputs(program: _Program, metas: Mapping[str, _Meta]) -> tuple[_Leaf, ...]:
    paths = leaf_paths(pytree.treespec_dumps(program.call_spec.out_spec))
    results = [
        spec.arg
        for spec in program.graph_signature.output_specs
        if spec.kind is OutputKind.USER_OUTPUT
    ]
    return _leaves([output_place(path) for path in paths], results, metas)


def _leaves(
    places: Sequence[TensorPlace],
    arguments: Sequence[_Argument],
    metas: Mapping[str, _Meta],
) -> tuple[_Leaf, ...]:
    return tuple(
        _Leaf(position=i, place=place, meta=metas[argument.name])
        for i, (place, argument) in enumerate(zip(places, arguments, strict=True))
        if isinstance(metas.get(argument.name), torch.Tensor)
    )


def _tensor(leaf: _Leaf, name: str) -> FoundTensor:
    datatype = datatype_of(leaf.meta.dtype)
    if datatype is None:
        message = f"tensor '{name}' is a {leaf.meta.dtype}, which the protocol lacks"
        raise ConfigError(message)
    shape = tuple(dim if isinstance(dim, int) else -1 for dim in leaf.meta.shape)
    return FoundTensor(name=name, datatype=datatype, shape=shape)


def _output_name(leaf: _Leaf, index: int) -> str:
    """Return the key in a dict, else a number: RESULT[0] is clumsy for a client."""
    best = leaf.place.names[0]
    return f"OUTPUT__{index}" if best.startswith("RESULT") else best


def _renamed(
    tensors: Sequence[FoundTensor], names: Sequence[str], chosen: Sequence[int]
) -> tuple[FoundTensor, ...]:
    """Return ``tensors``, those that are chosen by the configuration's names."""
    by_index = dict(zip(chosen, names, strict=True))
    return tuple(
        replace(tensor, name=by_index.get(i, tensor.name))
        for i, tensor in enumerate(tensors)
    )


def _has_writers(program: _Program) -> bool:
    """Tell whether any operator writes to a tensor: to an input, for all we know."""
    schemas = (getattr(node.target, "_schema", None) for node in program.graph.nodes)
    in_place = any(schema is not None and schema.is_mutable for schema in schemas)
    return in_place or any(
        spec.kind is OutputKind.USER_INPUT_MUTATION
        for spec in program.graph_signature.output_specs
    )


def _max_rows(program: _Program, metas: Sequence[_Meta]) -> int | None:
    """Return how long the first dimension may be that all tensors share.

    None: as long as one likes. 0: they do not share one, or it is fixed.
    """
    rows: list[Any] = [meta.shape[0] if meta.ndim else 1 for meta in metas]
    if any(isinstance(one, int) for one in rows):
        return 0
    expressions = {one.node.expr for one in rows}
    if len(expressions) != 1:
        return 0
    (symbol,) = expressions
    constraint = program.range_constraints.get(symbol)
    if constraint is None:  # a term, as 2 * n
        return 0
    return int(constraint.upper) if constraint.upper.is_Integer else None
