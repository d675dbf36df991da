"""The stack's two folders: sockets live in one and die with it, data in the other."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from services.core.errors import AlreadyExistsError

PREFIX: Final = "nereid-"
LOCK: Final = "lock"
# A unix socket's path has at most 107 bytes; ours add a slash and a short name.
LONGEST_RUN_DIRECTORY: Final = 80


def state_directory(chosen: str, environment: Mapping[str, str]) -> Path:
    """Return where the embedded store keeps its data, as an absolute path.

    Args:
        chosen: By the user; empty for the place that the XDG rules give.
        environment: The process's environment.

    Source:
        The XDG base directory specification: ``XDG_STATE_HOME``.
    """
    if chosen:
        return Path(chosen).absolute()
    base = environment.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "nereid"


@contextlib.contextmanager
def held_state_directory(path: Path) -> Iterator[Path]:
    """Make the folder if need be, and keep every other stack out of it.

    Raises:
        AlreadyExistsError: another stack holds it.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (path / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyExistsError(
                f"{path} is in use by another nereid serve; "
                "choose another with --state-dir"
            ) from None
        yield path


@contextlib.contextmanager
def run_directory() -> Iterator[Path]:
    """Make a private folder for sockets, and remove it at the end.

    Folders that killed stacks left behind are removed, too.
    """
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent)) > LONGEST_RUN_DIRECTORY - 2 * len(PREFIX):
        parent = Path("/tmp")  # noqa: S108  mkdtemp makes a private folder in it
    _remove_abandoned(parent)
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with (path / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    """Remove this user's run folders whose owner no longer holds the lock."""
    for lock_path in parent.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), lock_path.open("a") as lock:
            if lock_path.stat().st_uid != os.getuid():
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_path.parent, ignore_errors=True)
