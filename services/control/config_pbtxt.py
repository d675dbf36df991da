"""config.pbtxt, from text to message, with the place of everything wrong in it."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, TypeAlias

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor

from protos import model_config_pb2 as pb
from services.control.config_locations import Node, Position, path_at, scan
from services.core import model_config_json
from services.core.errors import ConfigError
from services.core.model_config_fields import FieldError, FieldPath, dotted

FILE_NAME: Final = "config.pbtxt"
PARAMETER_NAME: Final = "config parameter"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigText:
    """A configuration as it was written.

    Attributes:
        source: What people call the text, e.g. "config.pbtxt".
        message: What it says; nothing completed.
        root: Where its fields stand; None if the text has no lines worth naming.
    """

    source: str
    message: pb.ModelConfig
    root: Node | None = None

    @property
    def member_models(self) -> tuple[str, ...]:
        """The models that an ensemble's steps call; () if it is none."""
        steps = self.message.ensemble_scheduling.step
        return tuple(dict.fromkeys(step.model_name for step in steps))

    def locate(self, error: FieldError) -> ConfigError:
        """Return ``error`` with the source, line and column of its field.

        A field that is not written has the place of the one around it; with none
        around it, only the source is named.
        """
        position = self.root.find(error.path) if self.root else None
        return _error(self.source, position, error.path, error.problem)


def absent() -> ConfigText:
    """Return the configuration of a model without a config.pbtxt."""
    return ConfigText(source=FILE_NAME, message=pb.ModelConfig())


def decode(data: bytes, source: str = FILE_NAME) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: it is not UTF-8; with line and column.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", errors="replace")
        line = before.count("\n") + 1
        position = Position(line=line, column=len(before) - before.rfind("\n"))
        problem = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise _error(source, position, (), problem) from None


def parse(text: str, source: str = FILE_NAME) -> ConfigText:
    """Return what a config.pbtxt says.

    Raises:
        ConfigError: a syntax error, an unknown field or a value of the wrong
            type; with line, column and field.
    """
    try:
        message = text_format.Parse(text, pb.ModelConfig())
    except text_format.ParseError as error:
        raise _refusal(error, text, source) from None
    return ConfigText(source=source, message=message, root=scan(text))


def parse_json(text: str | bytes, source: str = PARAMETER_NAME) -> ConfigText:
    """Return what the JSON form of a configuration says.

    It is what the repository extension's load request carries in "config".

    Raises:
        ConfigError: from ``model_config_json.from_json``.
    """
    return ConfigText(source=source, message=model_config_json.from_json(text))


def _error(
    source: str, position: Position | None, path: FieldPath, problem: str
) -> ConfigError:
    place = f"{source}:{position.line}:{position.column}" if position else source
    parts = (place, dotted(path), problem)
    return ConfigError(": ".join(part for part in parts if part))


def _refusal(error: text_format.ParseError, text: str, source: str) -> ConfigError:
    line, column = error.GetLine(), error.GetColumn()
    problem = str(error)
    if line is None or column is None:
        return _error(source, None, (), _reworded(problem))
    position = Position(line=line, column=column)
    # The parser's own text repeats the position and the line.
    problem = problem.removeprefix(f"{line}:{column} : ")
    written = text.split("\n")[line - 1] if line <= text.count("\n") + 1 else ""
    problem = problem.removeprefix(f"'{written}': ").removeprefix("'': ")
    path = _without_needless_numbers(path_at(text, position))
    return _error(source, position, path, _reworded(problem))


def _without_needless_numbers(path: FieldPath) -> FieldPath:
    kept: list[str | int] = []
    descriptor: Descriptor | None = pb.ModelConfig.DESCRIPTOR
    for name, number in zip(path[::2], path[1::2], strict=True):
        field = descriptor.fields_by_name.get(str(name)) if descriptor else None
        kept.append(name)
        if field is not None and field.is_repeated:
            kept.append(number)
        descriptor = field.message_type if field is not None else None
    return tuple(kept)


def _reworded(problem: str) -> str:
    for pattern, reword in _REWORDINGS:
        match = pattern.match(problem)
        if match:
            return reword(match)
    return problem.rstrip(".")


def _unknown_field(match: re.Match[str]) -> str:
    type_name, name = match.groups()
    descriptor = pb.DESCRIPTOR.pool.FindMessageTypeByName(type_name)
    known = descriptor.fields_by_name
    return f"unknown field '{name}' of {descriptor.name}{_guess(name, known)}"


def _unknown_value(match: re.Match[str]) -> str:
    type_name, name = match.groups()
    known = pb.DESCRIPTOR.pool.FindEnumTypeByName(type_name).values_by_name
    return f"unknown value {name}{_guess(name, known)}"


def _guess(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _wrong_type(match: re.Match[str]) -> str:
    article = "an" if match[1][0] in "aeiou" else "a"
    return f"expected {article} {match[1]}, got {match[2] or 'nothing'}"


_Rewording: TypeAlias = Callable[[re.Match[str]], str]
_REWORDINGS: Final[tuple[tuple[re.Pattern[str], _Rewording], ...]] = (
    (
        re.compile(r'Message type "([\w.]+)" has no field named "([^"]+)"'),
        _unknown_field,
    ),
    (
        re.compile(r'Enum type "([\w.]+)" has no value named ([^\s]+?)\.?$'),
        _unknown_value,
    ),
    (
        re.compile(r'Message type "[\w.]+" should not have multiple "(\w+)" fields'),
        lambda match: f"'{match[1]}' must not be given twice",
    ),
    (
        re.compile(r'Field "(\w+)" is specified along with field "(\w+)"'),
        lambda match: f"'{match[1]}' and '{match[2]}' exclude each other",
    ),
    (
        re.compile(r"Couldn't parse (\w+): (.*)", re.DOTALL),
        _wrong_type,
    ),
)
