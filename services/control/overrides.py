"""What load requests bring in the place of what lies in the repository.

Files of a request are written to a folder of control's own, laid out as a model of a
repository is; workers read them there.
"""

import itertools
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from services.core.errors import InternalError, InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """The parameters of a load request.

    Attributes:
        config: A configuration as JSON, in the place of config.pbtxt; None: as it
            lies in the repository.
        files: Contents by path in the model's folder, such as ``1/model.onnx``. If
            there are any, they are all that the model consists of.
    """

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the model is wanted as it lies in the repository."""
        return self.config is None and not self.files


NO_OVERRIDE: Final = Override()


def is_plain_name(name: str) -> bool:
    """Whether ``name`` names a folder below another one, and nothing else."""
    return name not in ("", ".", "..") and not set("/\\\0") & set(name)


def require_safe_path(path: str) -> PurePosixPath:
    """Return where a file of a request goes, relative to the model's folder.

    Raises:
        InvalidRequestError: it would lie elsewhere, or is no name of a file.
    """
    parts = path.split("/")
    if not all(is_plain_name(part) and part.isprintable() for part in parts):
        raise InvalidRequestError(
            f"invalid path '{path}' of a file: it must lead into the model's folder"
        )
    return PurePosixPath(path)


class OverrideFolders:
    """The folders that files of load requests were written to."""

    def __init__(self, root: str = "") -> None:
        """Write below ``root``; "": a new folder of the system's temporary ones."""
        self._root = Path(root).absolute() if root else None
        self._is_temporary = not root
        self._numbers = itertools.count(1)
        is_there = self._root is not None and self._root.is_dir()
        self._folders = set(self._root.iterdir()) if self._root and is_there else set()

    def write(self, model: str, files: Mapping[str, bytes]) -> Path:
        """Write ``files`` and return the folder that is the model's.

        Nobody but this user can read it.

        Raises:
            InvalidRequestError: the model or a file has a name that is not safe.
            InternalError: the files cannot be written.
        """
        if not is_plain_name(model):
            raise InvalidRequestError(f"invalid model name '{model}'")
        targets = {require_safe_path(path): files[path] for path in files}
        try:
            folder = self._new_folder() / model
            for path, content in targets.items():
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        except OSError as error:
            raise InternalError(
                f"failed to write the files of model '{model}': {error.strerror}"
            ) from error
        return folder

    def has_unused(self, directories: Collection[str]) -> bool:
        """Whether there is a folder that none of ``directories`` lies in."""
        return bool(self._folders) and bool(self._unused(directories))

    def sweep(self, directories: Collection[str]) -> None:
        """Remove the folders that none of ``directories`` lies in.

        Nothing may be written meanwhile.
        """
        for folder in self._unused(directories):
            shutil.rmtree(folder, ignore_errors=True)
            self._folders.discard(folder)

    def _unused(self, directories: Collection[str]) -> set[Path]:
        used = {parent for each in directories for parent in Path(each).parents}
        return self._folders - used

    def close(self) -> None:
        """Remove everything, unless it was told where to write."""
        if self._is_temporary and self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)

    def _new_folder(self) -> Path:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="nereid-overrides-"))
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            folder = self._root / str(next(self._numbers))
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            self._folders.add(folder)
            return folder
