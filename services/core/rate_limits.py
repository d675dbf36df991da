"""The flags --rate-limit and --rate-limit-resource, as Triton writes them. Pure.

Source: Triton's user guide, "Rate Limiter"; the words of its command line and of
its load errors.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

OFF: Final = "off"
BY_EXECUTION_COUNT: Final = "execution_count"
_MODES: Final = (OFF, BY_EXECUTION_COUNT)


def is_rate_limited(mode: str) -> bool:
    """Read --rate-limit.

    Raises:
        ValueError: there is no such mode.
    """
    if mode.lower() not in _MODES:
        raise ValueError(f"there is no mode '{mode}', only {' and '.join(_MODES)}")
    return mode.lower() != OFF


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAmount:
    """How much of a resource there is.

    Attributes:
        name: As the models' configurations have it.
        count: >= 0.
        device: Where; None: on every device.
    """

    name: str
    count: int
    device: int | None = None


def resource_amounts(settings: Iterable[str]) -> tuple[ResourceAmount, ...]:
    """Read --rate-limit-resource, each NAME:COUNT or NAME:COUNT:DEVICE.

    Raises:
        ValueError: a setting of another form.
    """
    return tuple(_amount(setting) for setting in settings)


def _amount(setting: str) -> ResourceAmount:
    name, *numbers = setting.split(":")
    are_numbers = all(text.isascii() and text.isdigit() for text in numbers)
    if not name or len(numbers) not in {1, 2} or not are_numbers:
        raise ValueError(
            "the format is '<resource_name>:<count>:<device>' or "
            f"'<resource_name>:<count>'. Got {setting}"
        )
    count, *device = map(int, numbers)
    return ResourceAmount(name=name, count=count, device=device[0] if device else None)
