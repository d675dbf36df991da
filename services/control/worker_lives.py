"""Which process each worker was last: tells a restart from a new stream. Pure.

A restart is a worker that comes in place of one that ended without a goodbye: as
another process of the same id, or on the same device under a new one.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from services.control.model_registry import Worker

# Workers that never come back, each under an id of its own, cost no more than this.
MOST_LOST: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLife:
    """One process of a worker.

    Attributes:
        process: Tells it from any other.
        place: Its host and device.
        is_lost: It has no stream, and did not say goodbye.
    """

    process: str
    place: str
    is_lost: bool = False


@dataclass(slots=True)
class WorkerLives:
    """The last process of each worker, by the worker's id; the oldest come first."""

    lives: dict[str, WorkerLife] = field(default_factory=dict)

    def joined(self, worker: Worker) -> bool:
        """Take note of a stream; return whether the worker was started again."""
        life = WorkerLife(process=worker.process, place=_place_of(worker))
        before = self.lives.pop(worker.worker_id, None)
        self.lives[worker.worker_id] = life
        if before is not None:
            return before.process != life.process
        lost = [i for i, one in self.lives.items() if one.is_lost]
        for worker_id in lost:
            if self.lives[worker_id].place == life.place:
                del self.lives[worker_id]
                return True
        return False

    def lost(self, worker: Worker) -> None:
        """Take note that a stream broke; the process may live."""
        before = self.lives.pop(worker.worker_id, None)
        if before is None:
            return
        self.lives[worker.worker_id] = WorkerLife(
            process=before.process, place=before.place, is_lost=True
        )
        lost = [i for i, life in self.lives.items() if life.is_lost]
        for worker_id in lost[:-MOST_LOST]:
            del self.lives[worker_id]

    def left(self, worker: Worker) -> None:
        """Take note of a goodbye: who comes next takes nobody's place."""
        self.lives.pop(worker.worker_id, None)


def to_text(lives: WorkerLives) -> str:
    """Return what is remembered of ``lives``."""
    return json.dumps({i: asdict(life) for i, life in lives.lives.items()})


def from_text(text: str) -> WorkerLives:
    """Return what ``to_text`` remembered; nobody has a stream yet.

    Raises:
        ValueError: ``text`` is something else.
    """
    try:
        stored: Mapping[str, Mapping[str, str]] = json.loads(text)
        lives = {
            worker_id: WorkerLife(
                process=life["process"], place=life["place"], is_lost=True
            )
            for worker_id, life in stored.items()
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"these are no lives of workers: {error}") from error
    return WorkerLives(lives)


def _place_of(worker: Worker) -> str:
    place = worker.host, worker.device.value, worker.device_index, worker.device_uuid
    return json.dumps(place)
