"""How a contradiction in a model configuration names the field it is about."""

from collections.abc import Sequence
from typing import Final

from services.core.errors import ConfigError

FieldPath = tuple[str | int, ...]
"""A field as config.pbtxt writes it: ``("input", 1, "dims", 0)``.

Strings are field names, numbers count the entries of a repeated field, and an
entry of a map is named by its key, as a string.
"""

VARIABLE: Final = -1
"""A dimension that each request chooses."""


class FieldError(ConfigError):
    """A contradiction, and the field that would have to change.

    A record raises it with the path inside itself; whoever builds the record
    knows where it stands and extends the path with ``within``.

    Attributes:
        problem: What is wrong, without the place.
        path: From the outermost record known so far to the field.
    """

    def __init__(self, problem: str, *path: str | int) -> None:
        super().__init__(f"{dotted(path)}: {problem}" if path else problem)
        self.problem = problem
        self.path: FieldPath = path

    def within(self, *prefix: str | int) -> "FieldError":
        """Return the same contradiction, seen from further out."""
        return FieldError(self.problem, *prefix, *self.path)


def dotted(path: FieldPath) -> str:
    """Return the path as people write it, e.g. ``input[1].dims[0]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def require_dims(dims: Sequence[int], field: str) -> None:
    """Refuse a dimension that is neither positive nor variable.

    Raises:
        FieldError: at ``(field, i)``.
    """
    for i, dim in enumerate(dims):
        if dim < 1 and dim != VARIABLE:
            msg = f"a dimension must be at least 1, or -1 if it is variable; got {dim}"
            raise FieldError(msg, field, i)


def require_fixed_dims(dims: Sequence[int], what: str) -> None:
    """Refuse a dimension that is not positive.

    Raises:
        FieldError: at ``("dims", i)``.
    """
    for i, dim in enumerate(dims):
        if dim < 1:
            raise FieldError(f"{what} has positive dimensions, not {dim}", "dims", i)


def require_name(name: str, field: str = "name") -> None:
    """Refuse an empty name.

    Raises:
        FieldError: at ``(field,)``.
    """
    if not name:
        raise FieldError(f"must specify '{field}'", field)


def require_preferred_sizes(sizes: Sequence[int], scheduler: str) -> None:
    """Refuse a preferred batch size that is not positive.

    Raises:
        FieldError: at ``("preferred_batch_size", i)``.
    """
    for i, size in enumerate(sizes):
        if size <= 0:
            msg = f"{scheduler} preferred batch size must be positive"
            raise FieldError(msg, "preferred_batch_size", i)
