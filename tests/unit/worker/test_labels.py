"""Label files, read when a model is loaded."""

from pathlib import Path

import pytest

from services.core.datatype import DataType
from services.core.errors import ConfigError
from services.core.model_config import ModelConfig, ModelOutput
from services.worker.backend import ModelSource
from services.worker.device import Device, DeviceKind
from services.worker.labels import read_labels


def source(folder: Path, label_filename: str) -> ModelSource:
    (folder / "m" / "1").mkdir(parents=True, exist_ok=True)
    output = ModelOutput(
        name="y", datatype=DataType.FP32, dims=(4,), label_filename=label_filename
    )
    config = ModelConfig(name="m", backend="onnxruntime", inputs=(), outputs=(output,))
    return ModelSource(
        config=config,
        version=1,
        directory=str(folder / "m" / "1"),
        device=Device(kind=DeviceKind.CPU),
    )


def test_labels_stand_one_a_line(tmp_path: Path) -> None:
    of = source(tmp_path, "labels.txt")
    (tmp_path / "m" / "labels.txt").write_text("cat\nsea lion\n\nfish\n")
    assert read_labels(of) == {"y": ("cat", "sea lion", "", "fish")}


def test_an_output_without_a_file_has_no_labels(tmp_path: Path) -> None:
    assert read_labels(source(tmp_path, "")) == {}


def test_a_file_that_is_not_there_fails_the_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"label file 'no\.txt' cannot be read"):
        read_labels(source(tmp_path, "no.txt"))


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/hostname", "link/secret.txt"])
def test_a_file_outside_of_the_model_is_not_read(tmp_path: Path, name: str) -> None:
    of = source(tmp_path, name)
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "m" / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="outside of the model's folder"):
        read_labels(of)
