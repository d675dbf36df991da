"""The shell around log settings: every process of the stack writes by the same."""

from collections.abc import Callable, Mapping

from services.control import log_settings
from services.control.commands import SetLogs
from services.control.log_settings import ParameterValue
from services.control.router_links import RouterLink, RouterLinks
from services.control.worker_links import WorkerLink, WorkerLinks
from services.core import logs
from services.core.logs import LogSettings


class LogSwitch:
    """Owns the log settings, of this process and of all that dial in.

    Attributes:
        settings: In force.
        file: Where the log is written; empty for stderr.
    """

    def __init__(
        self,
        start: LogSettings,
        routers: RouterLinks,
        workers: WorkerLinks,
        save: Callable[[LogSettings], None],
        *,
        file: str = "",
        restored: LogSettings,
    ) -> None:
        """Begin with what the command line said, or an earlier process had.

        Args:
            start: What the command line said: others have it from there too.
            routers: Are told of every change.
            workers: The same.
            save: Remembers the settings.
            file: Where the log is written.
            restored: What clients have made of it before this process began.
        """
        self.settings = restored
        self.file = file
        self._start = start
        self._routers = routers
        self._workers = workers
        self._save = save
        if self.settings != start:
            logs.configure(settings=self.settings)

    def update(self, changes: Mapping[str, ParameterValue]) -> None:
        """Change the settings that are named.

        Raises:
            ServingError: a value makes no sense; nothing is changed then.
        """
        changed = log_settings.updated(self.settings, changes)
        if changed == self.settings:
            return
        self.settings = changed
        logs.configure(settings=changed)
        order = SetLogs(settings=changed)
        for router in self._routers.links():
            router.tell(order)
        self._workers.order_all(order)
        self._save(changed)

    def greet_router(self, link: RouterLink) -> None:
        """Tell a router that has just attached, if it cannot know yet."""
        if self.settings != self._start:
            link.tell(SetLogs(settings=self.settings))

    def greet_worker(self, link: WorkerLink) -> None:
        """Tell a worker that has just attached, if it cannot know yet."""
        if self.settings != self._start:
            link.orders.put_nowait(SetLogs(settings=self.settings))
