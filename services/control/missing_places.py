"""Which instances of a generation live nowhere, and where they can."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from services.control.model_registry import (
    Generation,
    Placement,
    VersionSpec,
    Worker,
)

Place: TypeAlias = Callable[[VersionSpec, Sequence[Worker]], Placement]
"""Where the instances of a version go, given at least one worker.

Raises ConfigError if no worker suits. The same workers give the same answer.
"""


def missing_places(
    generation: Generation, workers: Sequence[Worker], place: Place
) -> Placement:
    """Return what should be loaded, and by whom, beside what is placed already.

    A worker that has something of the generation gets no more of it: instances of
    one generation on one worker are loaded by one order.

    Args:
        generation: With its placement so far.
        workers: Who may be chosen, at least one.
        place: The placement rule.

    Raises:
        ConfigError: no worker suits, or none of those that are free.
    """
    free = [each for each in workers if each.worker_id not in generation.placed]
    wanted = place(generation.spec, workers)
    names = {each.name for instances in wanted.values() for each in instances}
    missing = names - generation.instance_names
    if not (free and missing):
        return {}
    found = {}
    for worker_id, instances in sorted(place(generation.spec, free).items()):
        chosen = tuple(each for each in instances if each.name in missing)
        missing -= {each.name for each in chosen}
        if chosen:
            found[worker_id] = chosen
    return found
