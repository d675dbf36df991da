"""Python models in a temporary repository, loaded as the worker does it."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from services.core.datatype import DataType
from services.core.model_config import ModelConfig, ModelInput, ModelOutput
from services.worker.backend import (
    BackendAnswer,
    BackendCall,
    BackendFailure,
    BackendReply,
    InstancePlace,
    ModelSource,
    RequestTensor,
)
from services.worker.backends.python import PythonRuntime
from services.worker.device import Device, DeviceKind
from services.worker.python_backend.host.python_model import (
    DecoupledPythonModel,
    PythonModel,
)
from services.worker.request_details import NO_DETAILS, RequestDetails

CPU = Device(kind=DeviceKind.CPU, index=0, uuid="", memory_bytes=1 << 30)

IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(
                "OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
            for r in requests
        ]
"""


def source(
    folder: Path,
    code: str,
    *,
    datatype: DataType = DataType.INT32,
    decoupled: bool = False,
    parameters: dict[str, str] | None = None,
) -> ModelSource:
    """Write a model with one input IN and one output OUT, and name it."""
    version = folder / "m" / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(textwrap.dedent(code))
    config = ModelConfig(
        name="m",
        backend="python",
        inputs=(ModelInput(name="IN", datatype=datatype, dims=(-1,)),),
        outputs=(ModelOutput(name="OUT", datatype=datatype, dims=(-1,)),),
        decoupled=decoupled,
        parameters=parameters or {},
    )
    return ModelSource(
        config=config,
        version=1,
        directory=str(version),
        device=CPU,
        config_json=json.dumps({"name": "m", "max_batch_size": 0}),
    )


@contextmanager
def loaded(model: ModelSource) -> Iterator[PythonModel | DecoupledPythonModel]:
    place = InstancePlace(name="m_0_0", group=0)
    (instance,) = PythonRuntime().load(model, [place])
    try:
        yield instance
    finally:
        instance.unload()


@contextmanager
def running(
    folder: Path, code: str, *, datatype: DataType = DataType.INT32
) -> Iterator[PythonModel]:
    with loaded(source(folder, code, datatype=datatype)) as instance:
        assert isinstance(instance, PythonModel)
        yield instance


def call(
    *values: int,
    request_id: str = "",
    outputs: tuple[int, ...] = (0,),
    details: RequestDetails = NO_DETAILS,
) -> BackendCall:
    return raw_call(
        np.array(values, np.int32).tobytes(),
        (len(values),),
        request_id=request_id,
        outputs=outputs,
        details=details,
    )


def raw_call(
    data: bytes,
    shape: tuple[int, ...],
    *,
    request_id: str = "",
    outputs: tuple[int, ...] = (0,),
    details: RequestDetails = NO_DETAILS,
) -> BackendCall:
    tensor = RequestTensor(0, shape, memoryview(data))
    return BackendCall(request_id, (tensor,), outputs, details)


def values(answer: BackendAnswer | None) -> list[int]:
    """Return the INT32 elements of an answer's only tensor."""
    assert isinstance(answer, BackendReply), answer
    (tensor,) = answer.tensors
    found: list[int] = np.frombuffer(tensor.data, np.int32).tolist()
    return found


def failure(answer: BackendAnswer | None) -> tuple[int, str]:
    assert isinstance(answer, BackendFailure), answer
    return (answer.code, answer.text)


def all_values(answers: Sequence[BackendAnswer]) -> list[list[int]]:
    return [values(one) for one in answers]
