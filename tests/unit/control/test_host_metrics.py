"""Load and memory of the host, from what the kernel tells."""

from pathlib import Path

import pytest

from services.control.gpu_metrics import Gpus
from services.control.host import Host
from services.control.host_metrics import (
    CpuTicks,
    Memory,
    parse_cpu,
    parse_memory,
    utilization,
)
from services.control.metrics_settings import MetricsSettings
from services.control.prometheus import render

STAT = "cpu  10 1 5 80 4 0 0 0 7 3\ncpu0 1 2 3\n"
MEMINFO = "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 60 kB\nHugePages_Total: 0\n"


def test_guests_are_not_counted_twice_and_waiting_is_idle() -> None:
    assert parse_cpu(STAT) == CpuTicks(busy=16, total=100)


def test_utilization_is_the_share_of_what_passed() -> None:
    before = CpuTicks(busy=10, total=100)
    assert utilization(before, CpuTicks(busy=60, total=200)) == 0.5
    assert utilization(before, before) == 0.0


def test_memory_that_is_available_is_not_used() -> None:
    assert parse_memory(MEMINFO) == Memory(total_bytes=102400, used_bytes=40960)


@pytest.mark.parametrize("text", ["", "cpu0 1 2 3 4 5 6", "cpu 1 2", "cpu a b c d e f"])
def test_a_stat_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_cpu(text)


def test_a_meminfo_without_what_is_left_is_refused() -> None:
    with pytest.raises(ValueError, match="MemAvailable"):
        parse_memory("MemTotal: 1 kB\n")


def test_the_load_is_that_of_the_interval_that_passed(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "meminfo").write_text(MEMINFO)
    host = Host(MetricsSettings(has_gpu=False, interval_s=2.0), tmp_path)
    (tmp_path / "stat").write_text("cpu  60 1 5 130 4 0 0 0 0 0\n")
    assert "nv_cpu_utilization 0.5" in render(host.families(1)).splitlines()
    (tmp_path / "stat").write_text("cpu  160 1 5 130 4 0 0 0 0 0\n")
    again = render(host.families(1_000_000_000)).splitlines()
    assert "nv_cpu_utilization 0.5" in again
    assert "nv_cpu_memory_used_bytes 40960" in again
    later = render(host.families(3_000_000_000)).splitlines()
    assert "nv_cpu_utilization 1" in later


def test_a_host_that_tells_nothing_has_no_families(tmp_path: Path) -> None:
    host = Host(MetricsSettings(has_gpu=False), tmp_path)
    assert list(host.families(0)) == []


def test_switched_off_families_are_not_shown() -> None:
    host = Host(MetricsSettings(has_cpu=False, has_gpu=False))
    assert list(host.families(0)) == []


def test_without_nvml_there_are_no_gpus() -> None:
    assert render(Gpus("no_such_module_at_all").families()) == ""


def test_a_driver_that_does_not_answer_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "puppet_nvml_broken.py").write_text(
        "class NVMLError(Exception):\n    pass\n"
        "def nvmlInit():\n    raise NVMLError('no driver')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert render(Gpus("puppet_nvml_broken").families()) == ""


def test_a_gpu_shows_what_it_tells_in_tritons_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "puppet_nvml.py").write_text(
        "from types import SimpleNamespace as N\n"
        "class NVMLError(Exception):\n    pass\n"
        "def nvmlInit(): pass\n"
        "def nvmlDeviceGetCount(): return 1\n"
        "def nvmlDeviceGetHandleByIndex(index): return index\n"
        "def nvmlDeviceGetUUID(gpu): return b'GPU-1'\n"
        "def nvmlDeviceGetUtilizationRates(gpu): return N(gpu=25)\n"
        "def nvmlDeviceGetMemoryInfo(gpu): return N(total=10, used=3)\n"
        "def nvmlDeviceGetPowerUsage(gpu): return 70500\n"
        "def nvmlDeviceGetEnforcedPowerLimit(gpu): raise NVMLError('unsupported')\n"
        "told = iter((5_000_000, 5_002_000))\n"
        "def nvmlDeviceGetTotalEnergyConsumption(gpu): return next(told)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = set(render(Gpus("puppet_nvml").families()).splitlines())
    assert {
        'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.25',
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 3',
        'nv_gpu_power_usage{gpu_uuid="GPU-1"} 70.5',
        # NVML counts from the loading of the driver, Triton from the server's start.
        "# TYPE nv_energy_consumption counter",
        'nv_energy_consumption{gpu_uuid="GPU-1"} 2',
    } <= found
    assert not any("power_limit" in line for line in found)


def test_a_package_that_does_not_know_a_function_leaves_its_family_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "puppet_nvml_old.py").write_text(
        "class NVMLError(Exception):\n    pass\n"
        "def nvmlInit(): pass\n"
        "def nvmlDeviceGetCount(): return 1\n"
        "def nvmlDeviceGetHandleByIndex(index): return index\n"
        "def nvmlDeviceGetUUID(gpu): return b'GPU-1'\n"
        "def nvmlDeviceGetPowerUsage(gpu): return 70500\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    page = render(Gpus("puppet_nvml_old").families())
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    assert lines == ['nv_gpu_power_usage{gpu_uuid="GPU-1"} 70.5']
