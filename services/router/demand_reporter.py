"""Tells control which models requests wait for, and which are in use."""

from collections.abc import Callable, Iterable

from protos import control_pb2
from services.router.model_use import ModelUse
from services.router.waiting_room import WaitingRoom


class DemandReporter:
    """Reports whole facts, when they have changed."""

    def __init__(
        self,
        room: WaitingRoom,
        uses: Callable[[], Iterable[ModelUse]],
        send: Callable[[control_pb2.RouterReport], bool],
        now_ns: Callable[[], int],
    ) -> None:
        """Report what waits in ``room``, and the ``uses`` of what is loaded."""
        self._room = room
        self._uses = uses
        self._send = send
        self._now_ns = now_ns
        self._told: object = None

    def connected(self) -> None:
        """Report on a new stream what control may not know."""
        self._told = None
        self.report()

    def report(self) -> None:
        """Report if there is anything new."""
        uses = tuple(self._uses())
        wanted, waits = self._room.wanted, dict(self._room.waits)
        facts = (wanted, uses, waits)
        if facts == self._told or not (any(facts) or self._told):
            return
        now_ns = self._now_ns()
        demand = control_pb2.ModelDemand(
            wanted=wanted,
            uses=[
                control_pb2.ModelUse(
                    model=use.model,
                    in_use=use.is_in_use,
                    idle_ns=max(0, now_ns - use.last_used_ns),
                )
                for use in uses
                if use.is_in_use or use.last_used_ns
            ],
            waits=[
                control_pb2.ModelWaits(model=model, count=count, ns=ns)
                for model, (count, ns) in waits.items()
            ],
        )
        if self._send(control_pb2.RouterReport(demand=demand)):
            self._told = facts
