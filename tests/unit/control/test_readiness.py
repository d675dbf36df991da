"""Control asks workers whether what they serve is ready, over real streams."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protos import control_pb2, control_pb2_grpc
from tests.unit.control.control_process import (
    Control,
    Puppet,
    running,
    settings_of,
    write_model,
)


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[Control]:
    write_model(tmp_path, "m")
    async with asyncio.timeout(20), running(Control(settings_of(tmp_path))) as control:
        yield control


async def serving(control: Control) -> tuple[Puppet, int]:
    """Return a worker that serves ``m``, and the generation."""
    worker = await control.worker()
    starting = asyncio.create_task(control.catalog.start_up())
    order = await worker.loads()
    await starting
    return worker, order.generation


def ask(control: Control, *generations: int, server: bool = False) -> Any:  # noqa: ANN401 - a call
    stub: Any = control_pb2_grpc.ReadinessControlStub(control.channel)
    request = control_pb2.CheckReadinessRequest(generations=generations, server=server)
    return stub.CheckReadiness(request)


async def answer(worker: Puppet, *, is_ready: bool) -> int:
    """Answer the next question; return the generation it was about."""
    question = await worker.told("check_readiness")
    checked = control_pb2.ReadinessChecked(question=question.question, ready=is_ready)
    await worker.report(readiness=checked)
    return int(question.generation)


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("server", [True, False])
async def test_what_a_worker_says_is_told(
    control: Control, *, is_ready: bool, server: bool
) -> None:
    worker, generation = await serving(control)
    asking = ask(control, generation, server=server)
    assert await answer(worker, is_ready=is_ready) == generation
    assert list((await asking).not_ready) == ([] if is_ready else [generation])


async def test_what_nobody_serves_is_not_said_to_be_unready(control: Control) -> None:
    assert list((await ask(control, 77)).not_ready) == []


async def test_a_worker_that_leaves_has_no_say(control: Control) -> None:
    worker, generation = await serving(control)
    asking = ask(control, generation)
    await worker.told("check_readiness")
    worker.hang_up()
    assert list((await asking).not_ready) == []


async def test_who_does_not_answer_is_not_ready(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.control.readiness_servicer._TIMEOUT_S", 0.05)
    worker, generation = await serving(control)
    asking = ask(control, generation)
    question = await worker.told("check_readiness")
    assert list((await asking).not_ready) == [generation]
    # Its answer comes too late, and is nobody's.
    late = control_pb2.ReadinessChecked(question=question.question, ready=True)
    await worker.report(readiness=late)
    asking = ask(control, generation)
    await answer(worker, is_ready=True)
    assert list((await asking).not_ready) == []


async def test_where_readiness_is_not_strict_no_model_speaks_for_the_server(
    control: Control,
) -> None:
    _, generation = await serving(control)
    control.supervisor.reconciler._strict_readiness = False
    assert list((await ask(control, generation, server=True)).not_ready) == []
