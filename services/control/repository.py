"""What lies in the model repositories: folders, versions, configuration texts.

``survey`` decides from what was found; ``scan`` is the shell that looks.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.control.overrides import is_plain_name
from services.control.version_policy import versions_in
from services.core.errors import InternalError

CONFIG_FILE: Final = "config.pbtxt"
CUSTOM_CONFIGS: Final = "configs"
BYTE_CODE: Final = "__pycache__"

DUPLICATE: Final = "model appears in two or more repositories"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """One model's folder, as it was when somebody looked.

    Attributes:
        name: Of the folder, hence of the model.
        directory: ``<repository>/<model>``, absolute.
        versions: Those that have a folder, ascending.
        config: The bytes of config.pbtxt; None if there is none.
        files: By version, the names of what its folder contains.
        fingerprints: By version, equal for equal files: names, sizes and times.
            Files that lie beside the versions, such as labels, are all versions'.
        problem: Why it cannot be read; "" if it can.
    """

    name: str
    directory: str
    versions: tuple[int, ...] = ()
    config: bytes | None = None
    files: Mapping[int, frozenset[str]] = field(default_factory=dict)
    fingerprints: Mapping[int, str] = field(default_factory=dict)
    problem: str = ""

    def version_directory(self, version: int) -> str:
        """Return the folder of one version."""
        return f"{self.directory}/{version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All repositories together.

    Attributes:
        models: By name, ordered; those that can be served.
        duplicates: Names that stand in two repositories: neither is served.
    """

    models: Mapping[str, ModelFolder]
    duplicates: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """All names, ordered."""
        return tuple(sorted({*self.models, *self.duplicates}))


def survey(folders: Iterable[ModelFolder]) -> Survey:
    """Return what the folders of all repositories amount to.

    Source:
        Triton serves neither of two models of one name.
    """
    found: dict[str, ModelFolder] = {}
    duplicates = set()
    for folder in folders:
        if folder.name in found:
            duplicates.add(folder.name)
        found[folder.name] = folder
    models = {
        name: folder for name, folder in sorted(found.items()) if name not in duplicates
    }
    return Survey(models=models, duplicates=frozenset(duplicates))


def scan(roots: Sequence[str], config_name: str = "") -> Survey:
    """Look into all repositories.

    Args:
        roots: The repositories.
        config_name: Models that have ``configs/<config_name>.pbtxt`` are configured
            by it (--model-config-name).

    Raises:
        InternalError: a repository is no folder or cannot be listed.
    """
    return survey(
        read_model(path, config_name)
        for root in roots
        for path in _model_directories(Path(root))
    )


def scan_model(roots: Sequence[str], name: str, config_name: str = "") -> Survey:
    """Look for one model only.

    Args:
        roots: The repositories.
        name: Any text: one that is no plain folder name is not found.
        config_name: See ``scan``.
    """
    is_plain = is_plain_name(name)
    paths = [Path(root).absolute() / name for root in roots] if is_plain else []
    return survey(read_model(path, config_name) for path in paths if path.is_dir())


def read_model(directory: Path, config_name: str = "") -> ModelFolder:
    """Read one model's folder; what cannot be read is its ``problem``.

    Args:
        directory: The folder.
        config_name: See ``scan``.
    """
    try:
        names = [each.name for each in directory.iterdir() if each.is_dir()]
        versions = versions_in(names)
        config = _config_file(directory, config_name)
        common = _files_beside_versions(directory, versions)
        return ModelFolder(
            name=directory.name,
            directory=str(directory),
            versions=versions,
            config=config.read_bytes() if config.is_file() else None,
            files={
                version: frozenset(
                    each.name for each in (directory / str(version)).iterdir()
                )
                for version in versions
            },
            fingerprints={
                version: _fingerprint(
                    directory, [*common, *(directory / str(version)).rglob("*")]
                )
                for version in versions
            },
        )
    except OSError as error:
        return ModelFolder(
            name=directory.name,
            directory=str(directory),
            problem=f"failed to read {error.filename}: {error.strerror}",
        )


def _model_directories(root: Path) -> list[Path]:
    """Return the folders whose names a client could send: they are UTF-8."""
    try:
        return [
            path
            for path in sorted(root.absolute().iterdir())
            if path.is_dir()
            and not path.name.startswith(".")
            and os.fsencode(path.name) == path.name.encode(errors="replace")
        ]
    except OSError as error:
        raise InternalError(
            f"failed to open model repository {root}: {error.strerror}"
        ) from error


def _config_file(directory: Path, config_name: str) -> Path:
    custom = directory / CUSTOM_CONFIGS / f"{config_name}.pbtxt"
    is_custom = is_plain_name(config_name) and custom.is_file()
    return custom if is_custom else directory / CONFIG_FILE


def _files_beside_versions(directory: Path, versions: Iterable[int]) -> list[Path]:
    """Return the files that any version may use; the configuration counts itself."""
    passed_over = {CONFIG_FILE, CUSTOM_CONFIGS, *map(str, versions)}
    return [
        path
        for entry in directory.iterdir()
        if entry.name not in passed_over
        for path in (entry, *(entry.rglob("*") if entry.is_dir() else ()))
    ]


def _fingerprint(directory: Path, paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        # Python writes its caches beside the models that it loads.
        if path.is_file() and path.parent.name != BYTE_CODE:
            facts = path.stat()
            name = str(path.relative_to(directory))
            line = f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\0"
            digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()
