"""What is compiled is compiled once: it takes a C++ compiler some ten seconds."""

import shutil
from pathlib import Path

import pytest

from tests.torch.torch_models import Nested, nested_arguments, save_compiled


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the AOTInductor package of ``Nested`` in it."""
    if shutil.which("g++") is None:
        pytest.skip("AOTInductor needs g++ to compile")
    directory = tmp_path_factory.mktemp("compiled")
    save_compiled(directory, Nested(), **nested_arguments())
    return directory
