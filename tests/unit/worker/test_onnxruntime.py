"""ONNX models on the real runtime."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_extensions
import pytest
from numpy.typing import NDArray
from onnx import helper
from structlog.testing import capture_logs

from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config import (
    Accelerator,
    InstanceKind,
    OptimizationPolicy,
    SequenceBatching,
)
from services.core.model_config_sequences import (
    ControlKind,
    SequenceControl,
    SequenceControlInput,
)
from services.worker.backend import Backend, FoundTensor, InstancePlace, ModelSource
from services.worker.backends.onnxruntime import OnnxRuntime
from services.worker.device import Device, DeviceKind
from services.worker.execution import Execution
from services.worker.signature import Signature
from tests.unit.worker.messages import answers, batch, ints, request
from tests.unit.worker.onnx_models import (
    ADD_SUB,
    config,
    source,
    write_add_sub,
    write_identity,
    write_model,
    write_scale,
)
from tests.unit.worker.puppets import WAIT_S, ManualClock

PLACE = InstancePlace(name="m_0_0", group=0)


def load(of: ModelSource) -> Backend:
    (backend,) = OnnxRuntime().load(of, [PLACE])
    return backend


def test_a_model_computes(tmp_path: Path) -> None:
    write_add_sub(tmp_path)
    a, b = ints(1, 2, 3, 4, rows=3), ints(5, 5, 5, 5, rows=3)
    found = load(source(tmp_path)).execute({"A": a, "B": b}, ["DIFF", "SUM"])
    assert list(found) == ["DIFF", "SUM"]
    assert np.array_equal(found["SUM"], a + b)
    assert np.array_equal(found["DIFF"], a - b)


@pytest.mark.parametrize("datatype", list(DataType), ids=lambda one: one.value)
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_every_datatype_goes_through(
    tmp_path: Path, datatype: DataType, rows: int
) -> None:
    write_identity(tmp_path, datatype)
    backend = load(source(tmp_path, config({"X": [3]}, {"Y": [3]}, datatype)))
    x: NDArray[Any] = np.array([[0, 1, 0x3F80]] * rows).reshape(rows, 3)
    if datatype is DataType.BYTES:
        x = np.array([[b"", "é".encode(), b"a\0b"]] * rows, object).reshape(rows, 3)
        expected: NDArray[Any] = np.array([["", "é", "a\0b"]] * rows, object)
    else:
        x = expected = x.astype(datatype.numpy_dtype)
    y = backend.execute({"X": x}, ["Y"])["Y"]
    assert y.dtype == datatype.numpy_dtype
    assert y.tolist() == expected.reshape(rows, 3).tolist()


def test_mixed_datatypes_with_bf16_go_through(tmp_path: Path) -> None:
    write_identity(tmp_path, DataType.BF16, ["b", "n"])
    backend = load(source(tmp_path, config({"X": [-1]}, {"Y": [-1]}, DataType.BF16)))
    x = np.arange(6, dtype=np.uint16).reshape(2, 3)
    for batch_of_x in (x, x + 9, np.vstack([x, x]), x[:, :1].copy()):
        found = backend.execute({"X": batch_of_x}, ["Y"])["Y"]
        assert found.tolist() == batch_of_x.tolist()


def test_a_string_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    write_identity(tmp_path, DataType.BYTES)
    backend = load(source(tmp_path, config({"X": [3]}, {"Y": [3]}, DataType.BYTES)))
    x = np.array([[b"\xff", b"", b""]], object)
    with pytest.raises(BackendError, match="input 'X' holds an element that is not"):
        backend.execute({"X": x}, ["Y"])


def test_a_failing_run_is_told_in_tritons_words(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        [("Reshape", ["X", "S"], ["Y"])],
        {"X": ["n"], "S": ["r"]},
        {"Y": ["a", "b"]},
        DataType.INT64,
    )
    of = config(
        {"X": [-1], "S": [-1]}, {"Y": [-1, -1]}, DataType.INT64, max_batch_size=0
    )
    backend = load(source(tmp_path, of))
    x, shape = np.arange(6), np.array([4, 4])
    with pytest.raises(BackendError, match=r"^onnx runtime error \d+: .*eshape"):
        backend.execute({"X": x, "S": shape}, ["Y"])
    good = backend.execute({"X": x, "S": np.array([2, 3])}, ["Y"])["Y"]
    assert good.shape == (2, 3)


def test_a_batch_goes_from_bytes_to_bytes(tmp_path: Path) -> None:
    write_add_sub(tmp_path)
    backend = load(source(tmp_path))
    execution = Execution(Signature.from_config(ADD_SUB, 1), backend, ManualClock())
    b = ints(5, 5, 5, 5)
    for count in (1, 4, 2):
        message = batch(
            *(request({"A": ints(n, 2, 3, 4), "B": b}) for n in range(count))
        )
        for n, answer in enumerate(answers(execution.run(message))):
            assert answer.array("SUM").tolist() == [[n + 5, 7, 8, 9]]


def test_instances_share_a_session_and_run_at_the_same_time(tmp_path: Path) -> None:
    write_add_sub(tmp_path)
    places = [InstancePlace(name=f"m_0_{n}", group=0) for n in range(2)]
    backends = OnnxRuntime().load(source(tmp_path), places)
    meeting = threading.Barrier(2)
    found: list[list[int]] = [[], []]

    def work(number: int) -> None:
        meeting.wait(WAIT_S)
        for n in range(50):
            a, b = ints(n, n, n, n), ints(number, 0, 0, 0)
            answer = backends[number].execute({"A": a, "B": b}, ["SUM"])
            found[number].append(int(answer["SUM"][0, 0]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert found == [list(range(50)), list(range(1, 51))]
    backends[0].unload()
    assert backends[1].execute({"A": ints(1, 1, 1, 1), "B": ints(1, 1, 1, 1)}, ["SUM"])


def test_thread_counts_and_modes_reach_the_runtime(tmp_path: Path) -> None:
    write_add_sub(tmp_path)
    parameters = {
        "intra_op_thread_count": "1",
        "inter_op_thread_count": "2",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "session.set_denormal_as_zero": "1",
    }
    of = config({"A": [4], "B": [4]}, {"SUM": [4]}, parameters=parameters)
    (backend,) = OnnxRuntime().load(source(tmp_path, of), [PLACE])
    options = backend.session.get_session_options()
    assert options.intra_op_num_threads == 1
    assert options.inter_op_num_threads == 2
    assert options.execution_mode.name == "ORT_PARALLEL"
    assert not options.enable_cpu_mem_arena
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize("shrunk", ["cpu:0", "gpu:0", "cpu:0;gpu:0"])
def test_a_run_shrinks_only_the_arenas_that_are_here(
    tmp_path: Path, shrunk: str
) -> None:
    write_add_sub(tmp_path)
    parameters = {"memory.enable_memory_arena_shrinkage": shrunk}
    of = config({"A": [4], "B": [4]}, {"SUM": [4]}, parameters=parameters)
    a = ints(1, 2, 3, 4)
    found = load(source(tmp_path, of)).execute({"A": a, "B": a}, ["SUM"])
    assert np.array_equal(found["SUM"], a + a)


def test_a_file_in_a_folder_is_found(tmp_path: Path) -> None:
    write_add_sub(tmp_path / "model.onnx")
    assert load(source(tmp_path)) is not None


def test_a_file_of_another_name_is_found(tmp_path: Path) -> None:
    write_add_sub(tmp_path)
    (tmp_path / "model.onnx").rename(tmp_path / "other.onnx")
    of = config({"A": [4], "B": [4]}, {"SUM": [4]}, default_model_filename="other.onnx")
    assert load(source(tmp_path, of)) is not None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=f"failed to stat file {tmp_path}"):
        load(source(tmp_path))


def test_a_file_that_is_no_model_is_told_in_tritons_words(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"garbage!")
    for act in (load, OnnxRuntime().inspect):
        with pytest.raises(BackendError) as caught:
            act(source(tmp_path))
        assert str(caught.value) == (
            f"onnx runtime error 7: Load model from {tmp_path}/model.onnx"
            " failed:Protobuf parsing failed."
        )


def test_a_contradicting_configuration_is_refused(tmp_path: Path) -> None:
    write_add_sub(tmp_path)
    of = config({"A": [4], "B": [4]}, {"SUM": [4]}, DataType.FP32)
    with pytest.raises(ConfigError, match="configuration expects datatype TYPE_FP32"):
        load(source(tmp_path, of))


def test_a_gpu_instance_on_a_cpu_worker_is_refused(tmp_path: Path) -> None:
    write_add_sub(tmp_path)
    of = config({"A": [4], "B": [4]}, {"SUM": [4]}, kind=InstanceKind.GPU)
    with pytest.raises(ConfigError, match="KIND_GPU but this worker serves cpu"):
        load(source(tmp_path, of))


@pytest.mark.skipif(
    "CUDAExecutionProvider" in ort.get_available_providers(), reason="it has one"
)
def test_a_gpu_instance_without_the_provider_does_not_fall_back(tmp_path: Path) -> None:
    write_add_sub(tmp_path)
    of = config({"A": [4], "B": [4]}, {"SUM": [4]}, kind=InstanceKind.GPU)
    gpu = Device(kind=DeviceKind.GPU)
    with pytest.raises((ConfigError, BackendError), match="CUDAExecutionProvider"):
        load(source(tmp_path, of, gpu))


def test_weights_may_lie_in_a_file_of_their_own(tmp_path: Path) -> None:
    write_scale(tmp_path, np.arange(1024, dtype=np.float32))
    model = onnx.load(tmp_path / "model.onnx")
    onnx.save_model(
        model,
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    of = config({"X": [1024]}, {"Y": [1024]}, DataType.FP32)
    x = np.full((2, 1024), 2, np.float32)
    found = load(source(tmp_path, of)).execute({"X": x}, ["Y"])["Y"]
    assert found[1, 1023] == 2046
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(BackendError, match=r"onnx runtime error \d+: .*weights\.bin"):
        load(source(tmp_path, of))


UPPER = config({"X": [-1]}, {"Y": [-1]}, DataType.BYTES, max_batch_size=0)


def write_upper(directory: Path) -> None:
    """Write a model whose operator is in the library of onnxruntime-extensions."""
    text = [
        helper.make_tensor_value_info(name, onnx.TensorProto.STRING, ["n"])
        for name in "XY"
    ]
    node = helper.make_node("StringUpper", ["X"], ["Y"], domain="ai.onnx.contrib")
    graph = helper.make_graph([node], "tiny", text[:1], text[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 9
    (directory / "model.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize("where", ["absolute", "version", "model"])
def test_operators_of_a_library_are_known_wherever_it_lies(
    tmp_path: Path, where: str
) -> None:
    version = tmp_path / "1"
    version.mkdir()
    write_upper(version)
    library = onnxruntime_extensions.get_library_path()
    if where != "absolute":
        folder = version if where == "version" else tmp_path
        (folder / "libops.so").symlink_to(library)
        library = "libops.so"
    of = replace(UPPER, op_library_filenames=(library,))
    x = np.array([b"ort", b"Nereid"], object)
    found = load(source(version, of)).execute({"X": x}, ["Y"])["Y"]
    assert found.tolist() == ["ORT", "NEREID"]


def test_without_its_library_an_operator_is_unknown(tmp_path: Path) -> None:
    write_upper(tmp_path)
    with pytest.raises(BackendError, match=r"ai\.onnx\.contrib"):
        load(source(tmp_path, UPPER))


@pytest.mark.parametrize(
    ("library", "reason"),
    [("libnone.so", "cannot open shared object"), ("model.onnx", "invalid ELF header")],
)
def test_a_library_that_cannot_be_used_is_named(
    tmp_path: Path, library: str, reason: str
) -> None:
    write_add_sub(tmp_path)
    of = replace(ADD_SUB, op_library_filenames=(library,))
    with pytest.raises(BackendError, match=f"library '{library}' .*{reason}"):
        load(source(tmp_path, of))


def test_who_executes_the_nodes_is_written_down(tmp_path: Path) -> None:
    write_add_sub(tmp_path)
    with capture_logs() as lines:
        load(source(tmp_path))
    (line,) = [line for line in lines if "nodes" in line]
    assert line["nodes"] == "CPUExecutionProvider: 2"


def test_accelerators_of_the_other_kind_are_warned_of(tmp_path: Path) -> None:
    write_add_sub(tmp_path)
    accelerator = Accelerator(name="tensorrt", parameters={})
    policy = OptimizationPolicy(gpu_accelerators=(accelerator,))
    with capture_logs() as lines:
        load(source(tmp_path, replace(ADD_SUB, optimization=policy)))
    (line,) = [line for line in lines if line["log_level"] == "warning"]
    assert line["accelerators"] == "tensorrt"


def test_inspection_tells_full_shapes(tmp_path: Path) -> None:
    write_identity(tmp_path, DataType.FP32, ["batch", 3, "n", 0])
    found = OnnxRuntime().inspect(source(tmp_path))
    assert found.inputs == (
        FoundTensor(name="X", datatype=DataType.FP32, shape=(-1, 3, -1, 0)),
    )
    assert [tensor.name for tensor in found.outputs] == ["Y"]


def test_a_control_input_may_be_a_string(tmp_path: Path) -> None:
    corrid = SequenceControlInput(
        name="X",
        controls=(
            SequenceControl(kind=ControlKind.SEQUENCE_CORRID, datatype=DataType.BYTES),
        ),
    )
    write_identity(tmp_path, DataType.BYTES, ("b", 1))
    of = config(
        {},
        {"Y": [1]},
        DataType.BYTES,
        sequence_batching=SequenceBatching(control_inputs=(corrid,)),
    )
    x = np.array([["é".encode()]], object)
    assert load(source(tmp_path, of)).execute({"X": x}, ["Y"])["Y"].tolist() == [["é"]]
