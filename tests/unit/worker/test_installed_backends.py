"""Backends that other packages bring along."""

import sys
from pathlib import Path

import pytest

from services.core.errors import BackendError, ConfigError
from services.core.model_config import ModelConfig
from services.worker import backends
from services.worker.backend_check import require_backends
from services.worker.backends.installed import installed_runtime

MODULE = """
class Good:
    def load(self, source, places): ...
    def inspect(self, source): ...

class NoInspect:
    def load(self, source, places): ...

class NeedsMore:
    def __init__(self, more): ...

class Empty: ...
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on the path, with a module for packages to name."""
    (tmp_path / "brought_backends.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "brought_backends", raising=False)
    return tmp_path


def install(site: Path, package: str, **entries: str) -> None:
    """Leave what pip leaves of a package with these entry points."""
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}\n" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("[nereid.backends]\n" + "".join(lines))


def test_a_package_brings_a_backend_by_its_name(site: Path) -> None:
    install(site, "one", mine="brought_backends:Good")
    assert "mine" in backends.available_backends(has_gpu=False)
    runtime = backends.find_runtime(ModelConfig(name="m", backend="mine"))
    assert type(runtime).__name__ == "Good"


def test_nothing_is_imported_to_know_the_names(site: Path) -> None:
    install(site, "one", mine="no_such_module:Good")
    assert "mine" in backends.available_backends(has_gpu=False)


def test_a_package_cannot_take_a_name_of_ours(site: Path) -> None:
    install(site, "one", onnxruntime="brought_backends:Good")
    assert backends.available_backends(has_gpu=False).count("onnxruntime") == 1
    runtime = backends.find_runtime(ModelConfig(name="m", backend="onnxruntime"))
    assert type(runtime).__name__ == "OnnxRuntime"


def test_two_packages_with_one_name_are_both_named(site: Path) -> None:
    install(site, "one", mine="brought_backends:Good")
    install(site, "two", mine="brought_backends:Empty")
    with pytest.raises(ConfigError, match=r"brought_backends:Empty of two, .* of one"):
        installed_runtime("mine")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no_such_module:X", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("brought_backends:Absent", "AttributeError"),
        ("brought_backends:NeedsMore", "TypeError"),
    ],
)
def test_one_that_cannot_start_says_why_and_whose_it_is(
    site: Path, value: str, text: str
) -> None:
    install(site, "one", mine=value)
    with pytest.raises(BackendError, match=f"'mine' .*of one.* cannot start: {text}"):
        installed_runtime("mine")


@pytest.mark.parametrize(
    ("name", "missing"),
    [("NoInspect", "no inspect"), ("Empty", "no load and no inspect")],
)
def test_a_class_that_is_no_runtime_is_told_what_it_lacks(
    site: Path, name: str, missing: str
) -> None:
    install(site, "one", mine=f"brought_backends:{name}")
    with pytest.raises(ConfigError, match=f"is no runtime: it has {missing}"):
        installed_runtime("mine")


class Executes:
    def execute(self) -> None: ...


class Unloads:
    def unload(self) -> None: ...


class Whole(Executes, Unloads): ...


def test_one_backend_for_each_instance_is_right() -> None:
    require_backends("m", [Whole(), Whole()], 2)


@pytest.mark.parametrize(
    ("loaded", "text"),
    [
        ([Whole()], "loaded 1 instances where 2 were wanted"),
        ([Whole(), Executes()], "loaded a Executes, which has no unload"),
        ([Unloads(), Whole()], "loaded a Unloads, which has none of execute, exec"),
        ([Whole(), None], "loaded a NoneType, which has none of"),
    ],
)
def test_anything_else_that_was_loaded_is_refused(
    loaded: list[object], text: str
) -> None:
    with pytest.raises(BackendError, match=text):
        require_backends("m", loaded, 2)
