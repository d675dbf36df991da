"""CUDA's driver and pinned memory, on a puppet."""

import gc
import threading
from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs

from services.core.errors import BackendError
from services.core.model_config import InstanceGroup, InstanceKind, OptimizationPolicy
from services.worker import host_memory
from services.worker.backend import InstancePlace, ModelSource
from services.worker.cuda_driver import CudaDriver, NoCudaError, open_driver
from services.worker.device import Device, DeviceKind
from services.worker.exhaustion import is_exhaustion
from services.worker.gather import pageable
from services.worker.host_memory import PinnedMemory, input_memory, output_memory
from tests.unit.worker.onnx_models import ADD_SUB
from tests.unit.worker.puppet_cuda import PuppetCuda

GPU = Device(kind=DeviceKind.GPU, uuid="GPU-0")
CPU = Device(kind=DeviceKind.CPU)
PLACE = InstancePlace(name="m_0_0", group=0)
BOTH = OptimizationPolicy()


def entered(cuda: PuppetCuda) -> CudaDriver:
    driver = CudaDriver(cuda)
    driver.enter()
    return driver


def test_a_host_without_the_drivers_library_says_so() -> None:
    with pytest.raises(NoCudaError, match="there is no CUDA driver here: libnone"):
        open_driver("libnone.so.1")


def test_a_driver_without_a_gpu_says_so() -> None:
    with pytest.raises(NoCudaError, match=r"CUDA error 100 \(no CUDA-capable device\)"):
        CudaDriver(PuppetCuda(has_device=False))


def test_a_gpu_that_is_full_is_known_as_such() -> None:
    driver = entered(PuppetCuda(room=100))
    driver.allocate(60)
    with pytest.raises(
        BackendError, match=r"out of memory.* in cuMemAlloc_v2"
    ) as caught:
        driver.allocate(60)
    assert is_exhaustion(caught.value)


def test_what_is_put_into_a_stream_has_happened_after_waiting() -> None:
    driver = entered(PuppetCuda())
    stream, device = driver.open_stream(), driver.allocate(8)
    source, target = np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8)
    driver.to_device(device, source.ctypes.data, 8, stream)
    driver.to_host(target.ctypes.data, device, 8, stream)
    assert not target.any()
    driver.wait(stream)
    assert target.tolist() == source.tolist()


def test_every_thread_enters_by_itself() -> None:
    driver = entered(PuppetCuda())
    errors: list[BackendError] = []

    def work() -> None:
        try:
            driver.allocate(1)
        except BackendError as error:
            errors.append(error)
        driver.enter()
        driver.allocate(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(errors) == 1


def test_pinned_memory_goes_back_with_its_last_view() -> None:
    cuda = PuppetCuda()
    memory = PinnedMemory(CudaDriver(cuda))(16)
    view = memory[4:8].view(np.int32)
    view[:] = 7
    address = memory.ctypes.data
    assert address in cuda.memory
    del memory
    gc.collect()
    assert address in cuda.memory
    del view
    gc.collect()
    assert cuda.memory == {}


def test_without_more_pinned_memory_it_is_other_memory_and_warned_of_once() -> None:
    pinned = PinnedMemory(CudaDriver(PuppetCuda(room=20)))
    with capture_logs() as lines:
        found = [pinned(16), pinned(16), pinned(4)]
    assert [len(one) for one in found] == [16, 16, 4]
    assert [line["event"] for line in lines] == ["no more pinned memory"]


def source(
    device: Device, kind: InstanceKind, policy: OptimizationPolicy = BOTH
) -> ModelSource:
    config = replace(
        ADD_SUB,
        instance_groups=(InstanceGroup(name="m_0", kind=kind, count=1),),
        optimization=policy,
    )
    return ModelSource(config=config, version=1, directory="/m/1", device=device)


@pytest.fixture
def _cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "open_driver", lambda: CudaDriver(PuppetCuda()))


@pytest.mark.usefixtures("_cuda")
@pytest.mark.parametrize("kind", [InstanceKind.GPU, InstanceKind.MODEL])
def test_what_computes_on_a_gpu_gets_pinned_memory(kind: InstanceKind) -> None:
    assert isinstance(input_memory(source(GPU, kind), PLACE), PinnedMemory)
    assert isinstance(output_memory(source(GPU, kind), PLACE), PinnedMemory)


@pytest.mark.usefixtures("_cuda")
def test_a_configuration_may_do_without_it() -> None:
    policy = OptimizationPolicy(input_pinned_memory=False)
    of = source(GPU, InstanceKind.GPU, policy)
    assert input_memory(of, PLACE) is pageable
    assert isinstance(output_memory(of, PLACE), PinnedMemory)
    policy = OptimizationPolicy(output_pinned_memory=False)
    of = source(GPU, InstanceKind.GPU, policy)
    assert output_memory(of, PLACE) is pageable


@pytest.mark.usefixtures("_cuda")
@pytest.mark.parametrize(
    ("device", "kind"), [(CPU, InstanceKind.CPU), (GPU, InstanceKind.CPU)]
)
def test_what_computes_on_a_cpu_needs_none(device: Device, kind: InstanceKind) -> None:
    assert input_memory(source(device, kind), PLACE) is pageable


def test_a_gpu_worker_without_a_driver_goes_on_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_memory, "open_driver", lambda: open_driver("libnone.so"))
    with capture_logs() as lines:
        assert input_memory(source(GPU, InstanceKind.GPU), PLACE) is pageable
    assert [line["event"] for line in lines] == ["no pinned memory"]
