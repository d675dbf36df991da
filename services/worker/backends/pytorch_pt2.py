"""Files named .pt2: exported programs and AOTInductor packages.

Imported when the first of them is loaded: a second and 70 MB that TorchScript does
without. All that PyTorch imports for them hangs below this module, so that threads
that load at the same time wait for one of them: its own modules import each other in
circles, and fail if two threads begin at different ones.
"""

import threading
from typing import Final

import torch._dynamo  # noqa: F401 - the root of those circles

from services.worker.backends.pytorch_compiled import CompiledModel
from services.worker.backends.pytorch_exported import ExportedModel
from services.worker.backends.pytorch_form import ModelForm

# Reading a program rebuilds it in Python, with what PyTorch keeps for the process.
_READING: Final = threading.Lock()


def open_pt2(
    path: str, device: str | None, *, is_compiled: bool, runners: int
) -> ModelForm:
    """Load a file; see CompiledModel and ExportedModel."""
    with _READING:
        if is_compiled:
            return CompiledModel(path, device, runners)
        return ExportedModel(path, device)
