"""A remote repository's copy on this machine, brought up to date on demand.

What has changed is fetched beside what is there and put in its place whole, so that
who reads a file reads the old one or the new one. A file counts as changed if its
size, its time or its tag is another.
"""

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final

import structlog

from services.control.overrides import is_plain_name
from services.control.remote_location import (
    CREDENTIAL_PATH,
    RemoteLocation,
    is_remote,
    remote_location,
)
from services.core.errors import InternalError

_log = structlog.get_logger(__name__)

_INSTALL: Final = "pip install nereid[remote]"
# What stores call the time of a file's last change.
_TIMES: Final = ("LastModified", "last_modified", "mtime", "updated", "created")
_TAGS: Final = ("ETag", "etag", "content_md5", "md5Hash")
_PART: Final = ".nereid-part"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file of a store.

    Attributes:
        path: Within the store.
        size: In bytes.
        mark: Another one if the content is another.
        modified_s: Since 1970; 0 if the store does not say.
    """

    path: str
    size: int
    mark: str
    modified_s: float


@dataclass(slots=True)
class RemoteRepository:
    """One remote repository and its copy.

    Attributes:
        location: Where it lies.
        folder: Where its copy is.
    """

    location: RemoteLocation
    folder: Path
    _marks: dict[PurePosixPath, str] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self, model: str = "") -> None:
        """Bring the copy up to date: of one model, or of all.

        Blocks as long as the store takes.

        Raises:
            InternalError: the store does not answer, or refuses.
        """
        below = f"{self.location.path}/{model}" if model else self.location.path
        with self._turn:
            try:
                self._refresh(PurePosixPath(model), below)
            except Exception as error:  # libraries of stores raise what they like
                text = f"failed to open model repository {self.location.text}: {error}"
                raise InternalError(text) from error

    def _refresh(self, under: PurePosixPath, below: str) -> None:
        system = _file_system(self.location)
        system.invalidate_cache()
        found = {
            under / PurePosixPath(each.path).relative_to(below): each
            for each in _files(system, below)
        }
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, file in found.items():
            if not _is_safe(path):
                _log.warning("a remote file was passed over", path=file.path)
            elif self._marks.get(path) != file.mark:
                self._fetch(system, path, file)
        self._remove_others(under, found)

    def _fetch(self, system: Any, path: PurePosixPath, file: RemoteFile) -> None:  # noqa: ANN401
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}{_PART}")
        system.get_file(file.path, str(part))
        if file.modified_s:
            # So that an unchanged file is one after a restart, too.
            os.utime(part, (file.modified_s, file.modified_s))
        part.replace(target)
        self._marks[path] = file.mark

    def _remove_others(
        self, under: PurePosixPath, found: Mapping[PurePosixPath, RemoteFile]
    ) -> None:
        top = self.folder / under
        for local in sorted(top.rglob("*"), reverse=True):
            path = PurePosixPath(local.relative_to(self.folder))
            if local.is_dir():
                with contextlib.suppress(OSError):
                    local.rmdir()  # if it is empty
            elif path not in found:
                local.unlink(missing_ok=True)
                self._marks.pop(path, None)
        if under.parts:
            with contextlib.suppress(OSError):
                top.rmdir()


class RemoteRepositories:
    """All repositories as folders: those of this machine, and copies of others.

    Attributes:
        folders: One for each repository, in their order.
    """

    def __init__(
        self,
        roots: Sequence[str],
        environment: Mapping[str, str] | None = None,
        cache_root: str = "",
    ) -> None:
        """Read where they lie; nothing is fetched yet.

        Args:
            roots: Folders, and locations of remote repositories.
            environment: The process's variables.
            cache_root: Where copies go; "": a new temporary folder.

        Raises:
            ValueError: a location or the credentials make no sense.
        """
        self._remotes: list[RemoteRepository] = []
        self._cache_root = cache_root
        self._made: list[Path] = []
        folders = []
        for root in roots:
            if not is_remote(root):
                folders.append(root)
                continue
            remote = self._remote(root, environment or {})
            self._remotes.append(remote)
            folders.append(str(remote.folder))
        self.folders = tuple(folders)

    def refresh(self, model: str = "") -> None:
        """Bring all copies up to date: of one model, or of all.

        Raises:
            InternalError: a store does not answer, or refuses.
        """
        if model and not is_plain_name(model):
            return
        for remote in self._remotes:
            remote.refresh(model)

    def close(self) -> None:
        """Remove the copies."""
        for folder in self._made:
            shutil.rmtree(folder, ignore_errors=True)

    def _remote(self, root: str, environment: Mapping[str, str]) -> RemoteRepository:
        location = remote_location(root, environment, _credentials(environment))
        number = len(self._remotes)
        parent = location.cache_directory or self._cache_root
        if parent:
            folder = Path(parent).absolute() / f"repository-{number}"
            # What an earlier run has left may be of another repository.
            shutil.rmtree(folder, ignore_errors=True)
        else:
            folder = Path(tempfile.mkdtemp(prefix="nereid-repository-"))
        self._made.append(folder)
        return RemoteRepository(location, folder)


def _credentials(environment: Mapping[str, str]) -> str:
    path = environment.get(CREDENTIAL_PATH, "")
    if not path:
        return ""
    try:
        return Path(path).read_text()
    except OSError as error:
        message = f"{CREDENTIAL_PATH}: {error}"
        raise ValueError(message) from error


def _file_system(location: RemoteLocation) -> Any:  # noqa: ANN401
    """Return fsspec's access to a store.

    Raises:
        InternalError: it is not installed.
    """
    try:
        import fsspec  # noqa: PLC0415 - an extra

        return fsspec.filesystem(location.protocol, **location.options)
    except ImportError as error:
        raise InternalError(f"it needs the extra 'remote': {_INSTALL}") from error


def _files(system: Any, below: str) -> list[RemoteFile]:  # noqa: ANN401
    """Return all files below a path of a store."""
    found = system.find(below, detail=True)
    top = below.strip("/")
    return [
        RemoteFile(
            path=path.strip("/"),
            size=int(facts.get("size") or 0),
            mark=_mark(facts),
            modified_s=_modified_s(facts),
        )
        for path, facts in sorted(found.items())
        if facts.get("type") == "file" and path.strip("/").startswith(f"{top}/")
    ]


def _mark(facts: Mapping[str, Any]) -> str:
    tags = [str(facts[name]) for name in _TAGS if facts.get(name)]
    return "\0".join([str(facts.get("size")), str(_modified_s(facts)), *tags])


def _modified_s(facts: Mapping[str, Any]) -> float:
    for name in _TIMES:
        value = facts.get(name)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0


def _is_safe(path: PurePosixPath) -> bool:
    return all(is_plain_name(part) for part in path.parts)
