"""One stack for all tests with real clients; it serves the demo's adder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stack import Stack, build_demo, running_stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("demo") / "models"
    build_demo(folder, "--only", "simple")
    with running_stack(Path(folder)) as running:
        yield running
