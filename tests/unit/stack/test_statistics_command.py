"""``nereid stats``: how control is found, and the table."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from protos import inference_pb2 as pb
from services.stack.statistics_command import control_target, main, table


@pytest.fixture
def parent() -> Iterator[Path]:
    # Not tmp_path: a unix socket's path must be short.
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def listening(folder: Path) -> socket.socket:
    folder.mkdir()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "control.sock"))
    return server


def duration(count: int, ns: int) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=count, ns=ns)


def test_the_only_running_stack_is_found(parent: Path) -> None:
    (parent / "other-x").mkdir()
    (parent / "nereid-stale").mkdir()
    with listening(parent / "nereid-a"):
        assert control_target(parent) == f"unix:{parent}/nereid-a/control.sock"


def test_the_environment_may_say_where_control_is(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEREID_CONTROL", "control:8003")
    assert control_target(parent) == "control:8003"


def test_several_stacks_or_none_have_to_be_told_apart(parent: Path) -> None:
    with pytest.raises(LookupError, match="no running"):
        control_target(parent)
    with (
        listening(parent / "nereid-a"),
        listening(parent / "nereid-b"),
        pytest.raises(LookupError, match="more than one"),
    ):
        control_target(parent)


def test_a_control_that_does_not_answer_is_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--control=unix:/nowhere/control.sock"]) == 1
    assert capsys.readouterr().err.startswith("nereid stats: ")


def test_the_table_has_averages_and_a_line_for_each_version() -> None:
    busy = pb.ModelStatistics(
        name="adder",
        version="12",
        inference_count=10,
        execution_count=4,
        inference_stats=pb.InferStatistics(
            success=duration(5, 9), fail=duration(1, 9), queue=duration(5, 10_000)
        ),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=2, compute_infer=duration(3, 1)),
            pb.InferBatchStatistics(batch_size=4, compute_infer=duration(1, 1)),
        ],
    )
    idle = pb.ModelStatistics(name="n", version="1")
    lines = table([busy, idle]).splitlines()
    assert lines[0].split()[:4] == ["MODEL", "VERSION", "SUCCESS", "FAIL"]
    assert lines[1].split() == [
        *("adder", "12", "5", "1", "10", "4", "2.50", "2.0", "-", "-", "-")
    ]
    assert lines[2].split() == ["n", "1", "0", "0", "0", "0", "-", "-", "-", "-", "-"]
    assert len({len(line) for line in lines}) == 1
