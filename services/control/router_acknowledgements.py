"""Which route table each router works by."""

from services.control.events import (
    RouterJoined,
    RouterLeft,
    RoutersOverdue,
    RoutesApplied,
)


class RouterAcknowledgements:
    """The revision that each attached router has applied."""

    def __init__(self) -> None:
        """Begin with no router."""
        self._applied: dict[str, int] = {}

    def apply(
        self, event: RouterJoined | RouterLeft | RoutesApplied | RoutersOverdue
    ) -> None:
        """Note who came, went, or works by which table."""
        match event:
            case RouterJoined(router_id=router_id):
                self._applied[router_id] = 0
            case RouterLeft(router_id=router_id):
                self._applied.pop(router_id, None)
            case RoutesApplied(router_id=router_id, revision=revision):
                if router_id in self._applied:
                    self._applied[router_id] = revision
            case RoutersOverdue(revision=revision):
                for router_id, applied in self._applied.items():
                    self._applied[router_id] = max(applied, revision)

    def have_all(self, revision: int) -> bool:
        """Whether every router works by ``revision`` or a later table."""
        return all(applied >= revision for applied in self._applied.values())
