"""The work beside the doors ends when control does."""

import asyncio
from pathlib import Path

from services.control.store import NoStore
from tests.unit.control.control_process import Control, running, settings_of

WAIT_S = 30.0


class DeafStore(NoStore):
    """Loses the first cancellation, as a library may."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.lost += 1
        await asyncio.Event().wait()


async def test_work_that_loses_a_cancellation_ends_all_the_same(tmp_path: Path) -> None:
    store = DeafStore()
    async with asyncio.timeout(WAIT_S):
        async with running(Control(settings_of(tmp_path), store=store)):
            await asyncio.sleep(0)
    assert store.lost == 1
