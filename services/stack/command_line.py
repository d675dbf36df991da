"""``nereid serve``'s arguments: text in, values by flag name out. Pure.

Not argparse: Triton's booleans may stand alone, and a name that nobody knows is
answered with the nearest one that somebody does.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from services.core.flags import parse_bool
from services.stack.flags import FLAGS, OWN_FLAGS, TRITON_FLAGS, Effect, Flag, Kind

BY_NAME: Final[Mapping[str, Flag]] = {flag.name: flag for flag in FLAGS}
Value = bool | int | float | str


class UsageError(ValueError):
    """The command line cannot be understood; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What the user asked for.

    Attributes:
        values: By flag name, in the order given; a flag that is not repeated has
            one value, the last. Deprecated names are resolved.
        ignored: The flags used that do nothing, each once.
        deprecated: The deprecated names used, each once.
    """

    values: Mapping[str, tuple[Value, ...]]
    ignored: tuple[Flag, ...] = ()
    deprecated: tuple[Flag, ...] = ()


def parse(arguments: Iterable[str]) -> CommandLine:
    """Read ``--flag VALUE``, ``--flag=VALUE`` and the forms of booleans.

    Raises:
        UsageError: an unknown flag, a missing value or one of the wrong kind.
    """
    rest = list(arguments)
    values: dict[str, tuple[Value, ...]] = {}
    used: dict[str, Flag] = {}
    while rest:
        name, equals, text = _split(rest.pop(0))
        flag = _flag_named(name)
        value = _convert(flag, text) if equals else _take_value(flag, rest)
        used[flag.name] = flag
        key = flag.alias_of or flag.name
        previous = values.get(key, ()) if flag.repeated else ()
        values[key] = (*previous, value)
    return CommandLine(
        values=values,
        ignored=tuple(f for f in used.values() if f.effect is Effect.IGNORED),
        deprecated=tuple(f for f in used.values() if f.alias_of),
    )


def help_text() -> str:
    """Return the list of all flags."""
    lines = ["usage: nereid serve --model-repository DIR [FLAG]...", ""]
    lines += ["Triton's flags that have an effect:"]
    lines += [_help_line(f) for f in TRITON_FLAGS if f.effect is Effect.HONOURED]
    lines += ["", "Nereid's own:", *(_help_line(flag) for flag in OWN_FLAGS)]
    lines += ["", "Triton's flags that are accepted and ignored:"]
    lines += [_help_line(f) for f in TRITON_FLAGS if f.effect is Effect.IGNORED]
    return "\n".join(lines) + "\n"


def _help_line(flag: Flag) -> str:
    name = f"--{flag.name} {flag.kind.value}".rstrip()
    again = "; repeatable" if flag.repeated and not flag.alias_of else ""
    return f"  {name:<40} {flag.text}{again}"


def _split(argument: str) -> tuple[str, bool, str]:
    """Return the flag's name, whether a ``=`` follows, and what follows it."""
    if argument == "-h":
        return "help", False, ""
    if not argument.startswith("--"):
        raise UsageError(f"unexpected argument '{argument}'; every flag begins with --")
    name, equals, text = argument.removeprefix("--").partition("=")
    return name, bool(equals), text


def _flag_named(name: str) -> Flag:
    flag = BY_NAME.get(name.replace("_", "-"))
    if flag is not None:
        return flag
    nearest = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.5)
    hint = f"; did you mean --{nearest[0]}?" if nearest else ""
    raise UsageError(f"unknown flag --{name}{hint}")


def _take_value(flag: Flag, rest: list[str]) -> Value:
    """Return the value that follows after a space, removing it from ``rest``."""
    if flag.kind is Kind.SWITCH:
        return True
    if flag.kind is Kind.BOOL:
        try:
            value = parse_bool(rest[0])
        except (IndexError, ValueError):
            return True
        rest.pop(0)
        return value
    if not rest or rest[0].startswith("--"):
        raise UsageError(f"--{flag.name} needs a value")
    return _convert(flag, rest.pop(0))


def _convert(flag: Flag, text: str) -> Value:
    try:
        match flag.kind:
            case Kind.SWITCH | Kind.BOOL:
                return parse_bool(text)
            case Kind.INTEGER:
                return int(text)
            case Kind.NUMBER:
                return float(text)
            case Kind.TEXT:
                return text
    except ValueError:
        raise UsageError(
            f"--{flag.name} takes {flag.kind.value or 'BOOL'}, not '{text}'"
        ) from None
