"""Backends that other packages bring along, found by their entry points.

A package names its runtime under the group ``nereid.backends``::

    [project.entry-points."nereid.backends"]
    scale = "nereid_scale:ScaleRuntime"

``backend: "scale"`` in a config.pbtxt is then an instance of that class, made anew
whenever a model is loaded or inspected.
"""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from services.core.errors import BackendError, ConfigError
from services.worker.backend import Runtime

GROUP: Final = "nereid.backends"

_FUNCTIONS: Final = ("load", "inspect")


def installed_backends() -> tuple[str, ...]:
    """Return the names of all backends that packages bring, importing none."""
    return tuple(sorted(entry_points(group=GROUP).names))


def installed_runtime(name: str) -> Runtime | None:
    """Return the runtime that a package brings under ``name``; None if none does.

    Raises:
        ConfigError: two packages bring one, or what it brings is no Runtime.
        BackendError: it cannot be imported or made.
    """
    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        return None
    if len(found) > 1:
        who = ", ".join(sorted(map(_shown, found)))
        message = f"backend '{name}' is brought by more than one package: {who}"
        raise ConfigError(message)
    return _made(found[0])


def _made(entry: EntryPoint) -> Runtime:
    try:
        runtime = cast("Callable[[], object]", entry.load())()
    except Exception as error:
        message = (
            f"backend '{entry.name}' ({_shown(entry)}) cannot start:"
            f" {type(error).__name__}: {error}"
        )
        raise BackendError(message) from error
    missing = [
        function
        for function in _FUNCTIONS
        if not callable(getattr(runtime, function, None))
    ]
    if missing:
        message = (
            f"backend '{entry.name}' ({_shown(entry)}) is no runtime: it has no"
            f" {' and no '.join(missing)}"
        )
        raise ConfigError(message)
    return cast("Runtime", runtime)


def _shown(entry: EntryPoint) -> str:
    package = "" if entry.dist is None else f" of {entry.dist.name}"
    return f"{entry.value}{package}"
