"""Python models in their processes."""

import json
import os
import queue
import shutil
import signal
import tempfile
import threading
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config import ModelConfig
from services.worker.backend import (
    BackendAnswer,
    BackendFailure,
    BackendReply,
    InstancePlace,
    ModelSource,
    Pace,
    Rescheduled,
)
from services.worker.backends.python import PythonRuntime, initialize_order
from services.worker.device import Device, DeviceKind
from services.worker.python_backend.frames import Frame
from services.worker.python_backend.host.python_model import DecoupledPythonModel
from services.worker.request_details import RequestDetails
from tests.unit.worker.python_backend.python_models import (
    IDENTITY,
    all_values,
    call,
    failure,
    loaded,
    raw_call,
    running,
    source,
    values,
)

WAIT_S = 20


def response(expression: str, body: str = "") -> str:
    """Return a model that answers each request with one array."""
    return f"""
import json, os, sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.kept = []

    def execute(self, requests):
        out = []
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()
            {body}
            out.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("OUT", np.asarray({expression}))]))
        return out
"""


def text_of(answer: BackendAnswer) -> list[str]:
    assert isinstance(answer, BackendReply), answer
    return [e.decode() for e in byte_tensor.decode(answer.tensors[0].data)]


def test_every_request_of_a_batch_is_answered_by_itself(tmp_path: Path) -> None:
    with running(tmp_path, IDENTITY) as model:
        answers = model.execute_requests([call(1, 2), call(3), call()])
        assert all_values(answers) == [[1, 2], [3], []]


@pytest.mark.parametrize("count", [1, 4095, 4096, 4097, 1 << 20])
def test_tensors_of_every_size_come_back_whole(tmp_path: Path, count: int) -> None:
    numbers = np.arange(count, dtype=np.int32)
    with running(tmp_path, IDENTITY) as model:
        for _ in range(2):
            (answer,) = model.execute_requests([raw_call(numbers.tobytes(), (count,))])
            assert isinstance(answer, BackendReply)
            assert bytes(answer.tensors[0].data) == numbers.tobytes()
            assert answer.tensors[0].shape == (count,)


def test_strings_come_back(tmp_path: Path) -> None:
    elements = [b"", "grün".encode(), b"\x00\xff"]
    with running(tmp_path, IDENTITY, datatype=DataType.BYTES) as model:
        (answer,) = model.execute_requests(
            [raw_call(byte_tensor.encode(elements), (3,))]
        )
        assert isinstance(answer, BackendReply)
        assert byte_tensor.decode(answer.tensors[0].data) == elements
        assert answer.tensors[0].datatype is DataType.BYTES


def test_inputs_that_the_model_keeps_are_never_overwritten(tmp_path: Path) -> None:
    code = response("np.concatenate(self.kept)", "self.kept.append(x)")
    with running(tmp_path, code) as model:
        for number in range(5):
            (answer,) = model.execute_requests([call(number)])
        assert values(answer) == [0, 1, 2, 3, 4]


def test_an_input_may_be_changed_in_place(tmp_path: Path) -> None:
    with running(tmp_path, response("x", "x += 1")) as model:
        assert all_values(model.execute_requests([call(1)])) == [[2]]


def test_a_request_tells_all_that_the_client_said(tmp_path: Path) -> None:
    code = response(
        "[repr([r.request_id(), r.correlation_id(), r.flags(), r.timeout(),"
        " json.loads(r.parameters()), r.requested_output_names(),"
        " r.is_cancelled()]).encode()]"
    )
    details = RequestDetails(
        parameters={"a": 1, "b": "x"}, correlation_id="s", flags=3, timeout_us=7
    )
    with running(tmp_path, code) as model:
        told = model.execute_requests([call(0, request_id="ü", details=details)])
        plain = model.execute_requests([call(0)])
    assert text_of(told[0]) == [
        repr(["ü", "s", 3, 7, {"a": 1, "b": "x"}, ["OUT"], False])
    ]
    assert text_of(plain[0]) == [repr(["", 0, 0, 0, {}, ["OUT"], False])]


def test_initialize_is_given_strings(tmp_path: Path) -> None:
    code = response("[f'{k}={v}' for k, v in sorted(self.args.items())]")
    with running(tmp_path, code) as model:
        (answer,) = model.execute_requests([call(0)])
    folder = tmp_path / "m"
    assert text_of(answer) == [
        'model_config={"name": "m", "max_batch_size": 0}',
        "model_instance_device_id=0",
        "model_instance_kind=CPU",
        "model_instance_name=m_0_0",
        "model_name=m",
        f"model_repository={folder}",
        "model_version=1",
    ]


def test_the_only_gpu_that_a_model_sees_is_its_number_0() -> None:
    gpu = Device(kind=DeviceKind.GPU, index=3, uuid="GPU-3")
    source = ModelSource(
        config=ModelConfig(name="m"), version=1, directory="/r/m/1", device=gpu
    )
    place = InstancePlace(name="m_0_0", group=0)
    order = json.loads(initialize_order(source, place, "model.py"))
    assert order["args"]["model_instance_kind"] == "GPU"
    assert order["args"]["model_instance_device_id"] == "0"


def test_an_error_fails_only_its_own_request(tmp_path: Path) -> None:
    code = """
    import triton_python_backend_utils as pb_utils
    E = pb_utils.TritonError
    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([r.inputs()[0].renamed("OUT")])
                    if n == 1 else
                    pb_utils.InferenceResponse(error=E("no", E.NOT_FOUND + n))
                    for n, r in enumerate(requests)]
    """
    with running(tmp_path, code) as model:
        answers = model.execute_requests([call(1), call(2), call(3)])
    assert [failure(answers[0]), failure(answers[2])] == [(5, "no"), (14, "no")]
    assert values(answers[1]) == [2]
    assert isinstance(answers[0], BackendFailure)
    assert answers[0].is_answer


def test_a_raised_error_fails_the_batch_and_not_the_next(tmp_path: Path) -> None:
    code = response("x", "assert x[0]")
    with running(tmp_path, code) as model:
        bad = model.execute_requests([call(1), call(0)])
        good = model.execute_requests([call(1)])
    for answer in bad:
        assert isinstance(answer, BackendFailure)
        assert (answer.code, answer.is_answer) == (13, False)
    assert all_values(good) == [[1]]


def test_a_raised_error_is_told_with_type_text_and_place(tmp_path: Path) -> None:
    code = response("x", "raise KeyError('gone')")
    with running(tmp_path, code) as model:
        (answer,) = model.execute_requests([call(0)])
    line = code.splitlines().index("            raise KeyError('gone')") + 1
    file = tmp_path / "m" / "1" / "model.py"
    assert failure(answer) == (
        13,
        "Failed to process the request(s) for model 'm_0_0', message: KeyError:"
        f" 'gone'\n\nAt:\n  {file}({line}): execute\n",
    )


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_responses_names_both(tmp_path: Path, count: int) -> None:
    code = response("x", "").replace("return out", f"return (out + out)[:{count}]")
    with running(tmp_path, code) as model:
        answers = model.execute_requests([call(1), call(2)])
    assert [failure(one) for one in answers] == [
        (
            13,
            "Failed to process the request(s) for model 'm_0_0', message: Number of"
            " InferenceResponse objects do not match the number of InferenceRequest"
            " objects. InferenceRequest(s) size is:2, and InferenceResponse(s) size"
            f" is:{count}\n",
        )
    ] * 2


def test_outputs_that_nobody_asked_for_are_left_out(tmp_path: Path) -> None:
    with running(tmp_path, IDENTITY) as model:
        (answer,) = model.execute_requests([call(1, outputs=())])
    assert answer == BackendReply((), {})


def test_parameters_of_a_response_arrive(tmp_path: Path) -> None:
    code = IDENTITY.replace(".as_numpy())])", ".as_numpy())], parameters={'a': 1.5})")
    with running(tmp_path, code) as model:
        (answer,) = model.execute_requests([call(1)])
    assert isinstance(answer, BackendReply)
    assert answer.parameters == {"a": 1.5}


def test_a_response_sender_answers_once_where_the_model_is_not_decoupled(
    tmp_path: Path,
) -> None:
    code = """
    import threading
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            for r in requests:
                out = pb_utils.InferenceResponse([r.inputs()[0].renamed("OUT")])
                threading.Thread(
                    target=r.get_response_sender().send, args=(out, 1)).start()
            return None
    """
    with running(tmp_path, code) as model:
        assert all_values(model.execute_requests([call(1), call(2)])) == [[1], [2]]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import no_such_module_x", "ModuleNotFoundError: No module named"),
        ("class TritonPythonModel\n", "SyntaxError: "),
        ("x = 1", "AttributeError: module '1.model' has no attribute"),
        (
            "class TritonPythonModel:\n    def initialize(self, args):\n"
            "        raise OSError('no weights')",
            "OSError: no weights\n\nAt:\n  ",
        ),
        ("import os\nos._exit(3)", "the process of 'm_0_0' ended while"),
    ],
)
def test_what_is_wrong_with_a_model_is_told_when_it_is_loaded(
    tmp_path: Path, code: str, text: str
) -> None:
    with (
        pytest.raises(BackendError) as caught,
        loaded(source(tmp_path, code)),
    ):
        pass
    assert str(caught.value).startswith(text)


def test_finalize_is_called(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = IDENTITY + f"\n    def finalize(self):\n        open({str(mark)!r}, 'w')\n"
    with running(tmp_path, code):
        assert not mark.exists()
    assert mark.exists()


def test_a_model_that_dies_fails_its_batch_and_stands_again(tmp_path: Path) -> None:
    code = response("[os.getpid()]", "x[0] and os._exit(1)")
    with running(tmp_path, code) as model:
        first = model.pid
        with pytest.raises(BackendError, match="Stub process 'm_0_0' is not healthy"):
            model.execute_requests([call(1)])
        (answer,) = model.execute_requests([call(0)])
        assert isinstance(answer, BackendReply)
        assert first != model.pid
        found = np.frombuffer(answer.tensors[0].data, np.int64).tolist()
        assert found == [model.pid]


def test_a_batch_is_not_lost_with_a_model_that_was_killed_before_it(
    tmp_path: Path,
) -> None:
    with running(tmp_path, IDENTITY) as model:
        model.execute_requests([call(1)])
        for number in range(3):
            os.kill(model.pid, signal.SIGKILL)
            assert all_values(model.execute_requests([call(number)])) == [[number]]


def test_memory_is_nowhere_in_the_file_system(tmp_path: Path) -> None:
    shared = Path("/dev/shm")  # noqa: S108 - only looked at
    before = set(shared.iterdir())
    with running(tmp_path, IDENTITY) as model:
        model.execute_requests([raw_call(bytes(1 << 20), (1 << 18,))])
        assert set(shared.iterdir()) <= before


def test_a_model_may_have_modules_of_its_own_whatever_their_name(
    tmp_path: Path,
) -> None:
    model = source(tmp_path, "import services\n" + response("x + services.ONE"))
    (tmp_path / "m" / "1" / "services.py").write_text("ONE = 1\n")
    with loaded(model) as instance:
        assert not isinstance(instance, DecoupledPythonModel)
        assert all_values(instance.execute_requests([call(1)])) == [[2]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment that has numpy, and nothing of Nereid."""
    folder = tmp_path_factory.mktemp("environments") / "env"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in ("numpy", "numpy.libs"):
        installed = Path(np.__file__).parents[1] / name
        if installed.exists():
            (packages / name).symlink_to(installed)
    return folder


WHERE = response(
    "[sys.prefix.encode(), os.environ.get('PYTHONPATH', 'none').encode()]",
    "assert not any('grpc' in one for one in sys.modules)",
)


def test_a_model_runs_in_the_environment_that_it_names(
    tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    parameters = {"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env"}
    model = source(tmp_path, WHERE, parameters=parameters)
    (tmp_path / "m" / "env").symlink_to(environment)
    with loaded(model) as instance:
        assert not isinstance(instance, DecoupledPythonModel)
        (answer,) = instance.execute_requests([call(1)])
    assert text_of(answer) == [str(tmp_path / "m" / "env"), "none"]


def test_a_packed_environment_is_unpacked_once(
    tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "unpacked"))
    (tmp_path / "unpacked").mkdir()
    archive = shutil.make_archive(str(tmp_path / "env"), "gztar", environment)
    model = source(tmp_path, WHERE, parameters={"EXECUTION_ENV_PATH": archive})
    found = []
    for _ in range(2):
        with loaded(model) as instance:
            assert not isinstance(instance, DecoupledPythonModel)
            found += instance.execute_requests([call(1)])
    first, second = [text_of(answer)[0] for answer in found]
    assert first == second
    assert first.startswith(str(tmp_path / "unpacked"))


def test_an_environment_without_python_is_refused(tmp_path: Path) -> None:
    parameters = {"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env"}
    model = source(tmp_path, IDENTITY, parameters=parameters)
    with (
        pytest.raises(ConfigError, match=f"'{tmp_path}/m/env' is no Python"),
        loaded(model),
    ):
        pass


def completed(model: ModelSource) -> dict[str, object]:
    found: dict[str, object] = json.loads(PythonRuntime().inspect(model).json)
    return found


def test_a_model_completes_its_configuration(tmp_path: Path) -> None:
    code = """
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            config.set_max_batch_size(4)
            config.add_input({"name": "IN", "data_type": "TYPE_INT8", "dims": [2]})
            return config
    """
    assert completed(source(tmp_path, code)) == {
        "name": "m",
        "max_batch_size": 4,
        "input": [{"name": "IN", "data_type": "TYPE_INT8", "dims": [2]}],
    }


def test_a_model_that_completes_nothing_is_not_even_run(tmp_path: Path) -> None:
    code = "raise ValueError('must not run')"
    assert completed(source(tmp_path, code)) == {"name": "m", "max_batch_size": 0}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise ValueError('no')", "ValueError: no\n\nAt:\n  "),
        ("return None", "TypeError: auto_complete_config must return the ModelConfig"),
        ("import os; os._exit(1)", "the process of 'm' ended in auto_complete_config"),
    ],
)
def test_what_goes_wrong_in_completing_is_told(
    tmp_path: Path, body: str, text: str
) -> None:
    code = f"""
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            {body}
    """
    with pytest.raises(BackendError) as caught:
        completed(source(tmp_path, code))
    assert str(caught.value).startswith(text)


class Answers:
    """Takes what a decoupled model says, as the worker does."""

    def __init__(self) -> None:
        self.all: queue.Queue[tuple[int, list[int] | str | None, bool]] = queue.Queue()
        self.cancel: Callable[[int], None] = lambda _call: None

    def deliver(self, call: int, answer: BackendAnswer | None, is_final: bool) -> None:
        said: list[int] | str | None = None
        if answer is not None:
            is_reply = isinstance(answer, BackendReply)
            said = values(answer) if is_reply else failure(answer)[1]
        self.all.put((call, said, is_final))

    def cancel_with(self, cancel: Callable[[int], None]) -> None:
        self.cancel = cancel

    def next(self) -> tuple[int, list[int] | str | None, bool]:
        return self.all.get(timeout=WAIT_S)


DECOUPLED = """
import os, threading
import numpy as np
import triton_python_backend_utils as pb_utils

def reply(*values):
    return pb_utils.InferenceResponse([
        pb_utils.Tensor("OUT", np.array(values, np.int32))])

class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            x = r.inputs()[0].as_numpy()
            threading.Thread(
                target=self.answer, args=(r, x, r.get_response_sender())).start()

    def answer(self, request, x, sender):
        {body}
"""


def test_a_decoupled_model_answers_as_often_as_it_likes(tmp_path: Path) -> None:
    body = "[sender.send(reply(v)) for v in x]; sender.send(flags=1)"
    code = source(tmp_path, DECOUPLED.format(body=body), decoupled=True)
    answers = Answers()
    with loaded(code) as model:
        assert isinstance(model, DecoupledPythonModel)
        found = model.execute_decoupled(
            [call(1, 2), call()], answers.deliver, answers.cancel_with
        )
        assert found == [None, None]
        said = [answers.next() for _ in range(4)]
    assert [one for one in said if one[0] == 0] == [
        (0, [1], False),
        (0, [2], False),
        (0, None, True),
    ]
    assert [one for one in said if one[0] == 1] == [(1, None, True)]


def test_a_decoupled_model_learns_that_nobody_waits(tmp_path: Path) -> None:
    body = (
        "\n        while not request.is_cancelled(): threading.Event().wait(0.001)"
        "\n        sender.send(reply(9), 1)"
    )
    answers = Answers()
    with loaded(source(tmp_path, DECOUPLED.format(body=body), decoupled=True)) as model:
        assert isinstance(model, DecoupledPythonModel)
        model.execute_decoupled([call(1)], answers.deliver, answers.cancel_with)
        answers.cancel(0)
        assert answers.next() == (0, [9], True)


def test_a_decoupled_model_learns_inside_execute_that_nobody_waits(
    tmp_path: Path,
) -> None:
    code = """
    import threading
    class TritonPythonModel:
        def execute(self, requests):
            for r in requests:
                while not r.is_cancelled(): threading.Event().wait(0.001)
                r.get_response_sender().send(flags=1)
    """
    answers = Answers()

    def cancel_early(cancel: Callable[[int], None]) -> None:
        """Cancel before the model has been given the request."""
        cancel(0)
        cancel(1)

    with loaded(source(tmp_path, code, decoupled=True)) as model:
        assert isinstance(model, DecoupledPythonModel)
        model.execute_decoupled([call(1), call(2)], answers.deliver, cancel_early)
        assert [answers.next() for _ in range(2)] == [(0, None, True), (1, None, True)]


# The last request opens the way for the others when it is cancelled.
PACED = """
import asyncio, threading
import numpy as np
import triton_python_backend_utils as pb_utils

def answers(request):
    for value in request.inputs()[0].as_numpy():
        yield pb_utils.InferenceResponse([
            pb_utils.Tensor("OUT", np.array([value], np.int32))])

class TritonPythonModel:
    {execute}
"""
IN_THREADS = """
    def execute(self, requests):
        *requests, gate = requests
        while not gate.is_cancelled(): threading.Event().wait(0.001)
        gate.get_response_sender().send(flags=1)
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        sender = request.get_response_sender()
        for answer in answers(request):
            sender.send(answer)
        sender.send(flags=1)
"""
IN_COROUTINES = """
    async def execute(self, requests):
        *requests, gate = requests
        while not gate.is_cancelled(): await asyncio.sleep(0.001)
        gate.get_response_sender().send(flags=1)
        await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        sender = request.get_response_sender()
        for answer in answers(request):
            sender.send(answer)
            await asyncio.sleep(0)
        sender.send(flags=1)
"""
LAST = """
    def execute(self, requests):
        *requests, gate = requests
        while not gate.is_cancelled(): threading.Event().wait(0.001)
        gate.get_response_sender().send(flags=1)
        for request in requests:
            (answer,) = answers(request)
            request.get_response_sender().send(answer, 1)
"""


@contextmanager
def slowly_read(
    folder: Path, execute: str, *values: int
) -> Iterator[tuple[Answers, Pace]]:
    """Have a request answered whose reader is slow, and then one that answers 8, 9."""
    answers, paces = Answers(), list[Pace]()
    calls = [call(*values), call(8, 9), call()] if values else [call(1), call()]
    gate = len(calls) - 1

    def pace_with(pace: Pace) -> None:
        paces.append(pace)
        pace(0, True)  # noqa: FBT003 - a callback
        answers.cancel(gate)

    code = PACED.format(execute=execute)
    with loaded(source(folder, code, decoupled=True)) as model:
        assert isinstance(model, DecoupledPythonModel)
        model.execute_paced(calls, answers.deliver, answers.cancel_with, pace_with)
        assert answers.next() == (gate, None, True)
        yield answers, paces[0]


@pytest.mark.parametrize("end", ["the reader has caught up", "the client has left"])
def test_a_sender_waits_while_its_reader_is_slow(tmp_path: Path, end: str) -> None:
    with slowly_read(tmp_path, IN_THREADS, 1, 2) as (answers, pace):
        said = [answers.next() for _ in range(3)]
        assert said == [(1, [8], False), (1, [9], False), (1, None, True)]
        if end == "the reader has caught up":
            pace(0, False)  # noqa: FBT003 - a callback
        else:
            answers.cancel(0)
        said = [answers.next() for _ in range(3)]
        assert said == [(0, [1], False), (0, [2], False), (0, None, True)]


def test_a_coroutine_waits_at_its_next_await_and_holds_up_no_other(
    tmp_path: Path,
) -> None:
    with slowly_read(tmp_path, IN_COROUTINES, 1, 2) as (answers, pace):
        said = [answers.next() for _ in range(4)]
        assert [one for one in said if one[0] == 0] == [(0, [1], False)]
        others = [(1, [8], False), (1, [9], False), (1, None, True)]
        assert [one for one in said if one[0] == 1] == others
        pace(0, False)  # noqa: FBT003 - a callback
        assert [answers.next() for _ in range(2)] == [(0, [2], False), (0, None, True)]


def test_the_last_response_waits_for_no_reader(tmp_path: Path) -> None:
    with slowly_read(tmp_path, LAST) as (answers, _):
        assert answers.next() == (0, [1], True)


def test_what_a_decoupled_model_leaves_open_when_it_dies_fails(tmp_path: Path) -> None:
    answers = Answers()
    # It dies when it is told to: not before its execution has ended.
    body = (
        "\n        sender.send(reply(1))"
        "\n        while not request.is_cancelled(): threading.Event().wait(0.001)"
        "\n        os._exit(1)"
    )
    with loaded(source(tmp_path, DECOUPLED.format(body=body), decoupled=True)) as model:
        assert isinstance(model, DecoupledPythonModel)
        model.execute_decoupled([call(1)], answers.deliver, answers.cancel_with)
        assert answers.next() == (0, [1], False)
        answers.cancel(0)
        place, text, is_final = answers.next()
        assert (place, is_final) == (0, True)
        assert "is not healthy" in str(text)


ABANDONED = "the model let go of the request without sending a final response"


@pytest.mark.parametrize(
    ("body", "answered"),
    [("raise ValueError('in a thread')", []), ("sender.send(reply(1))", [[1]])],
    ids=["its thread died", "it forgot the final flag"],
)
def test_a_client_learns_that_a_decoupled_model_will_not_answer(
    tmp_path: Path, body: str, answered: list[list[int]]
) -> None:
    answers = Answers()
    with loaded(source(tmp_path, DECOUPLED.format(body=body), decoupled=True)) as model:
        assert isinstance(model, DecoupledPythonModel)
        model.execute_decoupled([call(1)], answers.deliver, answers.cancel_with)
        for values_ in answered:
            assert answers.next() == (0, values_, False)
        assert answers.next() == (0, ABANDONED, True)


def test_a_decoupled_model_that_takes_no_sender_will_not_answer(tmp_path: Path) -> None:
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            self.kept = requests[1]
    """
    answers = Answers()
    with loaded(source(tmp_path, code, decoupled=True)) as model:
        assert isinstance(model, DecoupledPythonModel)
        two = [call(1), call(2)]
        assert model.execute_decoupled(two, answers.deliver, answers.cancel_with) == [
            None,
            None,
        ]
        assert answers.next() == (0, ABANDONED, True)
        # The second may still be answered, until the next batch takes its place.
        model.execute_decoupled(two, answers.deliver, answers.cancel_with)
        seen = {answers.next() for _ in range(2)}
        assert seen == {(0, ABANDONED, True), (1, ABANDONED, True)}


def test_a_sender_that_is_let_go_of_holds_up_no_model_that_is_not_decoupled(
    tmp_path: Path,
) -> None:
    code = """
    import threading
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            for r in requests:
                sender = r.get_response_sender()
                threading.Thread(target=self.die, args=(sender,)).start()

        def die(self, sender):
            raise ValueError("in a thread")
    """
    with running(tmp_path, code) as model:
        (answer,) = model.execute_requests([call(1)])
        assert failure(answer)[1] == ABANDONED


def test_a_decoupled_model_that_raises_fails_what_is_open(tmp_path: Path) -> None:
    code = """
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            requests[0].get_response_sender().send(flags=1)
            raise ValueError("late")
    """
    answers = Answers()
    with loaded(source(tmp_path, code, decoupled=True)) as model:
        assert isinstance(model, DecoupledPythonModel)
        first, second = model.execute_decoupled(
            [call(1), call(2)], answers.deliver, answers.cancel_with
        )
        assert answers.next() == (0, None, True)
    assert first is None
    assert "ValueError: late" in failure(second)[1]


READINESS = """
import asyncio, os, threading, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.go_on = threading.Event()

    {head} is_ready(self):
        {body}

    def execute(self, requests):
        self.go_on.set()
        return [pb_utils.InferenceResponse([r.inputs()[0].renamed("OUT")])
                for r in requests]
"""


@pytest.mark.parametrize(
    ("head", "body", "is_ready"),
    [
        ("def", "return True", True),
        ("def", "return False", False),
        ("def", "raise ValueError('not well')", False),
        ("def", "return 1", False),
        ("async def", "await asyncio.sleep(0); return True", True),
        ("async def", "await asyncio.sleep(0); return False", False),
        ("def", "os._exit(3)", False),
    ],
)
@pytest.mark.parametrize("decoupled", [False, True])
def test_a_model_says_itself_whether_it_is_ready(
    tmp_path: Path, head: str, body: str, is_ready: bool, decoupled: bool
) -> None:
    code = READINESS.format(head=head, body=body)
    with loaded(source(tmp_path, code, decoupled=decoupled)) as model:
        assert model.is_ready() is is_ready


def test_a_model_without_an_opinion_is_ready_while_its_process_lives(
    tmp_path: Path,
) -> None:
    code = """
    import os, pathlib
    class TritonPythonModel:
        def initialize(self, args):
            again = pathlib.Path(args["model_repository"]) / "again"
            if again.exists():
                raise ValueError("not again")
            again.touch()

        def execute(self, requests):
            os._exit(1)
    """
    with running(tmp_path, code) as model:
        assert model.is_ready()
        with pytest.raises(BackendError):
            model.execute_requests([call(1)])
        assert not model.is_ready()


def test_a_model_is_asked_beside_its_executions(tmp_path: Path) -> None:
    # Only an execution lets it answer.
    code = READINESS.format(head="def", body="return self.go_on.wait(60)")
    with running(tmp_path, code) as model, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(model.is_ready) for _ in range(2)]
        assert all_values(model.execute_requests([call(7)])) == [[7]]
        assert [one.result(WAIT_S) for one in asked] == [True, True]


def test_a_process_that_dies_says_that_sequences_are_forgotten_before_its_batch_fails(
    tmp_path: Path,
) -> None:
    forgotten: list[str] = []
    code = response("[len(self.kept)]", "self.kept.append(1); x[0] and os._exit(1)")
    with running(tmp_path, code) as model:
        model.when_forgotten(lambda: forgotten.append("now"))
        with pytest.raises(BackendError, match="is not healthy"):
            model.execute_requests([call(1)])
        assert forgotten == ["now"]
        model.execute_requests([call(0)])


def test_what_belongs_to_a_sequence_is_not_executed_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, IDENTITY) as model:
        model.when_forgotten(lambda: None)
        child = model._conversation.child.healthy()
        # The worker has not noticed when the batch comes.
        monkeypatch.setattr(model._conversation.child, "healthy", lambda: child)
        child.kill()
        with pytest.raises(BackendError, match="is not healthy"):
            model.execute_requests([call(1)])


AGAIN = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        self.count += 1
        if self.count % 3:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return {returned}
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", np.array([self.count], np.int32))])
"""


def test_a_model_may_want_a_request_back(tmp_path: Path) -> None:
    with running(tmp_path, AGAIN.format(returned="None")) as model:
        first, second, third = model.execute_requests([call(0)] * 3)
        assert (first, second) == (Rescheduled(), Rescheduled())
        assert values(third) == [3]


def test_what_is_wanted_back_is_not_answered(tmp_path: Path) -> None:
    returned = "pb_utils.InferenceResponse([])"
    with running(tmp_path, AGAIN.format(returned=returned)) as model:
        (answer,) = model.execute_requests([call(0)])
    assert "Expected a None object" in failure(answer)[1]


@pytest.mark.parametrize("flags", [0, 3])
def test_release_flags_that_nobody_knows_are_refused(
    tmp_path: Path, flags: int
) -> None:
    code = response("x", f"r.set_release_flags({flags})")
    with running(tmp_path, code) as model:
        (answer,) = model.execute_requests([call(0)])
    assert f"unknown release flags: {flags}" in failure(answer)[1]


def test_a_decoupled_model_may_answer_and_want_a_request_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.left = 2

    def execute(self, requests):
        for request in requests:
            self.left -= 1
            response = pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", np.array([self.left], np.int32))])
            request.get_response_sender().send(response, 0 if self.left else 1)
            if self.left:
                request.set_release_flags(
                    pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
"""
    answers = Answers()
    with loaded(source(tmp_path, code, decoupled=True)) as model:
        assert isinstance(model, DecoupledPythonModel)

        def execute() -> list[object]:
            return list(
                model.execute_decoupled([call(0)], answers.deliver, answers.cancel_with)
            )

        # Its answer comes late, but not too late.
        streamed, has_ended = model._streamed, threading.Event()

        def streamed_late(frame: Frame) -> None:
            has_ended.wait(0.2)
            streamed(frame)

        monkeypatch.setattr(model._conversation, "_on_streamed", streamed_late)
        assert execute() == [Rescheduled()]
        has_ended.set()
        assert answers.next() == (0, [1], False)
        assert execute() == [None]
        assert answers.next() == (0, [0], True)
    assert answers.all.empty()
