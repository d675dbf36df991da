"""How the sequences of a model share its instances. Pure.

Source: ``sequence_batching`` of Triton's model configuration.
"""

from dataclasses import dataclass

from services.core.model_config import OldestStrategy, SequenceBatching
from services.router.queue_limits import QueueLimits
from services.router.route_table import Route


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePolicy:
    """How sequences share instances.

    Attributes:
        model: For messages.
        slots: Sequences bound to one instance at a time, >= 1.
        max_batch_size: Requests in one execution, >= 1.
        keeps_slots: Whether a sequence keeps one row of the batch (direct); else
            the oldest requests make the batch, in any row (oldest).
        max_idle_ns: After so long without a request a sequence has ended.
        max_queue_delay_ns: How long the oldest request may wait for company.
        minimum_utilization: Share of the slots that must be ready to go before
            the delay is over; direct only.
        preferred_batch_sizes: Worth sending at once; oldest only.
        is_iterative: Whether a model may put a request back to be executed again; a
            request without a correlation id is then a sequence of its own.
        is_resumable: Whether a sequence may go on elsewhere when its instance is lost.
        hold_until: Requests that must have a slot before the first batch goes:
            direct, in all slots together; oldest, the next ones of the sequences
            of an instance. 0: none. Triton's TRITONSERVER_DELAY_SCHEDULER.
        backlog_hold_until: Requests that must wait without a slot besides; only
            together with ``hold_until``, and direct only. Triton's
            TRITONSERVER_BACKLOG_DELAY_SCHEDULER.
    """

    model: str
    slots: int
    max_batch_size: int
    keeps_slots: bool
    max_idle_ns: int
    max_queue_delay_ns: int = 0
    minimum_utilization: float = 0.0
    preferred_batch_sizes: tuple[int, ...] = ()
    is_iterative: bool = False
    is_resumable: bool = False
    hold_until: int = 0
    backlog_hold_until: int = 0

    @property
    def settles_late(self) -> bool:
        """Whether a sequence keeps its slot until its last request is answered.

        It may have to run that once more; else the slot is free for the next batch.
        """
        return self.is_iterative or self.is_resumable

    def __post_init__(self) -> None:
        """Refuse what no instance could do."""
        if self.slots < 1 or self.max_batch_size < 1:
            message = "a sequence batcher needs a slot and a row, at least"
            raise ValueError(message)
        if self.keeps_slots and self.slots > self.max_batch_size:
            message = "direct sequences need a row of the batch each"
            raise ValueError(message)


def sequence_policy_of(
    route: Route, batching: SequenceBatching, limits: QueueLimits
) -> SequencePolicy:
    """Return how the sequences of ``route`` share instances."""
    rows = max(route.config.max_batch_size, 1)
    strategy = batching.strategy
    if isinstance(strategy, OldestStrategy):
        return SequencePolicy(
            model=route.model,
            slots=strategy.max_candidate_sequences or rows,
            max_batch_size=rows,
            keeps_slots=False,
            max_idle_ns=batching.max_sequence_idle_ns,
            max_queue_delay_ns=strategy.max_queue_delay_ns,
            preferred_batch_sizes=strategy.preferred_batch_sizes,
            is_iterative=batching.iterative_sequence,
            is_resumable=route.config.checkpoints_states,
            hold_until=limits.hold_until,
        )
    return SequencePolicy(
        model=route.model,
        slots=rows,
        max_batch_size=rows,
        keeps_slots=True,
        max_idle_ns=batching.max_sequence_idle_ns,
        max_queue_delay_ns=strategy.max_queue_delay_ns,
        minimum_utilization=strategy.minimum_slot_utilization,
        is_iterative=batching.iterative_sequence,
        is_resumable=route.config.checkpoints_states,
        hold_until=limits.hold_until,
        backlog_hold_until=limits.backlog_hold_until,
    )
