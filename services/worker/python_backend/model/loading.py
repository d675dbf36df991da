"""From a model's file to its object."""

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from services.worker.python_backend.model.config import ModelConfig


def load_class(file: str) -> Any:  # noqa: ANN401 - the model's class
    """Import a ``model.py`` and return its TritonPythonModel.

    Its folder and the model's are searched for what it imports; it is the module
    ``<version>.model``, as with Triton.
    """
    path = Path(file)
    folder = path.parent
    sys.path[1:1] = [str(folder), str(folder.parent)]
    module = importlib.import_module(f"{folder.name}.{path.stem}")
    return module.TritonPythonModel


def completed_config(file: str, config: str) -> str:
    """Return what the model's ``auto_complete_config`` makes of ``config``."""
    cls = load_class(file)
    complete = inspect.getattr_static(cls, "auto_complete_config", None)
    if complete is None:
        return config
    changed = cls.auto_complete_config(ModelConfig(config))
    if not isinstance(changed, ModelConfig):
        raise TypeError(
            "auto_complete_config must return the ModelConfig that it was given, not"
            f" {type(changed).__name__}"
        )
    return json.dumps(changed.as_dict())
