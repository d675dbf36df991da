"""The split of a model's traffic, as control keeps it."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import traffic_pb2
from services.control.catalog_settings import ControlMode
from services.control.store import NoStore
from services.control.traffic_servicer import TrafficServicer
from services.control.traffic_split import TrafficSplit, from_text, to_text
from services.core.errors import InvalidRequestError, ModelNotFoundError
from tests.unit.control.control_process import (
    Control,
    running,
    settings_of,
    write_model,
)

CONTEXT: grpc.aio.ServicerContext = None  # type: ignore[type-arg,assignment]


class KeptSettings(NoStore):
    """A store that keeps settings and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, str] = {}

    async def restore_settings(self) -> dict[str, str]:
        return dict(self.settings)

    def save_setting(self, name: str, text: str) -> None:
        self.settings[name] = text


def request(model: str, **weights: int) -> traffic_pb2.TrafficSettingRequest:
    split = traffic_pb2.TrafficSplit(
        weights={int(name.removeprefix("v")): each for name, each in weights.items()}
    )
    return traffic_pb2.TrafficSettingRequest(model_name=model, split=split)


@pytest.mark.parametrize("weights", [(), ((1, 0),), ((0, 1),), ((1, 1), (2, -1))])
def test_a_split_that_shares_out_nothing_is_refused(
    weights: tuple[tuple[int, int], ...],
) -> None:
    with pytest.raises(InvalidRequestError):
        TrafficSplit(weights=weights)


@given(
    st.dictionaries(
        st.text(),
        st.builds(
            lambda weights, sticky, is_header, tolerance: TrafficSplit(
                weights=tuple(sorted(weights.items())),
                **{"sticky_header" if is_header else "sticky_parameter": sticky},
                shadow_version=2**62 + 1,
                shadow_tolerance=tolerance,
            ),
            st.dictionaries(st.integers(1, 2**62), st.integers(1, 2**32 - 1)),
            st.text(),
            st.booleans(),
            st.floats(0, 1e9),
        ),
    )
)
def test_what_is_stored_is_read_back(splits: dict[str, TrafficSplit]) -> None:
    assert from_text(to_text(splits)) == splits


@pytest.mark.parametrize("text", ["", "[]", '{"m": 1}', '{"m": {"weights": []}}'])
def test_what_nobody_stored_is_told_apart(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        from_text(text)


def test_what_an_earlier_release_stored_is_read() -> None:
    text = '{"m": {"weights": [[1, 2]], "sticky": "user"}}'
    split = TrafficSplit(weights=((1, 2),), sticky_parameter="user")
    assert from_text(text) == {"m": split}


@pytest.mark.parametrize(
    "fields",
    [
        {"weights": ((1, 1), (2, 1)), "shadow_version": 2},
        {"shadow_version": -1},
        {"shadow_version": 1, "shadow_tolerance": -1.0},
        {"shadow_version": 1, "shadow_tolerance": float("nan")},
        {"weights": ((1, 1),), "sticky_parameter": "a", "sticky_header": "b"},
    ],
)
def test_a_split_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        TrafficSplit(**fields)


async def test_routers_are_told_and_a_successor_remembers(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    settings = settings_of(tmp_path, mode=ControlMode.EXPLICIT)
    store = KeptSettings()
    async with running(Control(settings)) as control:
        servicer = TrafficServicer(control.supervisor, store, control.statistics)
        with pytest.raises(ModelNotFoundError):
            await servicer.TrafficSetting(request("m", v1=1), CONTEXT)
        worker = await control.worker()
        loading = asyncio.create_task(control.catalog.load("m"))
        await worker.loads()
        await loading
        router = await control.router()
        await router.applies()
        setting = asyncio.create_task(
            servicer.TrafficSetting(request("m", v1=3, v2=1), CONTEXT)
        )
        table = await router.told("routes")
        assert dict(table.models[0].split.weights) == {1: 3, 2: 1}
        assert not setting.done()  # not before the router works by it
        setting.cancel()
    async with running(Control(settings)) as control:
        successor = TrafficServicer(control.supervisor, store, control.statistics)
        await successor.restore()
        answer = await successor.TrafficSetting(
            traffic_pb2.TrafficSettingRequest(model_name="m"), CONTEXT
        )
        assert dict(answer.split.weights) == {1: 3, 2: 1}
        cleared = await successor.TrafficSetting(request("m"), CONTEXT)
        assert not cleared.split.weights
        assert store.settings["traffic"] == "{}"


async def test_settings_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    store = KeptSettings()
    store.save_setting("traffic", "nonsense")
    control = Control(settings_of(tmp_path))
    await TrafficServicer(control.supervisor, store, control.statistics).restore()
    assert control.supervisor.reconciler.splits == {}
