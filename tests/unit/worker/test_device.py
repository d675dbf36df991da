"""Which device a worker serves."""

import pytest

from services.core.errors import ConfigError
from services.worker.device import (
    Device,
    DeviceKind,
    describe,
    parse_device,
    parse_nvidia_smi,
    visible_devices,
)

CPU = Device(kind=DeviceKind.CPU)


def gpu(index: int) -> Device:
    return Device(kind=DeviceKind.GPU, index=index)


@pytest.mark.parametrize(
    ("text", "device", "label"),
    [
        ("cpu", CPU, "cpu"),
        ("cuda", gpu(0), "cuda:0"),
        ("cuda:0", gpu(0), "cuda:0"),
        ("cuda:3", gpu(3), "cuda:3"),
    ],
)
def test_devices_are_read(text: str, device: Device, label: str) -> None:
    assert parse_device(text) == device
    assert device.label == label


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected cpu or cuda:<index>"):
        parse_device(text)


@pytest.mark.parametrize(
    ("device", "outer", "visible"),
    [
        (CPU, None, ""),
        (CPU, "0,1", ""),
        (gpu(1), None, "1"),
        (gpu(1), "4, 7", "7"),
        (gpu(0), "GPU-a,GPU-b", "GPU-a"),
    ],
)
def test_only_the_device_itself_is_visible(
    device: Device, outer: str | None, visible: str
) -> None:
    environment = {} if outer is None else {"CUDA_VISIBLE_DEVICES": outer}
    assert visible_devices(device, environment) == visible


@pytest.mark.parametrize("outer", ["", "5"])
def test_a_device_that_the_environment_hides_is_refused(outer: str) -> None:
    with pytest.raises(ConfigError, match="no device cuda:1"):
        visible_devices(gpu(1), {"CUDA_VISIBLE_DEVICES": outer})


def test_a_cpu_tells_its_memory() -> None:
    assert describe(CPU, "").memory_bytes > 1 << 26


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("GPU-12ab, 143771\n", ("GPU-12ab", 143771 << 20)),
        ("", ("", 0)),
        ("No devices were found\n", ("", 0)),
        ("GPU-12ab, [N/A]\n", ("", 0)),
    ],
)
def test_what_nvidia_smi_says_is_read(text: str, found: tuple[str, int]) -> None:
    assert parse_nvidia_smi(text) == found
