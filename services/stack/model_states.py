"""Are the models up? Decided on what control's repository index says. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

LOADING: Final = "LOADING"
UNAVAILABLE: Final = "UNAVAILABLE"
UNLOADED: Final = "unloaded"
# Control's words for a version that it knows from its store: its worker is starting.
AWAITS_WORKER: Final = "no worker has it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One row of the index.

    Attributes:
        name: The model.
        version: Empty if none was tried.
        state: Triton's word; empty for a model that nobody asked for.
        reason: Why it is not ready.
    """

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""

    def __str__(self) -> str:
        """Return how the user is told of it."""
        version = f" version {self.version}" if self.version else ""
        return f"{self.name}{version}: {self.reason or self.state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the index says of the start.

    Attributes:
        loading: Versions that are on their way.
        failed: Versions that will not come up by themselves.
        ready: Versions that can serve.
    """

    loading: tuple[ModelEntry, ...]
    failed: tuple[ModelEntry, ...]
    ready: tuple[ModelEntry, ...]


def judge(entries: Iterable[ModelEntry]) -> Verdict:
    """Sort the rows; one that nobody asked for, or was unloaded, counts nowhere."""
    asked_for = [entry for entry in entries if entry.state]
    return Verdict(
        loading=tuple(e for e in asked_for if _is_on_its_way(e)),
        failed=tuple(
            e
            for e in asked_for
            if e.state == UNAVAILABLE and e.reason != UNLOADED and not _is_on_its_way(e)
        ),
        ready=tuple(e for e in asked_for if e.state == "READY"),
    )


def _is_on_its_way(entry: ModelEntry) -> bool:
    return entry.state == LOADING or entry.reason.startswith(AWAITS_WORKER)
