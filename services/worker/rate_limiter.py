"""Which instances may execute, and which wait for resources: pure.

It lives in the worker because a worker is a device: whatever executes there, for
whichever router, executes in this one process. A router sees only its own share, so
two of them would each believe that a resource is free. In the worker nothing has to
be agreed on, a router that dies takes nothing along, and the resources of a device
are right by construction.

Source: Triton's user guide, "Rate Limiter", with two faults left out. There, only the
first in line is ever looked at, so that an instance waits for others whose resources
it does not need; here it waits behind those only that need what it needs. And there,
turns are counted from the start of the server, so that a model that was idle or is
new has the device for itself until it has caught up; here who comes back begins at
what the others have reached.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from services.core.errors import ConfigError
from services.core.model_config_placement import RateLimiter as RateLimiterConfig
from services.core.rate_limits import ResourceAmount

ClaimT = TypeVar("ClaimT", bound=Hashable)


class Resource(NamedTuple):
    """Something to hold, of this device or of the whole server."""

    name: str
    is_global: bool


@dataclass(slots=True, eq=False)
class Limited(Generic[ClaimT]):
    """One instance that executes by turns.

    Attributes:
        needs: What it holds meanwhile.
        weight: What one turn costs; with 2 it has half as many turns as with 1.
        spent: The cost of its turns so far; the least goes first.
        holder: Whose turn it is on this instance.
        waiting: Who wants a turn, with the number of the wish; first come first.
    """

    needs: dict[Resource, int]
    weight: int
    spent: int = 0
    holder: ClaimT | None = None
    waiting: dict[ClaimT, int] = field(default_factory=dict)


class RateLimiter(Generic[ClaimT]):
    """The resources of one device, who holds them and who waits.

    A claim stands for who may send an instance its batches: each router has one.
    """

    def __init__(
        self, amounts: Collection[ResourceAmount] = (), device: int = 0
    ) -> None:
        """Begin without instances.

        Args:
            amounts: How much there is. If any is given, there is nothing else;
                if none, as much as the neediest instance needs.
            device: Which one this is, to ``amounts``.
        """
        self._amounts = tuple(amounts)
        self._device = device
        self._instances: list[Limited[ClaimT]] = []
        self._used: dict[Resource, int] = {}
        self._reached = 0
        self._wishes = 0

    def add(self, config: RateLimiterConfig) -> Limited[ClaimT]:
        """Take an instance in.

        Raises:
            ConfigError: it could never execute, or shares the name of a resource
                that is another's.
        """
        needs: dict[Resource, int] = {}
        for wanted in config.resources:
            resource = Resource(wanted.name, wanted.is_global)
            needs[resource] = wanted.count
        self._check(needs)
        instance: Limited[ClaimT] = Limited(needs, max(config.priority, 1))
        self._instances.append(instance)
        return instance

    def remove(self, instance: Limited[ClaimT]) -> tuple[ClaimT, ...]:
        """Let an instance go, which nobody claims; return whose turn it is now."""
        self._instances.remove(instance)
        return self._grant()

    def ask(self, instance: Limited[ClaimT], claim: ClaimT) -> tuple[ClaimT, ...]:
        """Want a turn, now or after the present one; return whose turn it is now."""
        if instance.holder is None and not instance.waiting:
            instance.spent = max(instance.spent, self._reached)
        self._wishes += 1
        instance.waiting.setdefault(claim, self._wishes)
        return self._grant()

    def end(
        self, instance: Limited[ClaimT], claim: ClaimT, cost: int = 1
    ) -> tuple[ClaimT, ...]:
        """End a turn; return whose turn it is now.

        Args:
            instance: Which has executed.
            claim: Whose turn it was; nothing happens if it was not.
            cost: Of the turn; 0 if nothing was executed.
        """
        if instance.holder != claim:
            return ()
        instance.holder = None
        instance.spent += cost * instance.weight
        for resource, count in instance.needs.items():
            self._used[resource] -= count
        return self._grant()

    def leave(self, instance: Limited[ClaimT], claim: ClaimT) -> tuple[ClaimT, ...]:
        """Want no turn any more, and end one that there is."""
        instance.waiting.pop(claim, None)
        return self.end(instance, claim, cost=0) or self._grant()

    def amount(self, resource: Resource) -> int:
        """Return how much of a resource there is in all."""
        needed = max((i.needs.get(resource, 0) for i in self._instances), default=0)
        return self._told(resource) if self._amounts else needed

    def _grant(self) -> tuple[ClaimT, ...]:
        """Give turns to all who may have one, those first who have spent least."""
        ready = [i for i in self._instances if i.waiting and i.holder is None]
        # Two sorts: who has waited longest is first among equals.
        ready.sort(key=lambda i: (i.spent, min(i.waiting.values())))
        granted: list[ClaimT] = []
        kept: set[Resource] = set()
        for instance in ready:
            needs = instance.needs
            if kept.isdisjoint(needs) and self._is_free(needs):
                claim = min(instance.waiting, key=instance.waiting.__getitem__)
                del instance.waiting[claim]
                instance.holder = claim
                self._reached = max(self._reached, instance.spent)
                for resource, count in needs.items():
                    self._used[resource] = self._used.get(resource, 0) + count
                granted.append(claim)
            else:
                # Whoever comes behind must not take it away piece by piece.
                kept.update(needs)
        return tuple(granted)

    def _is_free(self, needs: dict[Resource, int]) -> bool:
        return all(
            self._used.get(resource, 0) + count <= self.amount(resource)
            for resource, count in needs.items()
        )

    def _check(self, needs: dict[Resource, int]) -> None:
        others = {resource for each in self._instances for resource in each.needs}
        for resource, count in needs.items():
            opposite = Resource(resource.name, not resource.is_global)
            if opposite in others or opposite in needs:
                raise ConfigError(
                    f'Resource "{resource.name}" is present as both global and '
                    "device-specific resource in the model configuration."
                )
            if self._amounts and self._told(resource) < count:
                raise ConfigError(
                    f'Resource count for "{resource.name}" is limited to '
                    f"{self._told(resource)} which will prevent scheduling of one or "
                    f"more model instances, the minimum required count is {count}"
                )

    def _told(self, resource: Resource) -> int:
        """Return how much there is by the command line; of a global one, anywhere."""
        return max(
            (
                amount.count
                for amount in self._amounts
                if amount.name == resource.name
                and (resource.is_global or amount.device in {None, self._device})
            ),
            default=0,
        )
