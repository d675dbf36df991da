"""What the scan of model repositories finds."""

import os
from pathlib import Path

import pytest

from services.control.repository import (
    ModelFolder,
    read_model,
    scan,
    scan_model,
    survey,
)
from services.core.errors import InternalError


def put(root: Path, path: str, content: bytes = b"x") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_models_are_folders_and_versions_are_their_numbered_folders(
    tmp_path: Path,
) -> None:
    put(tmp_path, "a/config.pbtxt", b"name: 'a'")
    put(tmp_path, "a/1/model.onnx")
    put(tmp_path, "a/10/model.onnx")
    put(tmp_path, "a/2/model.onnx")
    put(tmp_path, "a/02/model.onnx")
    put(tmp_path, "a/0/model.onnx")
    put(tmp_path, "a/warmup/data")
    put(tmp_path, "a/3")  # a file is no version
    put(tmp_path, "b/1/model.py")
    put(tmp_path, "README.md")
    put(tmp_path, ".git/1/model.onnx")
    found = scan([str(tmp_path)])
    assert found.names == ("a", "b")
    assert found.models["a"].versions == (1, 2, 10)
    assert found.models["a"].config == b"name: 'a'"
    assert found.models["a"].files[1] == {"model.onnx"}
    assert found.models["b"].config is None
    assert found.models["b"].version_directory(1) == str(tmp_path / "b" / "1")


def test_a_folder_whose_name_nobody_can_send_is_no_model(tmp_path: Path) -> None:
    put(tmp_path, "m\u00e4/1/model.onnx")
    put(tmp_path, os.fsdecode(b"m\xff/1/model.onnx"))
    assert scan([str(tmp_path)]).names == ("m\u00e4",)


def test_a_model_in_two_repositories_is_served_from_neither(tmp_path: Path) -> None:
    put(tmp_path, "first/m/1/model.onnx")
    put(tmp_path, "first/only/1/model.onnx")
    put(tmp_path, "second/m/1/model.onnx")
    roots = [str(tmp_path / "first"), str(tmp_path / "second")]
    found = scan(roots)
    assert list(found.models) == ["only"]
    assert found.duplicates == {"m"}
    assert found.names == ("m", "only")
    assert scan_model(roots, "m").models == {}
    assert list(scan_model(roots, "only").models) == ["only"]


def test_a_model_folder_without_anything_is_a_model_without_versions(
    tmp_path: Path,
) -> None:
    (tmp_path / "empty").mkdir()
    assert scan([str(tmp_path)]).models["empty"].versions == ()


@pytest.mark.parametrize("missing", ["nowhere", "file"])
def test_a_repository_that_is_no_folder_is_an_error(
    tmp_path: Path, missing: str
) -> None:
    put(tmp_path, "file")
    with pytest.raises(InternalError, match=f"model repository .*{missing}"):
        scan([str(tmp_path / missing)])


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../outside", "a/1", "/etc", "a\0b", "nope"]
)
def test_only_plain_names_of_folders_are_found(tmp_path: Path, name: str) -> None:
    put(tmp_path, "repository/a/1/model.onnx")
    put(tmp_path, "outside/1/model.onnx")
    assert scan_model([str(tmp_path / "repository")], name).names == ()


def test_a_fingerprint_changes_with_its_version_and_no_other(tmp_path: Path) -> None:
    model = put(tmp_path, "m/1/model.onnx", b"one")
    put(tmp_path, "m/2/deep/down/data", b"two")
    before = read_model(tmp_path / "m").fingerprints
    assert read_model(tmp_path / "m").fingerprints == before
    model.write_bytes(b"other")
    os.utime(model, ns=(1, 1))
    after = read_model(tmp_path / "m").fingerprints
    assert after[1] != before[1]
    assert after[2] == before[2]
    put(tmp_path, "m/2/deep/down/more")
    assert read_model(tmp_path / "m").fingerprints[2] != before[2]


def test_files_beside_the_versions_belong_to_all_of_them(tmp_path: Path) -> None:
    put(tmp_path, "m/config.pbtxt")
    put(tmp_path, "m/configs/small.pbtxt")
    put(tmp_path, "m/labels.txt", b"a")
    put(tmp_path, "m/warmup/data", b"a")
    put(tmp_path, "m/1/model.onnx")
    put(tmp_path, "m/2/model.onnx")
    before = read_model(tmp_path / "m").fingerprints
    put(tmp_path, "m/config.pbtxt", b"another text")
    put(tmp_path, "m/configs/small.pbtxt", b"another text")
    assert read_model(tmp_path / "m").fingerprints == before
    for path in ("m/labels.txt", "m/warmup/data"):
        put(tmp_path, path, b"another text")
        after = read_model(tmp_path / "m").fingerprints
        assert before[1] != after[1]
        assert before[2] != after[2]
        before = after


def test_what_python_compiles_beside_a_model_is_no_change(tmp_path: Path) -> None:
    put(tmp_path, "m/1/model.py")
    before = read_model(tmp_path / "m").fingerprints
    put(tmp_path, "m/1/__pycache__/model.cpython-311.pyc")
    assert read_model(tmp_path / "m").fingerprints == before


@pytest.mark.parametrize(
    ("name", "text"),
    [("small", b"small"), ("other", b"usual"), ("../1/x", b"usual"), ("", b"usual")],
)
def test_a_configuration_can_be_chosen_by_name(
    tmp_path: Path, name: str, text: bytes
) -> None:
    put(tmp_path, "m/config.pbtxt", b"usual")
    put(tmp_path, "m/configs/small.pbtxt", b"small")
    put(tmp_path, "m/1/x.pbtxt", b"foreign")
    assert read_model(tmp_path / "m", name).config == text


def test_a_folder_that_cannot_be_read_is_a_problem_of_its_model_alone(
    tmp_path: Path,
) -> None:
    put(tmp_path, "good/1/model.onnx")
    (tmp_path / "bad").mkdir()
    loop = tmp_path / "bad" / "1"
    loop.mkdir()
    (loop / "model.onnx").symlink_to(loop / "model.onnx")
    bad = read_model(tmp_path / "gone")
    assert bad.problem == f"failed to read {tmp_path}/gone: No such file or directory"
    assert scan([str(tmp_path)]).models["good"].problem == ""


def test_the_survey_orders_models_by_name() -> None:
    folders = [ModelFolder(name=name, directory=f"/r/{name}") for name in "cab"]
    assert list(survey(folders).models) == ["a", "b", "c"]
