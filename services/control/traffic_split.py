"""How requests that name no version are shared out between versions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from services.core.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSplit:
    """The split of one model.

    Attributes:
        weights: Version and weight, ascending, at least one weight above 0.
        sticky_parameter: Requests with the same value of this parameter go to the
            same version; "": each goes its own way.
    """

    weights: tuple[tuple[int, int], ...]
    sticky_parameter: str = ""

    def __post_init__(self) -> None:
        """Refuse what shares out nothing.

        Raises:
            InvalidRequestError: saying what to change.
        """
        for version, weight in self.weights:
            if version <= 0:
                raise InvalidRequestError(f"version {version} is no version")
            if weight < 0:
                raise InvalidRequestError(
                    f"the weight of version {version} must not be negative"
                )
        if not any(weight for _, weight in self.weights):
            raise InvalidRequestError("at least one version must have a weight above 0")


def to_text(splits: Mapping[str, TrafficSplit]) -> str:
    """Return the splits of all models as they are stored."""
    return json.dumps(
        {
            model: {"weights": split.weights, "sticky": split.sticky_parameter}
            for model, split in sorted(splits.items())
        }
    )


def from_text(text: str) -> dict[str, TrafficSplit]:
    """Return what ``to_text`` wrote.

    Raises:
        ValueError: it was not.
    """
    try:
        return {
            str(model): TrafficSplit(
                weights=tuple((int(v), int(w)) for v, w in fields["weights"]),
                sticky_parameter=str(fields["sticky"]),
            )
            for model, fields in json.loads(text).items()
        }
    except (KeyError, TypeError, AttributeError, InvalidRequestError) as error:
        raise ValueError(f"not traffic splits: {error!r}") from error
