"""Which models are asked whether they are ready, and what their answers mean."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import grpc
import pytest

from services.core.lifecycle import ModelState
from services.core.model_config import Ensemble, EnsembleStep, ModelConfig
from services.router.inference import Inference
from services.router.readiness import Readiness, tells
from services.router.readiness_question import asker
from services.router.route_table import RouteTable
from tests.unit.router.routes import add_sub, route

SILENT = replace(add_sub(), name="silent", backend="onnxruntime")
PYTHON = replace(add_sub(), name="python", backend="python")
OTHER = replace(PYTHON, name="other")
ENSEMBLE = ModelConfig(
    name="ensemble",
    platform="ensemble",
    ensemble=Ensemble(
        steps=(
            EnsembleStep(
                model_name="silent", input_map={"A": "X"}, output_map={"B": "Y"}
            ),
        ),
    ),
)


class Routed:
    """The routes; every one has its instances."""

    def __init__(self) -> None:
        self.has_instances = True
        self.table = RouteTable.of(
            [
                route(SILENT, generation=1),
                route(PYTHON, generation=2),
                route(OTHER, generation=3),
                route(PYTHON, 2, generation=4, state=ModelState.UNLOADING),
            ]
        )

    def is_model_ready(self, model: str, version: str) -> bool:
        self.table.find(model, version)
        return self.has_instances

    def is_ready(self) -> bool:
        return self.has_instances


class Control:
    """Knows who is not ready, and who was asked about."""

    def __init__(self, *not_ready: int) -> None:
        self._not_ready = frozenset(not_ready)
        self.asked: list[tuple[list[int], bool]] = []

    def ask(self, generations: Sequence[int], is_server: bool) -> frozenset[int]:
        self.asked.append((list(generations), is_server))
        return self._not_ready.intersection(generations)


def readiness(routed: Routed, control: Control) -> Readiness:
    return Readiness(cast("Inference", routed), control.ask)


@pytest.mark.parametrize(
    ("config", "is_asked"), [(SILENT, False), (PYTHON, True), (ENSEMBLE, False)]
)
def test_only_who_may_know_better_is_asked(
    config: ModelConfig, *, is_asked: bool
) -> None:
    assert tells(config) is is_asked


def test_a_model_is_ready_unless_it_says_otherwise() -> None:
    control = Control(3)
    asking = readiness(Routed(), control)
    assert asking.is_model_ready("silent", "")
    assert asking.is_model_ready("python", "1")
    assert not asking.is_model_ready("other", "")
    assert control.asked == [([2], False), ([3], False)]


def test_nobody_is_asked_about_what_is_not_there() -> None:
    routed, control = Routed(), Control()
    asking = readiness(routed, control)
    assert not asking.is_model_ready("unknown", "")
    assert not asking.is_model_ready("python", "x")
    routed.has_instances = False
    assert not asking.is_model_ready("python", "1")
    assert not asking.is_server_ready()
    assert control.asked == []


@pytest.mark.parametrize(("not_ready", "is_ready"), [((), True), ((2,), False)])
def test_the_server_is_ready_if_all_ready_versions_say_so(
    not_ready: tuple[int, ...], *, is_ready: bool
) -> None:
    control = Control(*not_ready)
    assert readiness(Routed(), control).is_server_ready() is is_ready
    assert control.asked == [([2, 3], True)]


def test_while_control_is_away_models_are_believed_to_be_ready() -> None:
    channel: Any = grpc.insecure_channel("unix:/nowhere/control.sock")
    with channel:
        assert asker(channel)([1, 2], False) == frozenset()  # noqa: FBT003 - as Ask
