"""How requests that name no version are shared out between versions."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from services.core.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSplit:
    """The split of one model.

    Attributes:
        weights: Version and weight, ascending; () if only a shadow is wanted, else at
            least one weight above 0.
        sticky_parameter: Requests with the same value of this parameter go to the
            same version; "": each goes its own way.
        sticky_header: The same for a header, in lower case.
        shadow_version: Gets a copy of each request; 0: none does.
        shadow_tolerance: How far floating-point outputs of copies may be off,
            absolute or relative, and still be called the same.
    """

    weights: tuple[tuple[int, int], ...] = ()
    sticky_parameter: str = ""
    sticky_header: str = ""
    shadow_version: int = 0
    shadow_tolerance: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what shares out nothing, or contradicts itself.

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
        has_weight = any(weight for _, weight in self.weights)
        if not has_weight and (self.weights or not self.shadow_version):
            raise InvalidRequestError("at least one version must have a weight above 0")
        if self.sticky_parameter and self.sticky_header:
            raise InvalidRequestError(
                "a split is sticky by sticky_parameter or by sticky_header, not by both"
            )
        self._check_shadow()

    def _check_shadow(self) -> None:
        if self.shadow_version < 0:
            raise InvalidRequestError(
                f"shadow_version {self.shadow_version} is no version"
            )
        if dict(self.weights).get(self.shadow_version):
            raise InvalidRequestError(
                f"version {self.shadow_version} is the shadow version: it gets copies "
                "and cannot have a weight"
            )
        if not 0 <= self.shadow_tolerance < math.inf:
            raise InvalidRequestError("shadow_tolerance must be a number, 0 or more")


def to_text(splits: Mapping[str, TrafficSplit]) -> str:
    """Return the splits of all models as they are stored."""
    return json.dumps(
        {
            model: {
                "weights": split.weights,
                "sticky": split.sticky_parameter,
                "sticky_header": split.sticky_header,
                "shadow": split.shadow_version,
                "shadow_tolerance": split.shadow_tolerance,
            }
            for model, split in sorted(splits.items())
        }
    )


def from_text(text: str) -> dict[str, TrafficSplit]:
    """Return what ``to_text`` wrote, in this release or an earlier one.

    Raises:
        ValueError: it was not.
    """
    try:
        return {
            str(model): TrafficSplit(
                weights=tuple((int(v), int(w)) for v, w in fields["weights"]),
                sticky_parameter=str(fields["sticky"]),
                sticky_header=str(fields.get("sticky_header", "")),
                shadow_version=int(fields.get("shadow", 0)),
                shadow_tolerance=float(fields.get("shadow_tolerance", 0)),
            )
            for model, fields in json.loads(text).items()
        }
    except (KeyError, TypeError, AttributeError, InvalidRequestError) as error:
        raise ValueError(f"not traffic splits: {error!r}") from error
