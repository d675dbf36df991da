"""Workers for GPUs, where NVML is a puppet that believes in two of them."""

import base64
import json
import re
import textwrap
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.support.stack import ROOT, Stack, build_demo, started_stack

pytestmark = pytest.mark.timeout(180)

TWO_GPUS = {
    "PYTHONPATH": str(ROOT / "tests/support/puppet_site"),
    "NEREID_PUPPET_GPUS": "2",
}
PLACE = """
import json, os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        keys = ("model_instance_kind", "model_instance_device_id")
        self.place = [args[key] for key in keys]
        self.place.append(os.environ["CUDA_VISIBLE_DEVICES"])

    def execute(self, requests):
        text = np.array([json.dumps(self.place).encode()], np.object_)
        answer = pb_utils.InferenceResponse([pb_utils.Tensor("PLACE", text)])
        return [answer for _ in requests]
"""
TENSORS = """
backend: "python"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "PLACE" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
GROUPS = {
    "on_cpu": "",
    "auto": "{}",
    "all": "{ kind: KIND_GPU }",
    "second": "{ kind: KIND_GPU gpus: [ 1 ] }",
    "model": "{ kind: KIND_MODEL }",
    "third": "{ kind: KIND_GPU gpus: [ 2 ] }",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    models = build_demo(tmp_path_factory.mktemp("models"), "--only", "simple")
    for name, group in GROUPS.items():
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.py").write_text(textwrap.dedent(PLACE))
        groups = f"instance_group [ {group} ]" if group else ""
        (models / name / "config.pbtxt").write_text(TENSORS + groups)
    (models / "plan" / "1").mkdir(parents=True)
    (models / "plan" / "1" / "model.plan").write_bytes(b"an engine")
    with started_stack(
        models,
        "--exit-on-error=false",
        "--allow-client-shm=true",
        environment=TWO_GPUS,
        devices=(),
    ) as running:
        running.wait_ready()
        yield running


def get(stack: Stack, path: str, body: bytes | None = None) -> Any:  # noqa: ANN401
    url = f"http://127.0.0.1:{stack.http}/v2/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
        return json.load(answer)


def extensions(stack: Stack) -> list[str]:
    url = f"http://127.0.0.1:{stack.http}/v2"
    with urllib.request.urlopen(url) as answer:
        return list(json.load(answer)["extensions"])


def place_of(stack: Stack, model: str) -> tuple[str, str, str]:
    """Return an instance's kind, its device id, and the GPUs that it sees."""
    tensor = triton_grpc.InferInput("X", [1], "INT32")
    tensor.set_data_from_numpy(np.zeros(1, np.int32))
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        (text,) = client.infer(model, [tensor]).as_numpy("PLACE")
    kind, device, seen = json.loads(text)
    return kind, device, seen


def reason(stack: Stack, model: str) -> str:
    index = get(stack, "repository/index", b"{}")
    return str(next(one["reason"] for one in index if one["name"] == model))


def test_every_gpu_and_the_cpu_get_a_worker(stack: Stack) -> None:
    lines = [line for line in stack.processes().values() if "nereid worker" in line]
    devices = re.findall(r"--device[= ](\S+)", " ".join(lines))
    assert sorted(devices) == ["cpu", "cuda:0", "cuda:1"]


def test_an_instance_sees_its_gpu_alone_and_as_number_0(stack: Stack) -> None:
    assert place_of(stack, "second") == ("GPU", "0", "GPU-1")


def test_a_python_model_is_on_the_cpu_unless_asked(stack: Stack) -> None:
    assert place_of(stack, "on_cpu") == ("CPU", "0", "")


def test_kind_auto_is_a_gpu_where_there_is_one(stack: Stack) -> None:
    kind, _, seen = place_of(stack, "auto")
    assert kind == "GPU"
    assert seen in {"GPU-0", "GPU-1"}


def test_kind_model_gets_a_gpu_to_see(stack: Stack) -> None:
    kind, _, seen = place_of(stack, "model")
    assert kind == "MODEL"
    assert seen in {"GPU-0", "GPU-1"}


def test_without_a_list_a_group_is_on_every_gpu(stack: Stack) -> None:
    (group,) = get(stack, "models/all/config")["instance_group"]
    assert (group["kind"], group["gpus"], group["count"]) == ("KIND_GPU", [0, 1], 1)
    lines = " ".join(stack.processes().values())
    assert set(re.findall(r"nereid model (all_\S+)@", lines)) == {"all_0_0", "all_0_1"}


def test_a_gpu_that_is_not_there_is_told_with_those_that_are(stack: Stack) -> None:
    assert reason(stack, "third").endswith(
        "specifies invalid or unsupported gpu id 2. Available GPUs are: 0, 1"
    )


def test_onnx_runtime_without_cuda_does_not_run_a_gpu_instance_on_the_cpu(
    stack: Stack,
) -> None:
    assert "needs ONNX Runtime's CUDAExecutionProvider" in reason(stack, "simple")


def test_a_plan_without_tensorrt_says_what_is_missing(stack: Stack) -> None:
    text = "it takes a GPU, and nereid with the extra 'tensorrt'"
    assert text in reason(stack, "plan")


def test_a_gpu_that_is_asked_for_and_not_there_ends_the_start(tmp_path: Path) -> None:
    with started_stack(tmp_path, environment=TWO_GPUS, devices=("cuda:2",)) as running:
        assert running.wait_ended() == 1
    assert "--device cuda:2: there are cuda:0, cuda:1, cpu" in running.output


def test_without_a_driver_a_gpu_cannot_be_asked_for(tmp_path: Path) -> None:
    site = {"PYTHONPATH": TWO_GPUS["PYTHONPATH"]}
    with started_stack(tmp_path, environment=site, devices=("cuda:0",)) as running:
        assert running.wait_ended() == 1
    assert "there is no GPU (NVML: driver not loaded)" in running.output


@pytest.mark.parametrize("module", [triton_http, triton_grpc])
def test_memory_on_a_gpu_is_registered_and_without_cuda_the_requests_error(
    stack: Stack,
    module: Any,  # noqa: ANN401 - untyped clients
) -> None:
    port = stack.http if module is triton_http else stack.grpc
    assert "cuda_shared_memory" in extensions(stack)
    handle = base64.b64encode(bytes(range(64)))
    with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
        with pytest.raises(InferenceServerException, match="invalid args"):
            client.register_cuda_shared_memory("r", handle, 2, 64)
        client.register_cuda_shared_memory("r", handle, 1, 64)
        with pytest.raises(InferenceServerException, match="already in manager"):
            client.register_cuda_shared_memory("r", handle, 1, 64)
        with pytest.raises(InferenceServerException, match="registered as CUDA shared"):
            client.get_system_shared_memory_status("r")
        status = client.get_cuda_shared_memory_status("r")
        if module is triton_http:
            assert status == [{"name": "r", "device_id": 1, "byte_size": 64}]
        else:
            region = status.regions["r"]
            assert (region.name, region.device_id, region.byte_size) == ("r", 1, 64)
        tensor = module.InferInput("X", [1], "INT32")
        tensor.set_shared_memory("r", 4)
        # This machine has no CUDA: what the worker cannot open it says.
        with pytest.raises(InferenceServerException, match="CUDA shared memory of dev"):
            client.infer("second", [tensor])
        client.unregister_cuda_shared_memory("r")
        with pytest.raises(InferenceServerException, match="Unable to find shared mem"):
            client.infer("second", [tensor])
