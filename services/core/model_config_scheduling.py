"""How requests meet instances: dynamic batching and ensembles."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from services.core.model_config_fields import (
    FieldError,
    require_name,
    require_preferred_sizes,
)


class TimeoutAction(enum.Enum):
    """What becomes of a late request; values are the schema's numbers."""

    REJECT = 0
    DELAY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How long and how many requests may wait.

    Attributes:
        timeout_action: REJECT answers a late request with an error; DELAY
            serves it after all that are still in time.
        default_timeout_ns: Longest wait; 0: none.
        allow_timeout_override: A request may ask for a shorter one.
        max_queue_size: Waiting requests before the next is refused; 0:
            unbounded.
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_ns: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    @property
    def can_delay(self) -> bool:
        """Whether a request may be overtaken by later ones."""
        return (
            self.timeout_action is TimeoutAction.DELAY and self.default_timeout_ns > 0
        )


_NO_POLICIES: Final[Mapping[int, QueuePolicy]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBatching:
    """Requests of one model share executions.

    Attributes:
        preferred_batch_sizes: Row counts worth sending at once, ascending, all
            positive; () if none are named.
        max_queue_delay_ns: How long the oldest request may wait for company.
        preserve_ordering: Answer in the order of arrival.
        priority_levels: Priorities run from 1 (first) to this; 0: there are
            none.
        default_priority_level: For a request that names none; 0 without
            priorities.
        default_queue_policy: For levels that are not in
            ``priority_queue_policies``.
        priority_queue_policies: By level.
    """

    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_ns: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = field(default_factory=QueuePolicy)
    priority_queue_policies: Mapping[int, QueuePolicy] = field(
        default_factory=lambda: _NO_POLICIES
    )

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        require_preferred_sizes(self.preferred_batch_sizes, "dynamic batching")
        if self.priority_levels:
            self._require_levels()
        if self.preserve_ordering:
            self._require_order()

    def _require_levels(self) -> None:
        top = self.priority_levels
        if not 1 <= self.default_priority_level <= top:
            msg = f"default priority level must be in range [1, {top}]"
            raise FieldError(msg, "default_priority_level")
        for level in self.priority_queue_policies:
            if not 1 <= level <= top:
                msg = (
                    "priority queue policy must have priority level in range "
                    f"[1, {top}]"
                )
                raise FieldError(msg, "priority_queue_policy", str(level))

    def _require_order(self) -> None:
        if self.priority_levels > 1:
            msg = "only one priority level is allowed when 'preserve_ordering' is true"
            raise FieldError(msg, "priority_levels")
        msg = (
            "queue policy can not have DELAY as timeout action when "
            "'preserve_ordering' is true"
        )
        if self.default_queue_policy.can_delay:
            raise FieldError(msg, "default_queue_policy", "timeout_action")
        for level, policy in self.priority_queue_policies.items():
            if policy.can_delay:
                raise FieldError(msg, "priority_queue_policy", str(level))


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleStep:
    """One model of an ensemble.

    Attributes:
        model_name: The model to call.
        model_version: None: as its version policy says.
        input_map: From the step's input names to the ensemble's tensors.
        output_map: From the step's output names to the ensemble's tensors.
        model_namespace: Reserved.
    """

    model_name: str
    model_version: int | None = None
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]
    model_namespace: str = ""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        require_name(self.model_name, "model_name")
        for name in ("input_map", "output_map"):
            if not getattr(self, name):
                raise FieldError(f"must specify '{name}'", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """A graph of models that answers as one.

    Attributes:
        steps: At least one; the tensors they share give the order.
        max_inflight_requests: Responses of decoupled steps under way at once;
            0: unbounded.
    """

    steps: tuple[EnsembleStep, ...]
    max_inflight_requests: int = 0

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        if not self.steps:
            raise FieldError("must specify 'step'", "step")
