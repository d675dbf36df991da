"""The workers' streams, and what the workers have to offer."""

import asyncio
from dataclasses import dataclass, field
from typing import TypeAlias

from services.control.commands import WorkerOrder
from services.control.missing_backend import no_backend
from services.control.model_registry import DeviceKind, Worker
from services.core.errors import ConfigError
from services.core.process_use import ProcessUse

Capability: TypeAlias = tuple[str, DeviceKind, int]
"""A backend on a device, by the device's kind and index."""


@dataclass(slots=True, eq=False)
class WorkerLink:
    """One worker's stream: what is put into ``orders`` is sent to it."""

    worker: Worker
    orders: asyncio.Queue[WorkerOrder] = field(default_factory=asyncio.Queue)
    use: ProcessUse = ProcessUse()  # noqa: RUF009  frozen


class WorkerLinks:
    """Attached workers, by id.

    Attributes:
        capabilities: What workers have ever offered; it only grows.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.capabilities: frozenset[Capability] = frozenset()
        self._links: dict[str, WorkerLink] = {}

    def __len__(self) -> int:
        """Return how many are attached."""
        return len(self._links)

    def attach(self, worker: Worker) -> WorkerLink:
        """Take in a worker's stream; an older one of the same worker is void."""
        link = WorkerLink(worker=worker)
        self._links[worker.worker_id] = link
        self.capabilities |= {
            (backend, worker.device, worker.device_index) for backend in worker.backends
        }
        return link

    def detach(self, link: WorkerLink) -> bool:
        """Remove a stream; False if the worker has dialled again already."""
        if self._links.get(link.worker.worker_id) is not link:
            return False
        del self._links[link.worker.worker_id]
        return True

    def links(self) -> list[WorkerLink]:
        """Return the streams of the attached workers."""
        return list(self._links.values())

    def with_backend(self, backend: str) -> WorkerLink:
        """Return a worker that can import ``backend``.

        Raises:
            ConfigError: there is none.
        """
        for _, link in sorted(self._links.items()):
            if backend in link.worker.backends:
                return link
        raise ConfigError(no_backend(backend))

    def order(self, worker_id: str, order: WorkerOrder) -> None:
        """Send an order to one worker.

        To one who is absent nothing is said: what it missed is made good when it
        dials again.
        """
        link = self._links.get(worker_id)
        if link is not None:
            link.orders.put_nowait(order)

    def order_all(self, order: WorkerOrder) -> None:
        """Send an order to every worker."""
        for link in self._links.values():
            link.orders.put_nowait(order)
