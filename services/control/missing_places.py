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
from services.control.placement import Placed
from services.core.errors import ConfigError


class Place(Protocol):
    """Where the instances of a version go."""

    def __call__(
        self,
        spec: VersionSpec,
        workers: Sequence[Worker],
        load: Mapping[str, int],
    ) -> Placed:
        """Choose a worker for each instance.

        Args:
            spec: The version.
            workers: Who may be chosen, at least one.
            load: Instances of other generations, by worker id.

        Returns:
            The same names for the same workers; names tell instances apart and
            do not depend on who else is there. Instances that have no place are
            its problems.
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
    one generation on one worker are loaded by one order. What is loaded for the first
    time must have a place for every instance group; what has served before is content
    with the groups whose devices are there.

    Args:
        generation: With its placement so far.
        registry: All generations, for the load of the workers.
        workers: Who may be chosen, at least one.
        place: The placement rule.

    Raises:
        ConfigError: it cannot be loaded on these workers.
    """
    load = registry.load()
    load.subtract({each: len(at) for each, at in generation.placed.items()})
    wanted = place(generation.spec, workers, load)
    may_be_partial = generation.was_ready or generation.placed
    if wanted.problems and not (may_be_partial and wanted.instances):
        raise ConfigError(wanted.problems[0])
    names = {each.name for at in wanted.instances.values() for each in at}
    missing = names - generation.instance_names
    free = [each for each in workers if each.worker_id not in generation.placed]
    if not (free and missing):
        return {}
    available = place(generation.spec, free, load) if generation.placed else wanted
    found = {}
    for worker_id, instances in sorted(available.instances.items()):
        chosen = tuple(each for each in instances if each.name in missing)
        missing -= {each.name for each in chosen}
        if chosen:
            found[worker_id] = chosen
    return found
