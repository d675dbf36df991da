"""The GPUs of this host, by a puppet of NVML."""

import sys
from pathlib import Path

import pytest

from services.core.gpus import Gpu
from services.core.nvml import NoNvmlError, list_gpus
from tests.support.stack import ROOT

COUNT = "NEREID_PUPPET_GPUS"


@pytest.fixture
def _puppet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests/support/puppet_site")
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)


@pytest.mark.usefixtures("_puppet")
def test_nvml_tells_the_gpus_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COUNT, "2")
    assert list_gpus() == (
        Gpu(
            uuid="GPU-0",
            name="Puppet 0",
            memory_bytes=1 << 30,
            compute_capability="9.0",
        ),
        Gpu(
            uuid="GPU-1",
            name="Puppet 1",
            memory_bytes=2 << 30,
            compute_capability="9.1",
        ),
    )


@pytest.mark.usefixtures("_puppet")
def test_without_a_driver_nvml_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COUNT, raising=False)
    with pytest.raises(NoNvmlError, match="driver not loaded"):
        list_gpus()


def test_without_the_package_it_is_named() -> None:
    with pytest.raises(NoNvmlError, match="no_such_nvml"):
        list_gpus("no_such_nvml")


def test_a_gpu_that_does_not_answer_makes_all_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "puppet_nvml_lost.py").write_text(
        "class NVMLError(Exception): pass\n"
        "def nvmlInit(): pass\n"
        "def nvmlDeviceGetCount(): return 1\n"
        "def nvmlDeviceGetHandleByIndex(index): raise NVMLError('GPU is lost')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NoNvmlError, match="GPU is lost"):
        list_gpus("puppet_nvml_lost")
