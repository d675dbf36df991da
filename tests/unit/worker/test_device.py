"""Which device a worker serves."""

import pytest

from services.core.errors import ConfigError
from services.core.gpus import Gpu
from services.worker.device import Device, DeviceKind, choose, parse_device

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


A = Gpu(uuid="GPU-aa", memory_bytes=7, compute_capability="9.0")
B = Gpu(uuid="GPU-bb", memory_bytes=9, compute_capability="8.0")


def environment(outer: str | None) -> dict[str, str]:
    return {} if outer is None else {"CUDA_VISIBLE_DEVICES": outer}


@pytest.mark.parametrize("outer", [None, "0,1", ""])
def test_a_worker_of_the_cpu_sees_no_gpu(outer: str | None) -> None:
    chosen = choose(CPU, [A, B], environment(outer))
    assert chosen.visible == ""
    assert chosen.device.memory_bytes > 1 << 26


@pytest.mark.parametrize(
    ("index", "outer", "expected"),
    [(1, None, B), (0, "1", B), (1, "1, 0", A), (0, "GPU-b", B), (0, "1,7", B)],
)
def test_a_gpu_is_seen_alone_by_its_uuid_and_known(
    index: int, outer: str | None, expected: Gpu
) -> None:
    chosen = choose(gpu(index), [A, B], environment(outer))
    assert chosen.visible == expected.uuid
    assert chosen.device == Device(
        kind=DeviceKind.GPU,
        index=index,
        uuid=expected.uuid,
        memory_bytes=expected.memory_bytes,
        compute_capability=expected.compute_capability,
    )


@pytest.mark.parametrize(
    ("index", "outer"), [(2, None), (1, "1"), (0, ""), (0, "-1"), (1, "0,7,1")]
)
def test_a_gpu_that_is_not_there_is_refused(index: int, outer: str | None) -> None:
    with pytest.raises(ConfigError, match=f"no device cuda:{index}: .* has 2 GPUs"):
        choose(gpu(index), [A, B], environment(outer))


@pytest.mark.parametrize(
    ("index", "outer", "visible"),
    [(1, None, "1"), (1, "4, 7", "7"), (0, "GPU-a,GPU-b", "GPU-a")],
)
def test_a_gpu_of_which_nothing_is_known_is_seen_by_its_number(
    index: int, outer: str | None, visible: str
) -> None:
    chosen = choose(gpu(index), [], environment(outer))
    assert (chosen.visible, chosen.device) == (visible, gpu(index))


@pytest.mark.parametrize("outer", ["", "5"])
def test_what_the_environment_hides_is_refused_though_nothing_is_known(
    outer: str,
) -> None:
    with pytest.raises(ConfigError, match="no device cuda:1"):
        choose(gpu(1), [], environment(outer))
