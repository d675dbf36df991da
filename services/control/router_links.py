"""The routers: their streams, and where workers reach them."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Final

from services.control.commands import RouterOrder
from services.control.route_table import RouteTable
from services.core.process_use import ProcessUse

# Until a router has applied a table it gets no other, so that a hundred changes at
# once do not cost it a hundred tables. One that does not answer gets it all the same.
PATIENCE_S: Final = 1.0


@dataclass(slots=True, eq=False)
class RouterLink:
    """One router's stream, and the newest table, which replaces all before it."""

    router_id: str
    endpoint: str
    orders: "asyncio.Queue[RouterOrder]" = field(default_factory=asyncio.Queue)
    use: ProcessUse = ProcessUse()  # noqa: RUF009  frozen
    _newest: RouteTable | None = None
    _sent_revision: int = 0
    _is_waiting: asyncio.Event = field(default_factory=asyncio.Event)
    _is_applied: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Begin with a router that has nothing to apply."""
        self._is_applied.set()

    def offer(self, table: RouteTable) -> None:
        """Have ``table`` sent as soon as the router can take it."""
        self._newest = table
        self._is_waiting.set()

    def tell(self, order: RouterOrder) -> None:
        """Have ``order`` sent, after those before it."""
        self.orders.put_nowait(order)

    def note_applied(self, revision: int) -> None:
        """Note that the router works by the table of ``revision``."""
        if revision >= self._sent_revision:
            self._is_applied.set()

    async def next_table(self) -> RouteTable:
        """Wait until there is a table that the router should get now."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._is_applied.wait()
        while self._newest is None:
            self._is_waiting.clear()
            await self._is_waiting.wait()
        table, self._newest = self._newest, None
        self._sent_revision = table.revision
        self._is_applied.clear()
        return table


class RouterLinks:
    """Attached routers, and the endpoints of those that may come back."""

    def __init__(self) -> None:
        """Begin with none."""
        self._links: dict[str, RouterLink] = {}
        self._endpoints: dict[str, str] = {}

    def links(self) -> list[RouterLink]:
        """Return the streams of the attached routers."""
        return list(self._links.values())

    def endpoints(self) -> tuple[str, ...]:
        """Return where workers should dial, ordered."""
        return tuple(sorted(set(self._endpoints.values())))

    def expect(self, endpoint: str) -> None:
        """Keep the endpoint of a router that is not attached yet; it owns itself."""
        self._endpoints[endpoint] = endpoint

    def attach(self, router_id: str, endpoint: str) -> RouterLink:
        """Take in a router, for the first time or again."""
        link = RouterLink(router_id=router_id, endpoint=endpoint)
        self._links[router_id] = link
        self._endpoints = {
            owner: other
            for owner, other in self._endpoints.items()
            if other != endpoint
        }
        self._endpoints[router_id] = endpoint
        return link

    def detach(self, link: RouterLink) -> bool:
        """Remove a stream; False if the router has dialled again already."""
        if self._links.get(link.router_id) is not link:
            return False
        del self._links[link.router_id]
        return True

    def forget(self, owner: str) -> bool:
        """Drop the endpoint of a router that did not come back; False if it did."""
        is_gone = owner not in self._links
        return is_gone and self._endpoints.pop(owner, None) is not None
