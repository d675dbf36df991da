"""Which instances of a generation live nowhere, and where they can."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from services.control.model_registry import (
    Generation,
    ModelRegistry,
    Placement,
    VersionSpec,
    Worker,
)
from services.core.errors import ConfigError


class Place(Protocol):
    """Where the instances of a version go."""

    def __call__(
        self,
        spec: VersionSpec,
        workers: Sequence[Worker],
        load: Mapping[str, int],
    ) -> Placement:
        """Choose a worker for each instance.

        Args:
            spec: The version.
            workers: Who may be chosen, at least one.
            load: Instances of other generations, by worker id.

        Returns:
            The same names for the same workers; names tell instances apart and
            do not depend on who else is there.

        Raises:
            ConfigError: some instances have no place at all.
        """
        ...


def missing_places(
    generation: Generation,
    registry: ModelRegistry,
    workers: Sequence[Worker],
    place: Place,
) -> Placement:
    """Return what should be loaded, and by whom, beside what is placed already.

    A worker that has something of the generation gets no more of it: instances of
    one generation on one worker are loaded by one order.

    Args:
        generation: With its placement so far.
        registry: All generations, for the load of the workers.
        workers: Who may be chosen, at least one.
        place: The placement rule.

    Raises:
        ConfigError: some instances have no place on any of ``workers``.
    """
    load = registry.load()
    load.subtract({each: len(at) for each, at in generation.placed.items()})
    wanted = place(generation.spec, workers, load)
    names = {each.name for instances in wanted.values() for each in instances}
    missing = names - generation.instance_names
    free = [each for each in workers if each.worker_id not in generation.placed]
    if not (free and missing):
        return {}
    try:
        available = place(generation.spec, free, load) if generation.placed else wanted
    except ConfigError:
        return {}  # those that suit are busy with the rest of it
    found = {}
    for worker_id, instances in sorted(available.items()):
        chosen = tuple(each for each in instances if each.name in missing)
        missing -= {each.name for each in chosen}
        if chosen:
            found[worker_id] = chosen
    return found
