"""Which of a PyTorch model's inputs and outputs a configuration's names mean.

Its files number their tensors, and name at most their inputs. Three ways to call
them are tried, each for all at once: by names the file knows, by ``<name>__<index>``,
and by the configuration's order.

Source:
    The naming convention of Triton's PyTorch backend; for .pt2 files the names
    ARGS[..], KWARGS[..] and RESULT[..] of its README.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from services.core.errors import ConfigError

_SEPARATOR: Final = "__"

Step: TypeAlias = str | int
Path: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """One input or output of a model.

    Attributes:
        names: What the file calls it, the best first; may be none.
        is_optional: An input that need not be given.
    """

    names: tuple[str, ...] = ()
    is_optional: bool = False


def assign(
    model: str, kind: str, names: Sequence[str], places: Sequence[TensorPlace] | None
) -> tuple[int, ...]:
    """Return for each of ``names`` which of ``places`` it means.

    Args:
        model: For messages.
        kind: "input" or "output", for messages.
        names: Of the configuration, in its order.
        places: Of the model, in its order; None if nobody knows how many.

    Raises:
        ConfigError: a name means a place that there is not, or two mean the same.
    """
    by_name = _by_name(names, places or ())
    chosen = by_name or _by_index(names) or tuple(range(len(names)))
    for name, index in zip(names, chosen, strict=True):
        if places is not None and index >= len(places):
            message = (
                f"The {kind} {name} in the model configuration refers to an {kind}"
                f" index which doesn't exist. This model has {len(places)} {kind}s"
            )
            raise ConfigError(message)
    for i, index in enumerate(chosen):
        if index in chosen[:i]:
            other = names[chosen.index(index)]
            message = (
                f"{kind}s '{other}' and '{names[i]}' of model '{model}' are the same"
                f" {kind} of the file, number {index}"
            )
            raise ConfigError(message)
    return chosen


def _by_name(
    names: Sequence[str], places: Sequence[TensorPlace]
) -> tuple[int, ...] | None:
    known = {name: i for i, place in enumerate(places) for name in place.names}
    if not all(name in known for name in names):
        return None
    return tuple(known[name] for name in names)


def _by_index(names: Sequence[str]) -> tuple[int, ...] | None:
    indices = [name.partition(_SEPARATOR)[2] for name in names]
    if not all(index.isascii() and index.isdecimal() for index in indices):
        return None
    return tuple(map(int, indices))


def leaf_paths(spec: str) -> tuple[Path, ...]:
    """Return where each leaf of a nested value is, in order; ((),) for a bare one.

    Args:
        spec: A tree specification, as torch.utils._pytree writes it in JSON.
    """
    _version, tree = json.loads(spec)
    return tuple(_paths(tree, ()))


def _paths(tree: dict[str, Any], path: Path) -> Iterator[Path]:
    children = tree["children_spec"]
    if tree["type"] is None:
        yield path
        return
    keys = json.loads(tree["context"]) if isinstance(tree["context"], str) else None
    steps: list[Step] = [*range(len(children))]
    if isinstance(keys, list) and len(keys) == len(children):
        steps = [*map(str, keys)]
    for step, child in zip(steps, children, strict=True):
        yield from _paths(child, (*path, step))


def input_place(path: Path, arguments: Sequence[str]) -> TensorPlace:
    """Return how an input may be called.

    Args:
        path: In ``(args, kwargs)``.
        arguments: The names of the positional arguments, as far as they are known.
    """
    side, first, *rest = path
    if side == 1:
        formal = f"KWARGS{_suffix(path[1:])}"
        return TensorPlace(names=(f"{first}{_suffix(rest)}", formal))
    formal = f"ARGS{_suffix(path[1:])}"
    if isinstance(first, int) and first < len(arguments):
        return TensorPlace(names=(f"{arguments[first]}{_suffix(rest)}", formal))
    return TensorPlace(names=(formal,))


def output_place(path: Path) -> TensorPlace:
    """Return how an output may be called."""
    formal = f"RESULT{_suffix(path)}"
    if path and isinstance(path[0], str):
        return TensorPlace(names=(f"{path[0]}{_suffix(path[1:])}", formal))
    return TensorPlace(names=(formal,))


def _suffix(path: Sequence[Step]) -> str:
    return "".join(f"[{step}]" for step in path)
