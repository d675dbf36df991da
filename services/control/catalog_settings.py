"""How the repositories are served."""

import enum
from dataclasses import dataclass, field
from typing import Final

from services.control.preparation import CompletionSettings
from services.control.remote_repository import RemoteRepositories

EVERY_MODEL: Final = "*"


class ControlMode(enum.Enum):
    """Who decides which models are loaded (--model-control-mode)."""

    NONE = "none"
    EXPLICIT = "explicit"
    POLL = "poll"
    ON_DEMAND = "on-demand"

    @property
    def takes_requests(self) -> bool:
        """Whether clients may load and unload models."""
        return self in (ControlMode.EXPLICIT, ControlMode.ON_DEMAND)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """How the repositories are served.

    Attributes:
        roots: The repositories, as folders.
        remotes: Brings the folders that are copies up to date.
        mode: Who decides what is loaded.
        start_up_models: For EXPLICIT and ON_DEMAND mode; ``*`` means all.
        memory_budget_bytes: For ON_DEMAND mode: how much all models together may
            take; 0: any amount.
        completion: How far configurations are completed.
        config_name: Models that have ``configs/<config_name>.pbtxt`` are configured
            by it; "" for none.
        poll_interval_s: For POLL mode, and for what ON_DEMAND mode offers; 0: never.
        fleet_wait_s: How long a start-up that lacks a device or a backend waits
            for one more worker.
        worker_wait_s: How long a load that somebody asks for waits if there is no
            worker at all.
        override_root: Where files of load requests are written; workers must find
            them there. "": a new temporary folder.
    """

    roots: tuple[str, ...]
    remotes: RemoteRepositories = field(default_factory=lambda: RemoteRepositories(()))
    mode: ControlMode = ControlMode.NONE
    start_up_models: tuple[str, ...] = ()
    memory_budget_bytes: int = 0
    completion: CompletionSettings = field(
        default_factory=lambda: CompletionSettings(
            auto_complete=True, max_batch_sizes={}
        )
    )
    config_name: str = ""
    poll_interval_s: float = 15.0
    fleet_wait_s: float = 5.0
    worker_wait_s: float = 8.0
    override_root: str = ""
