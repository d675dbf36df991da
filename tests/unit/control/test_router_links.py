"""The routers' streams and endpoints."""

import asyncio

from services.control.route_table import RouteTable
from services.control.router_links import RouterLink, RouterLinks


def table(revision: int) -> RouteTable:
    return RouteTable(revision=revision, ready=True)


async def test_a_router_gets_only_the_newest_table_once_it_has_applied_the_last() -> (
    None
):
    link = RouterLink(router_id="r", endpoint="e")
    link.offer(table(1))
    assert (await link.next_table()).revision == 1
    following = asyncio.create_task(link.next_table())
    link.offer(table(2))
    link.offer(table(3))
    await asyncio.sleep(0)
    link.note_applied(0)  # of an older one: not yet
    await asyncio.sleep(0)
    assert not following.done()
    link.note_applied(1)
    assert (await following).revision == 3


async def test_a_router_that_waits_gets_a_table_at_once() -> None:
    link = RouterLink(router_id="r", endpoint="e")
    waiting = asyncio.create_task(link.next_table())
    await asyncio.sleep(0)
    link.offer(table(7))
    assert (await waiting).revision == 7


def test_an_endpoint_is_dialled_until_it_is_forgotten() -> None:
    routers = RouterLinks()
    link = routers.attach("r", "e")
    assert routers.detach(link)
    assert (routers.endpoints(), routers.links()) == (("e",), [])
    assert routers.forget("r")
    assert routers.endpoints() == ()
    assert not routers.forget("r")


def test_a_router_that_dials_again_is_neither_detached_nor_forgotten() -> None:
    routers = RouterLinks()
    lost = routers.attach("r", "e")
    again = routers.attach("r", "e")
    assert not routers.detach(lost)
    assert not routers.forget("r")
    assert routers.links() == [again]


def test_an_expected_router_that_comes_owns_its_endpoint() -> None:
    routers = RouterLinks()
    routers.expect("e")
    routers.attach("r", "e")
    assert not routers.forget("e")
    assert routers.endpoints() == ("e",)
