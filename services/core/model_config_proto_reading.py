"""Reading repeated fields, enums and datatypes, so that errors know their path."""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TypeVar

from services.core.datatype import DataType
from services.core.errors import InvalidRequestError
from services.core.model_config_fields import FieldError

Message = TypeVar("Message")
Record = TypeVar("Record")
Member = TypeVar("Member", bound=enum.Enum)

MICROSECOND_NS = 1_000


@contextmanager
def at(*prefix: str | int) -> Iterator[None]:
    """Extend the path of a FieldError raised inside.

    Raises:
        FieldError: the one from inside, seen from further out.
    """
    try:
        yield
    except FieldError as error:
        raise error.within(*prefix) from None


def each(
    field: str, messages: Iterable[Message], read: Callable[[Message], Record]
) -> tuple[Record, ...]:
    """Return what ``read`` makes of each entry of a repeated field.

    Raises:
        FieldError: from ``read``, seen from outside of ``field``.
    """
    records = []
    for i, message in enumerate(messages):
        with at(field, i):
            records.append(read(message))
    return tuple(records)


def each_value(
    field: str, messages: Mapping[str, Message], read: Callable[[Message], Record]
) -> Mapping[str, Record]:
    """Return what ``read`` makes of each value of a map.

    Raises:
        FieldError: from ``read``, seen from outside of ``field``.
    """
    records = {}
    for key, message in messages.items():
        with at(field, key):
            records[key] = read(message)
    return MappingProxyType(records)


def member(kind: type[Member], number: int, field: str) -> Member:
    """Return the enum's member with the schema's ``number``.

    Raises:
        FieldError: at ``field``: a newer schema's number, or none at all.
    """
    try:
        return kind(number)
    except ValueError:
        raise FieldError(f"unknown value {number}", field) from None


def data_type(number: int, field: str = "data_type") -> DataType:
    """Return the datatype with the schema's ``number``.

    Raises:
        FieldError: at ``field``: TYPE_INVALID, which an absent field also is, or
            an unknown number.
    """
    try:
        return DataType.from_config(number)
    except InvalidRequestError:
        raise FieldError(f"must specify '{field}'", field) from None
