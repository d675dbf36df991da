"""The routers: their streams, and where workers reach them."""

import asyncio
from dataclasses import dataclass, field

from services.control.route_table import RouteTable


@dataclass(slots=True, eq=False)
class RouterLink:
    """One router's stream: what is put into ``tables`` is sent to it."""

    router_id: str
    endpoint: str
    tables: asyncio.Queue[RouteTable] = field(default_factory=asyncio.Queue)


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
