"""What the processes of the stack take of their hosts, as metrics. Pure.

Source: on a process's own page the names are those that Prometheus' client libraries
give to what a process takes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from services.control.prometheus import Family, Labels, Sample
from services.core.process_use import ProcessUse


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProcess:
    """One process.

    Attributes:
        role: control, router or worker.
        name: Tells it apart from others of its role; "" for control.
        use: All zero while it has not told.
    """

    role: str
    name: str = ""
    use: ProcessUse = field(default_factory=ProcessUse)

    @property
    def labels(self) -> Labels:
        """Where it is one of many."""
        return {"process": self.role, "id": self.name}


_FAMILIES: Final[tuple[tuple[str, str, str, Callable[[ProcessUse], float]], ...]] = (
    (
        "process_cpu_seconds_total",
        "Total user and system CPU time spent in seconds",
        "counter",
        lambda use: use.cpu_ns / 1e9,
    ),
    (
        "process_resident_memory_bytes",
        "Resident memory size in bytes",
        "gauge",
        lambda use: use.resident_bytes,
    ),
    (
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds",
        "gauge",
        lambda use: use.started_ms / 1e3,
    ),
)


def families_of(use: ProcessUse) -> Iterator[Family]:
    """Yield the families of one process, for its own page."""
    for name, text, kind, value in _FAMILIES:
        sample = Sample(labels={}, value=value(use))
        yield Family(name=name, text=text, kind=kind, samples=(sample,))


def families(processes: Iterable[KnownProcess]) -> Iterator[Family]:
    """Yield the families of all processes, for the page of the whole stack."""
    told = [process for process in processes if process.use.started_ms]
    for name, text, kind, value in _FAMILIES:
        samples = (Sample(labels=p.labels, value=value(p.use)) for p in told)
        yield Family(
            name=f"nereid_{name}", text=text, kind=kind, samples=tuple(samples)
        )
