"""Where the file of a model version is."""

from pathlib import Path

from services.core.errors import BackendError
from services.worker.backend import ModelSource


def model_file(source: ModelSource, default: str, *, inside: str = "") -> Path:
    """Return the file that is to be loaded.

    Args:
        source: Its configuration may name a file, and one for the GPU's compute
            capability ("8.0"), which is the stronger word.
        default: The name, where the configuration names none.
        inside: The file meant if that name is a folder; "": the folder itself.

    Raises:
        BackendError: it is not there, in Triton's words.
    """
    config = source.config
    capability = source.device.compute_capability
    name = config.cc_model_filenames.get(capability, "") if capability else ""
    path = Path(source.directory) / (name or config.default_model_filename or default)
    if inside and path.is_dir():
        path /= inside
    if not path.exists():
        message = f"failed to stat file {path}"
        raise BackendError(message)
    return path
