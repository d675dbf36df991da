"""Padding that a model declares: requests of different lengths share a batch.

It stands in the configuration's ``parameters`` as JSON, so that config.pbtxt stays
valid for Triton; see docs/padding.md. Neither Triton nor its peers have it whole.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.core.datatype import DataType
from services.core.model_config_fields import VARIABLE, FieldError
from services.core.model_config_tensors import ModelInput, ModelOutput

PADDING_PARAMETER: Final = "nereid_padding"
_KEYS: Final = frozenset(("inputs", "buckets", "mask", "lengths", "outputs"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedInput:
    """An input whose rows may have different lengths.

    Attributes:
        name: Of the input.
        dims: Which of its dimensions (from 0, without the batch dimension).
        value: What fills the rest.
    """

    name: str
    dims: tuple[int, ...]
    value: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthOf:
    """Whose length is meant: a padded dimension of an input."""

    name: str
    dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedInput:
    """An input that the server makes: a mask of real elements, or the lengths."""

    name: str
    of: LengthOf


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOutput:
    """An output of which each request gets its own length back."""

    name: str
    dim: int
    of: LengthOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """What a model declares about padding.

    Attributes:
        inputs: Those that are padded; at least one.
        buckets: Lengths worth padding to, ascending; none: the batch's longest.
        mask: FP32, INT64, ... of 1 where an element is real and 0 where it is not,
            ``[rows, length]``; None: the model wants none.
        lengths: An integer each, ``[rows, 1]``; None likewise.
        outputs: Those that are cut.
    """

    inputs: tuple[PaddedInput, ...]
    buckets: tuple[int, ...] = ()
    mask: GeneratedInput | None = None
    lengths: GeneratedInput | None = None
    outputs: tuple[CutOutput, ...] = ()

    @property
    def generated(self) -> frozenset[str]:
        """The inputs that clients do not send."""
        made = (self.mask, self.lengths)
        return frozenset(one.name for one in made if one is not None)

    def padded_dims(self, name: str) -> tuple[int, ...]:
        """Return which dimensions of the input ``name`` are padded."""
        return next((one.dims for one in self.inputs if one.name == name), ())

    def bucket_of(self, length: int) -> int:
        """Return what ``length`` is padded to; itself if no bucket is as long."""
        return next((size for size in self.buckets if size >= length), length)

    def batch_key(self, length: int) -> int:
        """Return what lengths have in common that share a batch."""
        return self.bucket_of(length) if self.buckets else VARIABLE


def padding_from_parameters(
    parameters: Mapping[str, str],
    inputs: Sequence[ModelInput],
    outputs: Sequence[ModelOutput],
    max_batch_size: int,
) -> Padding | None:
    """Return the padding a configuration declares; None if it declares none.

    Raises:
        FieldError: it is no JSON of this form, or contradicts the tensors.
    """
    text = parameters.get(PADDING_PARAMETER)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise FieldError(f"not JSON: {error}") from None
    document = _object(value, PADDING_PARAMETER)
    unknown = set(document) - _KEYS
    if unknown:
        raise FieldError(f"unknown key '{min(unknown)}'; known are {sorted(_KEYS)}")
    if max_batch_size < 1:
        raise FieldError("padding needs a model that batches (max_batch_size > 0)")
    declared = {tensor.name: tensor for tensor in inputs}
    padded = _padded_inputs(_object(document.get("inputs", {}), "inputs"), declared)
    return Padding(
        inputs=padded,
        buckets=_buckets(document.get("buckets", [])),
        mask=_generated(document.get("mask"), "mask", padded, declared),
        lengths=_generated(document.get("lengths"), "lengths", padded, declared),
        outputs=_cut_outputs(
            _object(document.get("outputs", {}), "outputs"), padded, outputs
        ),
    )


def _padded_inputs(
    entries: Mapping[str, object], declared: Mapping[str, ModelInput]
) -> tuple[PaddedInput, ...]:
    if not entries:
        raise FieldError("'inputs' must name at least one input")
    padded = []
    for name, value in entries.items():
        tensor = declared.get(name)
        if tensor is None:
            raise FieldError(f"'{name}' is no input of the model")
        if tensor.datatype is DataType.BYTES or tensor.reshape is not None:
            raise FieldError(
                f"input '{name}' is BYTES or reshaped: it cannot be padded"
            )
        entry = _object(value, name)
        dims = tuple(_index(dim, name) for dim in _list(entry.get("dims", [0]), name))
        for dim in dims:
            _require_variable(tensor, dim)
        fill = entry.get("value", 0)
        if isinstance(fill, bool) or not isinstance(fill, int | float):
            raise FieldError(f"the pad value of input '{name}' must be a number")
        padded.append(PaddedInput(name=name, dims=dims, value=fill))
    return tuple(padded)


def _buckets(value: object) -> tuple[int, ...]:
    sizes = tuple(_index(size, "buckets") for size in _list(value, "buckets"))
    if list(sizes) != sorted(set(sizes)) or 0 in sizes:
        raise FieldError(f"'buckets' must ascend and be positive, got {list(sizes)}")
    return sizes


def _generated(
    value: object,
    kind: str,
    padded: Sequence[PaddedInput],
    declared: Mapping[str, ModelInput],
) -> GeneratedInput | None:
    if value is None:
        return None
    entry = _object(value, kind)
    name = entry.get("name")
    if not isinstance(name, str) or name not in declared:
        raise FieldError(f"'{kind}' must name an input of the model, got {name!r}")
    if any(one.name == name for one in padded):
        raise FieldError(f"'{name}' cannot be padded and generated")
    if declared[name].datatype is DataType.BYTES:
        raise FieldError(f"'{name}' is BYTES: it cannot be generated")
    return GeneratedInput(name=name, of=_length_of(entry.get("of"), padded))


def _cut_outputs(
    entries: Mapping[str, object],
    padded: Sequence[PaddedInput],
    outputs: Sequence[ModelOutput],
) -> tuple[CutOutput, ...]:
    declared = {tensor.name: tensor for tensor in outputs}
    cut = []
    for name, value in entries.items():
        tensor = declared.get(name)
        if tensor is None:
            raise FieldError(f"'{name}' is no output of the model")
        entry = _object(value, name)
        dim = _index(entry.get("dim", 0), name)
        _require_variable(tensor, dim)
        of = _length_of(entry.get("of"), padded)
        cut.append(CutOutput(name=name, dim=dim, of=of))
    return tuple(cut)


def _length_of(value: object, padded: Sequence[PaddedInput]) -> LengthOf:
    """Read "input" or "input:dim"; nothing means the first padded dimension."""
    if value is None:
        return LengthOf(name=padded[0].name, dim=padded[0].dims[0])
    name, _, dim = str(value).partition(":")
    for one in padded:
        if one.name == name and (not dim or (dim.isdecimal() and int(dim) in one.dims)):
            return LengthOf(name=name, dim=int(dim) if dim else one.dims[0])
    raise FieldError(f"'of' must name a padded input or 'input:dim', got {value!r}")


def _require_variable(tensor: ModelInput | ModelOutput, dim: int) -> None:
    if dim >= len(tensor.dims) or tensor.dims[dim] != VARIABLE:
        raise FieldError(
            f"dimension {dim} of '{tensor.name}' is not variable in the configuration"
        )


def _object(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise FieldError(f"'{what}' must be a JSON object")
    return value


def _list(value: object, what: str) -> Sequence[object]:
    if not isinstance(value, list):
        raise FieldError(f"'{what}' must be a JSON array")
    return value


def _index(value: object, what: str) -> int:
    if type(value) is not int or value < 0:
        raise FieldError(f"'{what}' must have whole numbers from 0, got {value!r}")
    return value
