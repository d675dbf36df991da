"""ONNX Runtime's options from a model configuration."""

from typing import Any

import pytest

from services.core.errors import ConfigError
from services.core.model_config import InstanceKind, OptimizationPolicy
from services.worker.backends.onnxruntime_options import session_settings
from tests.unit.worker.onnx_models import config

SHRINKAGE = "memory.enable_memory_arena_shrinkage"


def configured(**more: Any) -> Any:  # noqa: ANN401 - any field of ModelConfig
    return config({"X": [1]}, {"Y": [1]}, **more)


def with_parameters(**parameters: str) -> Any:  # noqa: ANN401
    return configured(parameters=parameters)


def test_by_default_nothing_spins_and_everything_is_optimised() -> None:
    settings = session_settings(with_parameters())
    assert settings.intra_op_threads == settings.inter_op_threads == 0
    assert not settings.is_parallel
    assert settings.graph_level == "all"
    assert settings.has_arena
    assert settings.has_pattern
    assert settings.entries == {
        "session.intra_op.allow_spinning": "0",
        "session.inter_op.allow_spinning": "0",
        "session.record_ep_graph_assignment_info": "1",
    }
    assert settings.run_entries(InstanceKind.GPU) == {}


def test_the_configuration_may_ask_for_spinning() -> None:
    parameters = {"session.intra_op.allow_spinning": "1"}
    settings = session_settings(configured(parameters=parameters))
    assert settings.entries["session.intra_op.allow_spinning"] == "1"


def test_parameters_of_others_are_left_alone() -> None:
    settings = session_settings(with_parameters(TRITON="1", padding="on"))
    assert settings == session_settings(with_parameters())


@pytest.mark.parametrize(
    ("level", "name"),
    [(None, "all"), (0, "all"), (-1, "basic"), (1, "extended"), (2, "disabled")],
)
def test_graph_levels_are_tritons(level: int | None, name: str) -> None:
    of = configured(optimization=OptimizationPolicy(graph_level=level))
    assert session_settings(of).graph_level == name


@pytest.mark.parametrize("text", ["many", "-1", "1.5"])
def test_a_number_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=f"'intra_op_thread_count'.* is '{text}'"):
        session_settings(with_parameters(intra_op_thread_count=text))


@pytest.mark.parametrize("mode", ["2", "-1", "parallel"])
def test_an_execution_mode_that_does_not_exist_is_refused(mode: str) -> None:
    with pytest.raises(ConfigError, match=f"'execution_mode'.* is '{mode}'.*0..1"):
        session_settings(with_parameters(execution_mode=mode))


@pytest.mark.parametrize(
    ("text", "is_on"), [("1", True), ("True", True), ("0", False), ("false", False)]
)
def test_arena_and_pattern_are_switches(text: str, is_on: bool) -> None:
    settings = session_settings(
        with_parameters(enable_mem_arena=text, enable_mem_pattern=text)
    )
    assert (settings.has_arena, settings.has_pattern) == (is_on, is_on)


@pytest.mark.parametrize("key", ["enable_mem_arena", "enable_mem_pattern"])
def test_a_switch_that_is_neither_on_nor_off_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' of model 'm' is '2': expected 1"):
        session_settings(with_parameters(**{key: "2"}))


@pytest.mark.parametrize(
    ("text", "on_cpu", "on_gpu"),
    [
        ("cpu:0", "cpu:0", "cpu:0"),
        ("gpu:0", None, "gpu:0"),
        ("gpu:3", None, "gpu:0"),
        ("cpu:0;gpu:0", "cpu:0", "cpu:0;gpu:0"),
        ("gpu:0;gpu:1", None, "gpu:0"),
        ("", None, None),
    ],
)
def test_arenas_are_shrunk_where_they_are(
    text: str, on_cpu: str | None, on_gpu: str | None
) -> None:
    settings = session_settings(configured(parameters={SHRINKAGE: text}))
    found = (
        settings.run_entries(InstanceKind.CPU).get(SHRINKAGE),
        settings.run_entries(InstanceKind.GPU).get(SHRINKAGE),
    )
    assert found == (on_cpu, on_gpu)


@pytest.mark.parametrize("text", ["1", "tpu:0", "cpu:", "cpu:x"])
def test_an_arena_that_cannot_be_shrunk_is_refused_at_once(text: str) -> None:
    with pytest.raises(ConfigError, match=f"'{SHRINKAGE}' of model 'm' is '{text}'"):
        session_settings(configured(parameters={SHRINKAGE: text}))


def test_an_arena_that_is_off_cannot_be_shrunk() -> None:
    parameters = {SHRINKAGE: "cpu:0", "enable_mem_arena": "0"}
    with pytest.raises(ConfigError, match="'enable_mem_arena' switches it off"):
        session_settings(configured(parameters=parameters))
