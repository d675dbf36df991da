"""What can be done to generations, and what workers must then be told.

The reconciler decides when; here each operation keeps state, placement and the
orders to the workers consistent.
"""

import dataclasses
from collections.abc import Callable
from typing import Final

from services.control.events import (
    Action,
    LoadEnded,
    LoadInstances,
    UnloadInstances,
)
from services.control.model_registry import (
    UNLOADED,
    Generation,
    MemoryUse,
    ModelRegistry,
    PlacedInstance,
    VersionKey,
    VersionSpec,
)
from services.core.lifecycle import ModelEvent, ModelState

NO_WORKER: Final = "no worker has it: the last one that served it is gone"


class Generations:
    """A registry whose changes leave actions behind.

    Attributes:
        registry: All generations; others only read it.
    """

    def __init__(self, first_number: int) -> None:
        """Begin with none; the first will have ``first_number``."""
        self.registry = ModelRegistry()
        self._next_number = first_number
        self._actions: list[Action] = []

    def take_actions(self) -> list[Action]:
        """Return what workers must be told since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions

    def create(self, spec: VersionSpec) -> Generation:
        """Begin a new generation: LOADING, or failed if the spec is refused."""
        number = self._next_number
        self._next_number += 1
        generation = Generation(number=number, spec=spec)
        generation = self.registry.advance(generation, ModelEvent.LOAD)
        return self.fail(generation, spec.refusal) if spec.refusal else generation

    def restore(self, generation: Generation) -> None:
        """Keep one of an earlier process, whose workers may come back."""
        self._next_number = max(self._next_number, generation.number + 1)
        self.registry.put(
            Generation(
                number=generation.number,
                spec=generation.spec,
                state=ModelState.UNAVAILABLE,
                reason=NO_WORKER,
                former={**generation.former, **generation.placed},
                is_restored=True,
            )
        )

    def load(
        self,
        generation: Generation,
        worker_id: str,
        instances: tuple[PlacedInstance, ...],
    ) -> Generation:
        """Place instances on a worker and tell it."""
        if generation.state is ModelState.UNAVAILABLE:
            generation = self.registry.advance(generation, ModelEvent.LOAD)
        order = LoadInstances(
            worker_id=worker_id,
            generation=generation.number,
            spec=generation.spec,
            instances=instances,
        )
        self._actions.append(order)
        return self.registry.put(generation.with_worker(worker_id, instances))

    def adopt(self, generation: Generation, worker_id: str) -> bool:
        """Let a worker keep what it served before it was lost.

        Returns:
            False if it may not: it never had any, or others have them now.
        """
        instances = generation.former.get(worker_id, ())
        names = {instance.name for instance in instances}
        if not names or names & generation.instance_names:
            return False
        if generation.state is ModelState.UNAVAILABLE:
            generation = self.registry.advance(generation, ModelEvent.LOAD)
        generation = self.registry.put(generation.with_worker(worker_id, instances))
        self.mark_loaded(generation, worker_id)
        return True

    def unload(self, worker_id: str, number: int) -> None:
        """Tell a worker to drop what it has of a generation."""
        self._actions.append(UnloadInstances(worker_id=worker_id, generation=number))

    def mark_loaded(
        self, generation: Generation, worker_id: str, memory: MemoryUse | None = None
    ) -> None:
        """Note that a worker serves what it was told to, and what that took."""
        known = {} if memory is None else {worker_id: memory}
        generation = self.registry.put(
            dataclasses.replace(
                generation,
                loaded=generation.loaded | {worker_id},
                memory={**generation.memory, **known},
            )
        )
        if generation.state is ModelState.UNLOADING:
            self.registry.advance(generation, ModelEvent.LOADED)

    def promote(self, generation: Generation) -> bool:
        """Make a generation READY if all its workers serve; its elder must go."""
        is_complete = generation.placed and generation.loaded >= set(generation.placed)
        if generation.state is not ModelState.LOADING or not is_complete:
            return False
        self.make_ready(generation)
        return True

    def make_ready(self, generation: Generation) -> None:
        """Make a LOADING generation READY; its elder must go."""
        for older in self.registry.of(generation.spec.key):
            if older.state is ModelState.READY:
                self.registry.advance(older, ModelEvent.UNLOAD)
        generation = self.registry.advance(generation, ModelEvent.LOADED)
        self.registry.put(dataclasses.replace(generation, was_ready=True))
        self._actions.append(
            LoadEnded(generation=generation.number, spec=generation.spec)
        )

    def fail(
        self, generation: Generation, reason: str, *, lacks_device: bool = False
    ) -> Generation:
        """End a load that cannot succeed; workers drop what they had of it."""
        for worker_id in sorted(generation.placed):
            self.unload(worker_id, generation.number)
        self._actions.append(
            LoadEnded(generation=generation.number, spec=generation.spec, reason=reason)
        )
        return self.registry.advance(
            generation,
            ModelEvent.LOAD_FAILED,
            reason=reason,
            is_failed=True,
            lacks_device=lacks_device,
        )

    def take_away(
        self, generation: Generation, worker_id: str, *, remember: bool = False
    ) -> Generation:
        """Remove a worker from a generation, which may have been its last one.

        Args:
            generation: That has something placed on the worker.
            worker_id: Who is gone, or has dropped it.
            remember: Whether the worker may come back and keep serving.
        """
        generation = self.registry.put(
            generation.without_worker(worker_id, remember=remember)
        )
        match generation.state:
            case ModelState.UNLOADING if not generation.placed:
                return self.registry.advance(
                    generation, ModelEvent.DRAINED, reason=UNLOADED
                )
            case ModelState.LOADING if not generation.placed:
                return self._lose(generation)
            case ModelState.READY if not generation.loaded:
                return self._lose(generation)
            case _:
                return generation

    def compare(self, generation: Generation, worker_id: str, *, serves: bool) -> None:
        """Make good what a worker missed while its stream was lost."""
        is_over = generation.state is ModelState.UNLOADING or generation.is_failed
        if is_over and not serves:
            self.take_away(generation, worker_id)
        elif is_over:
            if generation.is_draining or generation.is_failed:
                self.unload(worker_id, generation.number)
        elif serves:
            self.mark_loaded(generation, worker_id)
        else:
            instances = generation.placed[worker_id]
            generation = self.take_away(generation, worker_id)
            self.load(generation, worker_id, instances)

    def _lose(self, generation: Generation) -> Generation:
        generation = self.registry.advance(
            generation, ModelEvent.WORKER_LOST, reason=NO_WORKER
        )
        if not generation.placed:
            return generation
        # Others are on their way already.
        return self.registry.advance(generation, ModelEvent.LOAD)

    def drop_version(self, key: VersionKey) -> None:
        """End every generation of a version; forget those of an earlier process."""
        for generation in self.registry.of(key):
            if generation.state in (ModelState.LOADING, ModelState.READY):
                self.registry.advance(generation, ModelEvent.UNLOAD)
            elif generation.is_restored:
                self.registry.remove(generation.number)
            elif generation.state is ModelState.UNAVAILABLE:
                dropped = dataclasses.replace(
                    generation,
                    reason=UNLOADED,
                    former={},
                    is_failed=False,
                    lacks_device=False,
                )
                self.registry.put(dropped)

    def retire(self, revision: int, have_applied: Callable[[int], bool]) -> None:
        """Tell workers to unload what no router sends requests to any more.

        Args:
            revision: Of the routes that no longer name what is UNLOADING.
            have_applied: Whether all routers work by a revision, or a later one.
        """
        for generation in self.registry:
            if generation.state is not ModelState.UNLOADING:
                continue
            due_at = generation.retire_revision or revision
            is_due = not generation.is_draining and have_applied(due_at)
            if is_due:
                for worker_id in sorted(generation.placed):
                    self.unload(worker_id, generation.number)
            retired = dataclasses.replace(
                generation,
                retire_revision=due_at,
                is_draining=generation.is_draining or is_due,
            )
            self.registry.put(retired)

    def prune(self) -> None:
        """End what nobody has, forget what is over unless it is the newest."""
        for generation in self.registry:
            if generation.state is ModelState.UNLOADING and not generation.placed:
                self.registry.advance(generation, ModelEvent.DRAINED, reason=UNLOADED)
        for key in self.registry.contested():
            *older, _ = self.registry.of(key)
            for generation in older:
                if generation.state is ModelState.UNAVAILABLE:
                    self.registry.remove(generation.number)
