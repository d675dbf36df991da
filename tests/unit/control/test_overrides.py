"""Files of load requests: where they go, and that they go away."""

import stat
from pathlib import Path

import pytest

from services.control.overrides import OverrideFolders, require_safe_path
from services.core.errors import InvalidRequestError


def test_files_are_laid_out_as_a_model_of_a_repository(tmp_path: Path) -> None:
    folders = OverrideFolders(str(tmp_path))
    folder = folders.write("m", {"1/model.py": b"code", "labels.txt": b"a\nb"})
    assert folder.name == "m"
    assert (folder / "1" / "model.py").read_bytes() == b"code"
    assert (folder / "labels.txt").read_bytes() == b"a\nb"
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/passwd", "1/../../x", "1//x", "", ".", "1/", "a\0b", "1\\x", "1/\n"],
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidRequestError, match="invalid path"):
        require_safe_path(path)
    folders = OverrideFolders(str(tmp_path / "overrides"))
    with pytest.raises(InvalidRequestError, match="invalid path"):
        folders.write("m", {"1/model.py": b"", path: b""})
    assert not (tmp_path / "overrides").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../m", "a\0"])
def test_a_model_name_that_leads_elsewhere_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(InvalidRequestError, match="invalid model name"):
        OverrideFolders(str(tmp_path)).write(name, {"1/model.py": b""})


def test_a_folder_goes_once_nobody_reads_it(tmp_path: Path) -> None:
    folders = OverrideFolders(str(tmp_path))
    first = folders.write("m", {"1/model.py": b"one"})
    second = folders.write("m", {"1/model.py": b"two"})
    in_use = {str(second / "1"), "/models/other/1"}
    assert folders.has_unused(in_use)
    folders.sweep(in_use)
    assert not first.exists()
    assert second.exists()
    assert not folders.has_unused(in_use)


def test_a_successor_sweeps_what_its_predecessor_left(tmp_path: Path) -> None:
    left = OverrideFolders(str(tmp_path)).write("m", {"1/model.py": b"one"})
    kept = OverrideFolders(str(tmp_path)).write("n", {"1/model.py": b"two"})
    assert kept.parent != left.parent
    successor = OverrideFolders(str(tmp_path))
    assert successor.has_unused({str(kept / "1")})
    successor.sweep({str(kept / "1")})
    assert [left.exists(), kept.exists()] == [False, True]


def test_a_folder_of_its_own_is_removed_at_the_end() -> None:
    folders = OverrideFolders()
    folder = folders.write("m", {"1/model.py": b"one"})
    folders.close()
    assert not folder.parent.parent.exists()
    OverrideFolders().close()
