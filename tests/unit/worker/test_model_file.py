"""Where the file of a model version is."""

from dataclasses import replace
from pathlib import Path

import pytest

from services.core.errors import BackendError
from services.worker.device import Device, DeviceKind
from services.worker.model_file import model_file
from tests.unit.worker.onnx_models import ADD_SUB, CPU, source

AMPERE = Device(kind=DeviceKind.GPU, compute_capability="8.0")
HOPPER = Device(kind=DeviceKind.GPU, compute_capability="9.0")
NAMED = replace(
    ADD_SUB,
    default_model_filename="any.plan",
    cc_model_filenames={"8.0": "ampere.plan"},
)


@pytest.mark.parametrize(
    ("device", "name"),
    [(AMPERE, "ampere.plan"), (HOPPER, "any.plan"), (CPU, "any.plan")],
)
def test_a_gpu_may_have_a_file_of_its_own(
    tmp_path: Path, device: Device, name: str
) -> None:
    for each in ("ampere.plan", "any.plan"):
        (tmp_path / each).touch()
    assert model_file(source(tmp_path, NAMED, device), "model.plan") == tmp_path / name


def test_without_a_name_it_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "model.plan").touch()
    assert model_file(source(tmp_path), "model.plan") == tmp_path / "model.plan"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=f"failed to stat file {tmp_path}/any.plan"):
        model_file(source(tmp_path, NAMED), "model.plan")
