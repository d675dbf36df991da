"""Workers that come and go, and what they bring from before control began. Pure.

- After a restart, routers are told nothing until it is clear which workers came back
  with what they served: what they know is better.
- If the store could not tell what was served, those who come back do: routers that
  work by an earlier table, and workers that say what they were told to load.
"""

import dataclasses
from collections.abc import Collection, Sequence

from services.control.events import (
    RecoveryOver,
    Restored,
    RouterJoined,
    StartUpOver,
    WorkerJoined,
    WorkerLeft,
)
from services.control.generations import Generations
from services.control.model_registry import Generation, Worker
from services.control.wishes import Wishes
from services.core.lifecycle import ModelState


class Arrivals:
    """Who is there, and whether somebody may come back with what was served.

    Attributes:
        workers: Everyone who has joined and not left, by id.
        is_recovering: Whether routers know better than this process what is served.
        is_ignorant: Nothing is known of an earlier process, and those who know may
            still come.
    """

    def __init__(
        self, generations: Generations, wishes: Wishes, first_number: int
    ) -> None:
        """Begin with nobody.

        Args:
            generations: Are placed on workers, and lost with them.
            wishes: What should be served.
            first_number: Numbers below it are an earlier process's.
        """
        self.workers: dict[str, Worker] = {}
        self.is_recovering = False
        self._generations = generations
        self._registry = generations.registry
        self._wishes = wishes
        self._first_number = first_number
        self.is_ignorant = False

    def apply(
        self,
        event: WorkerJoined
        | WorkerLeft
        | RouterJoined
        | Restored
        | RecoveryOver
        | StartUpOver,
    ) -> None:
        """Take in who came or went, and how long others are waited for."""
        match event:
            case WorkerJoined():
                self._join(event)
            case WorkerLeft(worker_id=worker_id):
                self._leave(worker_id)
            case RouterJoined(revision=revision):
                is_elder = 0 < revision < self._first_number
                self.is_recovering |= is_elder and self.is_ignorant
            case Restored(generations=generations):
                self.is_recovering = self._wishes.restore(generations)
                self.is_ignorant = not self.is_recovering
            case StartUpOver():
                # Who knows more than is to be loaded may be on the way.
                if not self.is_ignorant:
                    self._end_recovery()
            case RecoveryOver():
                self._end_recovery()

    def _end_recovery(self) -> None:
        """Wait no longer: load anew what is desired, forget the rest."""
        self._wishes.forget_unwanted()
        self.is_recovering = self.is_ignorant = False

    def _join(self, event: WorkerJoined) -> None:
        worker_id = event.worker.worker_id
        if self.is_ignorant:
            self._learn(event.described)
        elif not any(self._registry.get(number) for number in event.generations):
            self._end_recovery()
        for predecessor in sorted(event.predecessors):
            self._leave(predecessor)
        self.workers[worker_id] = event.worker
        self._hope_for_devices()
        self._compare(worker_id, event.generations)

    def _learn(self, described: Sequence[Generation]) -> None:
        """Take over what a worker serves, as if the store had told of it."""
        for generation in described:
            if generation.number >= self._first_number:
                continue
            known = self._registry.get(generation.number)
            if known is not None:
                former = {**known.former, **generation.former}
                self._registry.put(dataclasses.replace(known, former=former))
            else:
                self._restore(generation)
            self.is_recovering = True

    def _restore(self, generation: Generation) -> None:
        """Keep a generation that is nowhere yet, unless another is on its way."""
        key = generation.spec.key
        desired = self._wishes.desired.get(key)
        if desired is not None:
            begun = self._registry.of(key)
            if not desired.is_loaded_like(generation.spec) or any(
                each.placed or each.state is not ModelState.LOADING for each in begun
            ):
                return
            for each in begun:
                self._registry.remove(each.number)
            generation = dataclasses.replace(generation, spec=desired)
        self._wishes.restore((generation,))

    def _leave(self, worker_id: str) -> None:
        self.workers.pop(worker_id, None)
        for generation in self._registry:
            if worker_id in generation.placed:
                self._generations.take_away(generation, worker_id, remember=True)

    def _hope_for_devices(self) -> None:
        """Try again what has failed only because no worker suited."""
        for generation in self._registry:
            if generation.lacks_device:
                renewed = dataclasses.replace(
                    generation, is_failed=False, lacks_device=False
                )
                self._registry.put(renewed)

    def _compare(self, worker_id: str, numbers: Collection[int]) -> None:
        """Bring what a worker serves and what it should serve together."""
        for generation in self._registry:
            serves = generation.number in numbers
            if worker_id in generation.placed:
                self._generations.compare(generation, worker_id, serves=serves)
            elif serves and not self._adopt(generation, worker_id):
                self._generations.unload(worker_id, generation.number)
        for number in sorted(numbers):
            if self._registry.get(number) is None:
                self._generations.unload(worker_id, number)

    def _adopt(self, generation: Generation, worker_id: str) -> bool:
        is_wanted = (
            generation.is_wanted_on_workers
            and self._wishes.desired.get(generation.spec.key) == generation.spec
        )
        return is_wanted and self._generations.adopt(generation, worker_id)
