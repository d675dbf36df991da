"""The small pure decisions: restarts, devices, model states, file features."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import ConfigError
from services.core.gpus import Gpu
from services.stack.devices import devices_of
from services.stack.file_features import features
from services.stack.model_states import ModelEntry, judge
from services.stack.restart import (
    FIRST_DELAY_NS,
    LONGEST_DELAY_NS,
    STEADY_NS,
    next_delay_ns,
)


def test_the_first_restart_is_soon_and_the_next_ones_ever_later() -> None:
    first = next_delay_ns(0, lived_ns=0)
    second = next_delay_ns(first, lived_ns=0)
    assert (first, second) == (FIRST_DELAY_NS, 2 * FIRST_DELAY_NS)


def test_a_restart_is_never_later_than_the_longest_delay() -> None:
    assert next_delay_ns(LONGEST_DELAY_NS, lived_ns=0) == LONGEST_DELAY_NS


@pytest.mark.parametrize(
    ("lived_ns", "delay_ns"),
    [(STEADY_NS - 1, LONGEST_DELAY_NS), (STEADY_NS, FIRST_DELAY_NS)],
)
def test_a_process_that_ran_long_begins_anew(lived_ns: int, delay_ns: int) -> None:
    assert next_delay_ns(LONGEST_DELAY_NS, lived_ns=lived_ns) == delay_ns


A, B = Gpu(uuid="GPU-aa"), Gpu(uuid="GPU-bb")


@pytest.mark.parametrize(
    ("visible", "devices"),
    [([], ["cpu"]), ([B], ["cuda:0", "cpu"]), ([A, B], ["cuda:0", "cuda:1", "cpu"])],
)
def test_every_visible_gpu_gets_a_worker_and_so_does_the_cpu(
    visible: list[Gpu], devices: list[str]
) -> None:
    assert list(devices_of((), [A, B], visible, "")) == devices


def test_the_devices_asked_for_are_the_only_ones() -> None:
    assert devices_of(("cuda:1", "cuda:0"), [A, B], [A, B], "") == ("cuda:1", "cuda:0")
    assert devices_of(("cpu",), [], [], "no driver") == ("cpu",)


@pytest.mark.parametrize(
    ("gpus", "visible", "reason", "text"),
    [
        ([A, B], [A, B], "", "--device cuda:2: there are cuda:0, cuda:1, cpu"),
        ([A, B], [A], "", r"there are cuda:0, cpu \(CUDA_VISIBLE_DEVICES hides 1 GPUs"),
        ([], [], "", "--device cuda:2: there is no GPU$"),
        ([], [], "no driver", r"there is no GPU \(NVML: no driver\)"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_with_what_is(
    gpus: list[Gpu], visible: list[Gpu], reason: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        devices_of(("cpu", "cuda:2"), gpus, visible, reason)


def test_models_are_sorted_by_what_can_still_come_of_them() -> None:
    loading = ModelEntry(name="a", version="1", state="LOADING")
    failed = ModelEntry(name="b", version="1", state="UNAVAILABLE", reason="no file")
    ready = ModelEntry(name="c", version="2", state="READY")
    unloaded = ModelEntry(name="d", version="1", state="UNAVAILABLE", reason="unloaded")
    never_asked_for = ModelEntry(name="e")
    restored = ModelEntry(
        name="f",
        version="1",
        state="UNAVAILABLE",
        reason="no worker has it: the last one that served it is gone",
    )
    verdict = judge([loading, failed, ready, unloaded, never_asked_for, restored])
    assert (verdict.loading, verdict.failed) == ((loading, restored), (failed,))
    assert verdict.ready == (ready,)


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        (ModelEntry(name="b", version="3", reason="no file"), "b version 3: no file"),
        (ModelEntry(name="b", state="UNAVAILABLE"), "b: UNAVAILABLE"),
    ],
)
def test_a_failed_model_is_told_with_its_reason(entry: ModelEntry, shown: str) -> None:
    assert str(entry) == shown


def test_a_short_file_is_padded_towards_its_middle() -> None:
    row = features(b"  ab\n")
    assert row[:4] == [97, 98, 10, 256]
    assert row[-5:] == [256, 32, 32, 97, 98]


def test_a_long_file_gives_its_two_ends() -> None:
    row = features(b"a" * 1024 + b"x" * 9000 + b"z" * 1024)
    assert row == [97] * 1024 + [122] * 1024


@given(st.binary(max_size=9000))
def test_every_file_has_2048_features(content: bytes) -> None:
    row = features(content)
    assert len(row) == 2048
    assert all(0 <= value <= 256 for value in row)
