"""Copies of remote repositories, of a store in this process's memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from services.control import check
from services.control.remote_repository import RemoteRepositories
from services.core.errors import InternalError

ROOT = "memory://store/models"


@pytest.fixture
def store() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/store", recursive=True)


def put(store: Any, path: str, content: bytes) -> None:  # noqa: ANN401
    store.pipe_file(f"/store/models/{path}", content)


def files(remotes: RemoteRepositories) -> dict[str, bytes]:
    (folder,) = map(Path, remotes.folders)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def remotes(tmp_path: Path) -> RemoteRepositories:
    return RemoteRepositories([ROOT], {}, str(tmp_path / "copies"))


def test_a_folder_of_this_machine_stays_where_it_is(tmp_path: Path) -> None:
    remotes = RemoteRepositories([str(tmp_path), ROOT], {}, str(tmp_path / "copies"))
    assert remotes.folders[0] == str(tmp_path)
    assert remotes.folders[1] == str(tmp_path / "copies" / "repository-0")


def test_all_files_are_copied_and_those_that_go_go_here_too(
    store: Any,  # noqa: ANN401
    remotes: RemoteRepositories,
) -> None:
    put(store, "a/config.pbtxt", b"1")
    put(store, "a/1/model.onnx", b"2")
    put(store, "b/1/model.onnx", b"3")
    remotes.refresh()
    assert files(remotes) == {
        "a/config.pbtxt": b"1",
        "a/1/model.onnx": b"2",
        "b/1/model.onnx": b"3",
    }
    store.rm("/store/models/a", recursive=True)
    put(store, "b/1/model.onnx", b"changed")
    remotes.refresh()
    assert files(remotes) == {"b/1/model.onnx": b"changed"}
    assert not Path(remotes.folders[0], "a").exists()


def test_a_file_that_has_not_changed_is_not_fetched_again(
    store: Any,  # noqa: ANN401
    remotes: RemoteRepositories,
) -> None:
    put(store, "a/1/model.onnx", b"2")
    remotes.refresh()
    copy = Path(remotes.folders[0], "a/1/model.onnx")
    before = copy.stat()
    put(store, "b/1/model.onnx", b"3")
    remotes.refresh()
    assert copy.stat().st_ino == before.st_ino
    assert copy.stat().st_mtime == before.st_mtime


def test_one_model_is_brought_up_to_date_alone(
    store: Any,  # noqa: ANN401
    remotes: RemoteRepositories,
) -> None:
    put(store, "a/1/model.onnx", b"1")
    put(store, "b/1/model.onnx", b"1")
    remotes.refresh()
    put(store, "a/1/model.onnx", b"22")
    put(store, "b/1/model.onnx", b"22")
    put(store, "aa/1/model.onnx", b"22")
    remotes.refresh("a")
    assert files(remotes) == {"a/1/model.onnx": b"22", "b/1/model.onnx": b"1"}


@pytest.mark.parametrize("name", ["..", "", "a/b", "."])
def test_a_name_that_is_none_reaches_no_other_folder(
    store: Any,  # noqa: ANN401
    tmp_path: Path,
    name: str,
) -> None:
    put(store, "a/1/model.onnx", b"1")
    remotes = RemoteRepositories([ROOT], {}, str(tmp_path / "copies"))
    remotes.refresh(name)
    expected = {"a/1/model.onnx"} if not name else set()
    assert set(files(remotes)) == expected


def test_what_an_earlier_run_has_left_is_not_served(
    store: Any,  # noqa: ANN401
    tmp_path: Path,
) -> None:
    left = tmp_path / "copies" / "repository-0" / "old" / "1" / "model.onnx"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"old")
    put(store, "a/1/model.onnx", b"1")
    remotes = RemoteRepositories([ROOT], {}, str(tmp_path / "copies"))
    remotes.refresh()
    assert set(files(remotes)) == {"a/1/model.onnx"}


def test_the_copies_go_with_their_owner(
    store: Any,  # noqa: ANN401
    remotes: RemoteRepositories,
) -> None:
    put(store, "a/1/model.onnx", b"1")
    remotes.refresh()
    remotes.close()
    assert not Path(remotes.folders[0]).exists()


def test_a_store_that_fails_is_named_and_what_is_here_stays(
    store: Any,  # noqa: ANN401
    remotes: RemoteRepositories,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(store, "a/1/model.onnx", b"1")
    remotes.refresh()

    def broken(*_: object, **__: object) -> None:
        raise OSError("no route to the store")

    monkeypatch.setattr(type(store), "find", broken)
    with pytest.raises(InternalError, match=f"{ROOT}: no route to the store"):
        remotes.refresh()
    assert set(files(remotes)) == {"a/1/model.onnx"}


def test_a_credential_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    environment = {"TRITON_CLOUD_CREDENTIAL_PATH": str(tmp_path / "none.json")}
    with pytest.raises(ValueError, match=r"none\.json"):
        RemoteRepositories([ROOT], environment)


def test_a_whole_repository_is_checked_where_it_lies(
    store: Any,  # noqa: ANN401
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(store, "bad/config.pbtxt", b"max_batch_size: -1")
    put(store, "bad/1/model.onnx", b"no model")
    assert check.main([ROOT]) == 1
    assert "bad" in capsys.readouterr().out
