"""The flags about the model repository, in the spelling that control reads. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from services.core.byte_size import parse_byte_size
from services.stack.command_line import UsageError, Value

Values = Mapping[str, tuple[Value, ...]]

MODEL_CONTROL_MODES: Final = ("none", "explicit", "poll", "on-demand")
_BUDGET: Final = "model-memory-budget"


def repository_flags(values: Values) -> tuple[str, ...]:
    """Return control's flags.

    Args:
        values: By flag name, as the user gave them.

    Raises:
        UsageError: an unknown mode, or a flag that has no meaning in it.
    """
    mode = str(_last(values, "model-control-mode", default="none"))
    if mode not in MODEL_CONTROL_MODES:
        modes = ", ".join(MODEL_CONTROL_MODES)
        raise UsageError(f"--model-control-mode must be one of {modes}, not '{mode}'")
    _check_models(values, mode)
    _check_budget(values, mode)
    # It is the stack that ends on an error, with a word on every model.
    flags = [f"--model-control-mode={mode}", "--exit-on-error=false"]
    for name in ("load-model", "backend-config"):
        flags += [f"--{name}={value}" for value in values.get(name, ())]
    if "strict-readiness" in values:
        strict = bool(values["strict-readiness"][-1])
        flags.append(f"--strict-readiness={str(strict).lower()}")
    if _last(values, "disable-auto-complete-config", default=False):
        flags.append("--disable-auto-complete-config")
    for name in ("repository-poll-secs", "model-load-retry-count"):
        flags += _number(values, name)
    for name in ("model-config-name", _BUDGET):
        flags += [f"--{name}={value}" for value in values.get(name, ())[-1:]]
    return tuple(flags)


def _check_models(values: Values, mode: str) -> None:
    models = set(values.get("load-model", ()))
    if models and mode not in ("explicit", "on-demand"):
        raise UsageError(
            "--load-model can only be used with --model-control-mode=explicit"
            " or on-demand"
        )
    if "*" in models and len(models) > 1:
        raise UsageError("--load-model=* means every model: name no other beside it")


def _check_budget(values: Values, mode: str) -> None:
    if _BUDGET not in values:
        return
    if mode != "on-demand":
        raise UsageError(
            f"--{_BUDGET} can only be used with --model-control-mode=on-demand"
        )
    try:
        parse_byte_size(str(values[_BUDGET][-1]))
    except ValueError as error:
        raise UsageError(f"--{_BUDGET}: {error}") from None


def _number(values: Values, name: str) -> Iterator[str]:
    for value in values.get(name, ())[-1:]:
        if int(value) < 0:
            raise UsageError(f"--{name} must not be negative, got {value}")
        yield f"--{name}={value}"


def _last(values: Values, name: str, *, default: Value) -> Value:
    return values.get(name, (default,))[-1]
