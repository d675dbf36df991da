"""The backend that ARCHITECTURE.md shows, installed and served as it stands there."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.support.stack import ROOT, Stack, started_stack

pytestmark = pytest.mark.timeout(180)

# A code block whose first line is a comment with the file's name.
FILE = re.compile(r"```(?:toml|python)\n# (?P<name>\S+)\n(?P<text>.*?)```", re.DOTALL)
LONGEST_LINES = 40


def files_shown() -> dict[str, str]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return {match["name"]: match["text"] for match in FILE.finditer(text)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which pip has installed the package."""
    package = tmp_path_factory.mktemp("package")
    for name, text in files_shown().items():
        (package / name).write_text(text)
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index"]
    pip += ["--no-build-isolation", "--no-deps", f"--target={target}", str(package)]
    subprocess.run(pip, check=True)
    return target


@pytest.fixture(scope="module")
def stack(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    models = tmp_path_factory.mktemp("models")
    for name, factor in [("half", "0.5"), ("third", "a third")]:
        (models / name / "1").mkdir(parents=True)
        (models / name / "config.pbtxt").write_text('backend: "scale"')
        (models / name / "1" / "factor.txt").write_text(factor)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    with started_stack(
        models, "--exit-on-error=false", environment={"PYTHONPATH": path}
    ) as running:
        running.wait_ready()
        yield running


def index(stack: Stack) -> dict[str, dict[str, str]]:
    url = f"http://127.0.0.1:{stack.http}/v2/repository/index"
    with urllib.request.urlopen(urllib.request.Request(url, b"{}")) as answer:
        return {one["name"]: one for one in json.load(answer)}


def test_the_example_is_short_and_whole() -> None:
    shown = files_shown()
    assert set(shown) == {"pyproject.toml", "nereid_scale.py"}
    assert sum(text.count("\n") + 1 for text in shown.values()) < LONGEST_LINES


def test_a_model_of_the_backend_answers(stack: Stack) -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    tensor = triton_grpc.InferInput("X", [2, 3], "FP32")
    tensor.set_data_from_numpy(x)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        found = client.infer("half", [tensor]).as_numpy("Y")
    assert found.tolist() == (x / 2).tolist()


def test_the_backend_completes_the_configuration(stack: Stack) -> None:
    url = f"http://127.0.0.1:{stack.http}/v2/models/half/config"
    with urllib.request.urlopen(url) as answer:
        config = json.load(answer)
    assert (config["backend"], config["max_batch_size"]) == ("scale", 4)
    assert [one["name"] for one in (*config["input"], *config["output"])] == ["X", "Y"]


def test_the_backends_own_error_reaches_the_index(stack: Stack) -> None:
    third = index(stack)["third"]
    assert third["state"] == "UNAVAILABLE"
    assert third["reason"].startswith("Internal: no factor: could not convert string")
