"""Model configurations as JSON: what /config answers and a load may bring.

Source:
    Triton's model configuration extension. Its JSON is protobuf's with three
    differences when printing: 64-bit integers are numbers, fields keep their
    names from the schema, and a field is left out only if it can be unset.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
)
from google.protobuf.message import Message

from protos.model_config_pb2 import ModelConfig
from services.core.errors import ConfigError

# Younger than the release whose answers ours equal: printed only if set.
_YOUNG_FIELDS: Final = frozenset({"inference.ModelEnsembling.max_inflight_requests"})
# JSON has no word for these; protobuf's JSON writes strings.
_NAMED_FLOATS: Final = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def to_json(config: ModelConfig) -> bytes:
    """Return ``config`` as the body of /config."""
    return orjson.dumps(to_dict(config))


def to_dict(config: ModelConfig) -> dict[str, object]:
    """Return the same as nested dicts, lists and scalars."""
    return _object_of(config, ModelConfig.DESCRIPTOR)


def from_json(text: str | bytes) -> ModelConfig:
    """Parse a configuration, as the ``config`` parameter of a load has it.

    Field names may be the schema's or lowerCamelCase; 64-bit integers may be
    numbers or strings; null leaves a field unset.

    Raises:
        ConfigError: not JSON, or not a ModelConfig; the message says where.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        msg = "model configuration is not JSON: nested too deeply"
        raise ConfigError(msg) from None
    except ValueError as error:
        msg = f"model configuration is not JSON: {error}"
        raise ConfigError(msg) from error
    _check(value, ModelConfig.DESCRIPTOR, "")
    try:
        return json_format.ParseDict(value, ModelConfig())
    except json_format.ParseError as error:
        msg = f"invalid model configuration: {error}"
        raise ConfigError(msg) from error


def _object_of(message: Message, descriptor: Descriptor) -> dict[str, object]:
    found: dict[str, object] = {}
    for field in descriptor.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            continue
        if field.full_name in _YOUNG_FIELDS and not value:
            continue
        found[field.name] = _value_of(field, value)
    return found


def _value_of(field: FieldDescriptor, value: object) -> object:
    if isinstance(value, Mapping) and field.message_type is not None:
        of_entry = field.message_type.fields_by_name["value"]
        return {str(key): _scalar_of(of_entry, value[key]) for key in sorted(value)}
    if isinstance(value, Iterable) and field.is_repeated:
        return [_scalar_of(field, item) for item in value]
    return _scalar_of(field, value)


def _scalar_of(field: FieldDescriptor, value: object) -> object:
    if isinstance(value, Message) and field.message_type is not None:
        return _object_of(value, field.message_type)
    if isinstance(value, int) and field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    return _float_of(field, value) if isinstance(value, float) else value


def _float_of(field: FieldDescriptor, value: float) -> float | str:
    if not math.isfinite(value):
        return _NAMED_FLOATS[str(value)]
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        # The shortest text that reads back as the same 32 bits.
        return float(str(np.float32(value)))
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"duplicate key {twice!a}"
        raise ValueError(msg)
    return found


def _check(value: object, descriptor: Descriptor, path: str) -> None:
    """Refuse what protobuf's parser would let pass or explain badly.

    It takes an empty array or string for an empty message, and an enum's
    number without asking whether it has a name.
    """
    where = f" at '{path}'" if path else ""
    if not isinstance(value, dict):
        msg = f"invalid model configuration: expected an object{where}"
        raise ConfigError(msg)
    fields = {field.json_name: field for field in descriptor.fields}
    fields.update(descriptor.fields_by_name)
    for name, item in value.items():
        field = fields.get(name)
        if field is None:
            msg = f"invalid model configuration: unknown field {name!a}{where}"
            raise ConfigError(msg)
        if item is not None:
            _check_field(item, field, f"{path}.{name}" if path else name)


def _check_field(value: object, field: FieldDescriptor, path: str) -> None:
    items = {path: value}
    message_type = field.message_type
    if isinstance(value, dict) and message_type and message_type.GetOptions().map_entry:
        items = {f"{path}[{key!a}]": item for key, item in value.items()}
        message_type = message_type.fields_by_name["value"].message_type
    elif isinstance(value, list) and field.is_repeated:
        items = {f"{path}[{i}]": item for i, item in enumerate(value)}
    elif field.is_repeated:
        return  # protobuf's parser says that it must be an array or a map
    for where, item in items.items():
        if message_type is not None:
            _check(item, message_type, where)
        elif field.enum_type is not None:
            _check_enum(item, field.enum_type, where)


def _check_enum(value: object, enum: EnumDescriptor, path: str) -> None:
    names = enum.values_by_name
    if isinstance(value, int) and not isinstance(value, bool):
        known = value in enum.values_by_number
    else:
        known = isinstance(value, str) and value in names
    if not known:
        msg = (
            f"invalid model configuration: {json.dumps(value)} at '{path}'"
            f" is not one of {', '.join(names)}"
        )
        raise ConfigError(msg)
