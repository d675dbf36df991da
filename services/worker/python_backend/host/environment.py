"""Which Python a model runs in."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from services.core.errors import BackendError, ConfigError

_PARAMETER: Final = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"
_UNPACKED: Final = ".nereid-unpacked"


def interpreter(parameters: dict[str, str], model_directory: str) -> str:
    """Return the Python of a model: its environment's, or this process's.

    The environment is a folder with ``bin/python`` (a virtual environment), or an
    archive of one by conda-pack, which is unpacked once.

    Raises:
        ConfigError: there is no Python.
        BackendError: the archive cannot be unpacked.
    """
    written = parameters.get(_PARAMETER, "")
    if not written:
        return sys.executable
    path = Path(written.replace(_MODEL_DIRECTORY, model_directory))
    folder = _unpacked(path) if path.is_file() else path
    python = folder / "bin" / "python"
    if not python.exists():
        text = f"{_PARAMETER} '{path}' is no Python environment: no {python}"
        raise ConfigError(text)
    return str(python)


def variables(python: str) -> dict[str, str]:
    """Return the environment variables of a model's process."""
    found = dict(os.environ)
    if python != sys.executable:
        # Those of the worker's Python would lead the other one astray.
        for name in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"):
            found.pop(name, None)
        folder = str(Path(python).parent)
        found["PATH"] = os.pathsep.join((folder, found.get("PATH", os.defpath)))
    return found


def _unpacked(archive: Path) -> Path:
    """Return the folder of an archive's contents; the archive's state names it."""
    state = archive.stat()
    key = f"{archive.resolve()}:{state.st_mtime_ns}:{state.st_size}"
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    base = Path(tempfile.gettempdir()) / f"nereid-environments-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.stat().st_uid != os.getuid():
        text = f"{base} belongs to another user"
        raise BackendError(text)
    folder = base / name
    if not (folder / _UNPACKED).exists():
        _unpack(archive, base, folder)
    return folder


def _unpack(archive: Path, base: Path, folder: Path) -> None:
    scratch = Path(tempfile.mkdtemp(dir=base))
    try:
        with tarfile.open(archive) as contents:
            contents.extractall(scratch, filter="tar")
        (scratch / _UNPACKED).touch()
        # The first of several that unpack at the same time wins.
        if not folder.exists():
            scratch.rename(folder)
        fix = folder / "bin" / "conda-unpack"
        if fix.exists():
            subprocess.run([str(folder / "bin" / "python"), str(fix)], check=True)
    except (OSError, tarfile.TarError, subprocess.CalledProcessError) as error:
        text = f"cannot unpack the environment '{archive}': {error}"
        raise BackendError(text) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
