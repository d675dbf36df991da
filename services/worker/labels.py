"""The labels of outputs that classify, from files beside the model's configuration.

Source: ``label_filename`` of a model's configuration: one label a line, in the
order of the elements.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from services.core.errors import ConfigError
from services.worker.backend import ModelSource

# By output name.
Labels: TypeAlias = Mapping[str, tuple[str, ...]]


def read_labels(source: ModelSource) -> Labels:
    """Return the labels of every output that has a file of them.

    Raises:
        ConfigError: a file is not there, cannot be read, or lies outside of the
            model's folder.
    """
    folder = Path(source.directory).parent
    return {
        output.name: _read(folder, output.label_filename)
        for output in source.config.outputs
        if output.label_filename
    }


def _read(folder: Path, name: str) -> tuple[str, ...]:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ConfigError(f"label file '{name}' lies outside of the model's folder")
    try:
        return tuple(path.read_text().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"label file '{name}' cannot be read: {error}") from error
