"""Who has to be loaded for an ensemble, and unloaded with it. Pure."""

from collections.abc import Callable, Iterable

from services.control.model_registry import Member


def with_members(
    names: Iterable[str], members_of: Callable[[str], Iterable[Member]]
) -> tuple[str, ...]:
    """Return ``names`` and all models that they call, and these call.

    Args:
        names: Of models.
        members_of: What a model calls; nothing for one that is no ensemble.

    Returns:
        Each once: those asked for first, in their order.
    """
    found = dict.fromkeys(names)
    waiting = list(found)
    while waiting:
        for member, _ in members_of(waiting.pop(0)):
            if member not in found:
                found[member] = None
                waiting.append(member)
    return tuple(found)
