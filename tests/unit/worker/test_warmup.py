"""Warm-up samples: what is sent, to whom, and what a failure says."""

import dataclasses
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from protos import inference_pb2, worker_pb2
from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config_warmup import Warmup, WarmupData, WarmupInput
from services.worker.backend import ModelSource
from services.worker.outlet import Outlet
from services.worker.runs import StreamedRun
from services.worker.warmup import samples, warm_up
from tests.unit.worker.onnx_models import ADD_SUB, source

ZERO, RANDOM, FILE = WarmupData
OK = worker_pb2.BatchResponse(reply=[worker_pb2.Reply(response=b"x")])
BAD = worker_pb2.BatchResponse(
    reply=[worker_pb2.Reply(error=worker_pb2.ReplyError(code=13, message="no weights"))]
)


def tensor(
    data: WarmupData = ZERO,
    datatype: DataType = DataType.INT32,
    dims: tuple[int, ...] = (4,),
    data_file: str = "",
) -> WarmupInput:
    return WarmupInput(datatype=datatype, dims=dims, data=data, data_file=data_file)


def model(
    folder: Path,
    inputs: Mapping[str, WarmupInput],
    *,
    batch_size: int = 1,
    count: int = 1,
    max_batch_size: int = 8,
) -> ModelSource:
    (folder / "1").mkdir(exist_ok=True)
    warmup = Warmup(name="w", batch_size=batch_size, inputs=inputs, count=count)
    config = dataclasses.replace(
        ADD_SUB, warmups=(warmup,), max_batch_size=max_batch_size
    )
    return source(folder / "1", config)


def requests_of(of: ModelSource) -> list[inference_pb2.ModelInferRequest]:
    (sample,) = samples(of)
    batch = worker_pb2.BatchRequest.FromString(sample.message)
    return [inference_pb2.ModelInferRequest.FromString(each) for each in batch.request]


class Runs:
    """Instances that remember what they ran."""

    def __init__(self, answer: worker_pb2.BatchResponse = OK) -> None:
        self.messages: list[bytes] = []
        self._answer = answer.SerializeToString()

    def run(self, message: bytes) -> bytes:
        self.messages.append(message)
        return self._answer


def test_a_batch_of_n_is_n_requests_of_one_row(tmp_path: Path) -> None:
    requests = requests_of(model(tmp_path, {"A": tensor()}, batch_size=3))
    assert len(requests) == 3
    (given,) = requests[0].inputs
    assert (given.name, given.datatype, list(given.shape)) == ("A", "INT32", [1, 4])
    assert requests[0].raw_input_contents[0] == bytes(16)


def test_a_model_that_does_not_batch_gets_the_shape_as_it_is(tmp_path: Path) -> None:
    (request,) = requests_of(model(tmp_path, {"A": tensor()}, max_batch_size=0))
    assert list(request.inputs[0].shape) == [4]


def test_a_sample_of_batch_size_zero_is_switched_off(tmp_path: Path) -> None:
    assert list(samples(model(tmp_path, {"A": tensor()}, batch_size=0))) == []


@pytest.mark.parametrize(("size", "limit"), [(9, 8), (2, 0)])
def test_a_batch_larger_than_the_model_takes_is_refused(
    tmp_path: Path, size: int, limit: int
) -> None:
    of = model(tmp_path, {"A": tensor()}, batch_size=size, max_batch_size=limit)
    with pytest.raises(ConfigError, match=f"has batch size {size}"):
        list(samples(of))


@pytest.mark.parametrize("datatype", list(DataType))
@pytest.mark.parametrize("data", [ZERO, RANDOM])
def test_every_datatype_can_be_filled(
    tmp_path: Path, datatype: DataType, data: WarmupData
) -> None:
    of = model(tmp_path, {"A": tensor(data, datatype, (2, 3))})
    (content,) = requests_of(of)[0].raw_input_contents
    if datatype.byte_size is not None:
        assert len(content) == 6 * datatype.byte_size
    if data is ZERO:
        assert not any(content)
    elif datatype in (DataType.FP16, DataType.FP32, DataType.FP64):
        values = np.frombuffer(content, datatype.numpy_dtype)
        assert np.all((values >= 0) & (values <= 1))
    elif datatype is DataType.BOOL:
        assert set(content) <= {0, 1}


def test_data_may_come_from_a_file_of_the_warmup_folder(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "a").write_bytes(b"0123456789abcdef")
    of = model(tmp_path, {"A": tensor(FILE, data_file="a")})
    assert requests_of(of)[0].raw_input_contents[0] == b"0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a", b"123", "input 'A' expects 16 bytes, the file has 3 bytes"),
        ("no", b"", "cannot read .*/warmup/no: No such file"),
        ("../config.pbtxt", b"", "is not in the folder warmup"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "a").write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        list(samples(model(tmp_path, {"A": tensor(FILE, data_file=name)})))


def test_every_instance_runs_every_sample_as_often_as_it_says(tmp_path: Path) -> None:
    runs = Runs(), Runs()
    warm_up(
        model(tmp_path, {"A": tensor()}, count=3),
        [("m_0_0", runs[0].run), ("m_0_1", runs[1].run)],
    )
    assert [len(each.messages) for each in runs] == [3, 3]


def test_instances_are_warmed_at_the_same_time(tmp_path: Path) -> None:
    meeting = threading.Barrier(2, timeout=10)

    def run(_: bytes) -> bytes:
        meeting.wait()
        return OK.SerializeToString()

    warm_up(model(tmp_path, {"A": tensor()}), [("m_0_0", run), ("m_0_1", run)])


def test_a_failure_names_the_sample_and_the_reason(tmp_path: Path) -> None:
    reason = "failed to run warmup sample 'w': no weights"
    with pytest.raises(BackendError, match=reason):
        warm_up(model(tmp_path, {"A": tensor()}), [("m_0_0", Runs(BAD).run)])


@pytest.mark.parametrize("is_good", [True, False])
def test_a_decoupled_model_is_warm_when_its_answers_have_ended(
    tmp_path: Path, *, is_good: bool
) -> None:
    reply = (OK if is_good else BAD).reply[0]
    streamed = worker_pb2.BatchResponse(
        streamed=[worker_pb2.StreamedReply(final=True, reply=reply)]
    )

    def run(_: bytes, outlet: Outlet) -> bytes:
        def answer() -> None:
            outlet.send(streamed.SerializeToString(), 0)
            outlet.close()

        threading.Thread(target=answer).start()
        return b""

    of = model(tmp_path, {"A": tensor()})
    if is_good:
        warm_up(of, [("m_0_0", StreamedRun(run))])
    else:
        with pytest.raises(BackendError, match="no weights"):
            warm_up(of, [("m_0_0", StreamedRun(run))])
