"""What the stack claims on the machine before it starts anything."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.core.errors import AlreadyExistsError
from services.stack import directories, ports
from services.stack.settings import Door


def door(port: int, name: str = "REST", host: str = "127.0.0.1") -> Door:
    return Door(name=name, flag=f"--{name.lower()}-port", host=host, port=port)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_taken_port_is_named_with_its_use_and_its_flag(taken: int, host: str) -> None:
    assert ports.problems([door(taken, host=host)]) == (
        f"port {taken} (REST) is already in use; choose another with --rest-port",
    )


def test_all_problems_are_told_at_once(taken: int) -> None:
    found = ports.problems([door(taken, "REST"), door(taken, "gRPC")])
    assert len(found) == 2
    assert "meant for both REST and gRPC" in found[1]


def test_a_free_port_is_no_problem_even_twice_in_a_row() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert ports.problems([door(free)]) == ports.problems([door(free)]) == ()


def test_an_address_that_is_not_ours_is_told() -> None:
    (sentence,) = ports.problems([door(8000, host="192.0.2.1")])
    assert sentence.startswith("cannot listen on 192.0.2.1:8000 (REST)")


def test_the_state_folder_follows_the_user_then_the_xdg_rules() -> None:
    environment = {"XDG_STATE_HOME": "/x"}
    assert directories.state_directory("/s", environment) == Path("/s")
    assert directories.state_directory("", environment) == Path("/x/nereid")
    home = Path.home() / ".local/state/nereid"
    assert directories.state_directory("", {}) == home


def test_two_stacks_cannot_share_a_state_folder(tmp_path: Path) -> None:
    with (
        directories.held_state_directory(tmp_path / "s"),
        pytest.raises(AlreadyExistsError, match="choose another with --state-dir"),
        directories.held_state_directory(tmp_path / "s"),
    ):
        pass
    with directories.held_state_directory(tmp_path / "s") as free_again:
        assert free_again.is_dir()


def test_the_run_folder_is_private_and_goes_with_the_stack() -> None:
    with directories.run_directory() as path:
        assert path.stat().st_mode & 0o777 == 0o700
        assert len(str(path)) < directories.LONGEST_RUN_DIRECTORY
    assert not path.exists()


def test_a_run_folder_is_swept_up_once_its_stack_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # tmp_path may be too long for sockets.
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr("tempfile.tempdir", short)
        abandoned = Path(short) / "nereid-killed"
        abandoned.mkdir()
        (abandoned / "lock").touch()
        with directories.run_directory() as alive, directories.run_directory():
            assert alive.exists()
            assert not abandoned.exists()


def test_a_long_temporary_folder_is_not_used_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with directories.run_directory() as path:
        assert path.parent == Path("/tmp")  # noqa: S108
