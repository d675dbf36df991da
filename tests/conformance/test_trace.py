"""The trace extension through NVIDIA's clients, and the files that come of it."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.stack import Stack, build_demo, running_stack, started_stack

pytestmark = pytest.mark.timeout(120)

HTTP, GRPC = tritonclient.http, tritonclient.grpc
COMPUTE = (
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "INFER_RESPONSE_COMPLETE",
    "REQUEST_END",
)
FIRST = ("HTTP_RECV_START", "HTTP_RECV_END"), ("HTTP_SEND_START", "HTTP_SEND_END")
SECOND = (
    ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
    ("GRPC_SEND_START", "GRPC_SEND_END"),
)


class Traced:
    """A stack that traces, and its files."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.file = folder / "trace.json"

    def client(self, module: Any) -> Any:  # noqa: ANN401 - untyped clients
        port = self.stack.http if module is HTTP else self.stack.grpc
        return module.InferenceServerClient(f"127.0.0.1:{port}")

    def infer(self, module: Any, count: int = 1, **how: Any) -> None:  # noqa: ANN401
        client = self.client(module)
        tensors = []
        for name in ("INPUT0", "INPUT1"):
            tensor = module.InferInput(name, [1, 16], "INT32")
            tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
            tensors.append(tensor)
        for _ in range(count):
            client.infer("simple", tensors, **how)

    def settings(self, module: Any = HTTP, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
        client = self.client(module)
        if changes:
            answer = client.update_trace_settings(settings=changes)
        else:
            answer = client.get_trace_settings()
        return plain(answer)

    def indexed(self) -> list[Path]:
        """Return the files with an index, in order."""
        found = self.file.parent.glob("trace.json.*")
        return sorted(found, key=lambda path: int(path.suffix[1:]))


def plain(answer: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a client's answer as REST has it."""
    if isinstance(answer, dict):
        return answer
    settings = {name: list(each.value) for name, each in answer.settings.items()}
    return {n: v if n == "trace_level" else v[0] for n, v in settings.items()}


def requests_in(path: Path) -> list[dict[str, Any]]:
    """Return what each traced request's records say, together."""
    requests: dict[int, dict[str, Any]] = {}
    for record in json.loads(path.read_text()):
        request = requests.setdefault(record["id"], {"times": {}, "tensors": {}})
        if "model_name" in record:
            request |= record
        for timestamp in record.get("timestamps", ()):
            request["times"][timestamp["name"]] = timestamp["ns"]
        if "tensor" in record:
            request["tensors"][record["activity"], record["tensor"]["name"]] = record[
                "tensor"
            ]
    return list(requests.values())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return build_demo(folder, "--only", "simple")


@pytest.fixture(scope="module")
def traced(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traces")
    flags = [f"--trace-config=triton,file={folder / 'trace.json'}"]
    flags += ["--trace-config=level=OFF", "--trace-config=rate=1"]
    with running_stack(models, *flags) as stack:
        yield Traced(stack, folder)


@pytest.fixture(autouse=True)
def _as_at_the_start(traced: Traced) -> Iterator[None]:
    """Clear what a test has set."""
    yield
    names = ("trace_level", "trace_rate", "trace_count", "log_frequency")
    client = traced.client(HTTP)
    for model in ("simple", None):
        client.update_trace_settings(model, dict.fromkeys(names))


@pytest.mark.parametrize("module", [HTTP, GRPC])
def test_settings_fall_back_and_are_cleared(traced: Traced, module: Any) -> None:  # noqa: ANN401
    client = traced.client(module)
    start = plain(client.get_trace_settings())
    assert start == {
        "trace_level": ["OFF"],
        "trace_rate": "1",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": str(traced.file),
        "trace_mode": "triton",
    }
    changes = {"trace_rate": "3", "trace_level": ["TENSORS", "TIMESTAMPS"]}
    own = plain(client.update_trace_settings("simple", changes))
    assert own == start | {"trace_rate": "3", "trace_level": ["TIMESTAMPS", "TENSORS"]}
    client.update_trace_settings(settings={"log_frequency": "7"})
    assert plain(client.get_trace_settings("simple"))["log_frequency"] == "7"
    cleared = dict.fromkeys(("trace_rate", "trace_level"))
    assert plain(client.update_trace_settings("simple", cleared)) == start | {
        "log_frequency": "7"
    }


@pytest.mark.parametrize("module", [HTTP, GRPC])
@pytest.mark.parametrize(
    ("model", "changes", "text"),
    [
        ("nope", {"trace_rate": "2"}, "Request for unknown model : nope"),
        (None, {"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
        (None, {"trace_file": "x"}, "trace file location can not be updated"),
        (None, {"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level"),
    ],
)
def test_what_makes_no_sense_is_refused(
    traced: Traced,
    module: Any,  # noqa: ANN401
    model: str | None,
    changes: dict[str, Any],
    text: str,
) -> None:
    with pytest.raises(InferenceServerException, match=text):
        traced.client(module).update_trace_settings(model, changes)


@pytest.mark.parametrize(("module", "ends"), [(HTTP, FIRST), (GRPC, SECOND)])
def test_a_request_leaves_every_time_in_its_order(
    traced: Traced,
    module: Any,  # noqa: ANN401
    ends: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    before = traced.indexed()
    traced.settings(trace_level=["TIMESTAMPS"], trace_count="1")
    traced.infer(module, request_id="named")
    assert traced.settings()["trace_count"] == "0"
    traced.infer(module)
    traced.settings(trace_level=["OFF"])
    (path,) = set(traced.indexed()) - set(before)
    (request,) = requests_in(path)
    assert (request["model_name"], request["model_version"]) == ("simple", 1)
    assert request["request_id"] == "named"
    assert tuple(request["times"]) == (*ends[0], *COMPUTE, *ends[1])
    assert list(request["times"].values()) == sorted(request["times"].values())


def test_tensors_are_written_in_words(traced: Traced) -> None:
    before = traced.indexed()
    traced.settings(trace_level=["TENSORS"], log_frequency="1")
    traced.infer(HTTP)
    traced.settings(trace_level=["OFF"])
    (path,) = set(traced.indexed()) - set(before)
    (request,) = requests_in(path)
    assert request["times"] == {}
    assert request["tensors"]["TENSOR_QUEUE_INPUT", "INPUT1"]["data"] == ",".join(
        ["1"] * 16
    )
    assert request["tensors"]["TENSOR_BACKEND_OUTPUT", "OUTPUT0"] == {
        "name": "OUTPUT0",
        "data": ",".join(["2"] * 16),
        "shape": "1,16",
        "dtype": "INT32",
    }


def test_one_of_rate_is_traced_and_a_file_has_as_many_as_asked(traced: Traced) -> None:
    before = traced.indexed()
    traced.settings(trace_level=["TIMESTAMPS"], trace_rate="2", log_frequency="3")
    traced.infer(GRPC, count=17)
    traced.settings(trace_level=["OFF"])
    new = [path for path in traced.indexed() if path not in before]
    assert [len(requests_in(path)) for path in new] == [3, 3, 2]


def test_with_tracing_off_nothing_is_written(traced: Traced) -> None:
    before = traced.indexed()
    traced.infer(HTTP, count=2)
    traced.settings(trace_level=["OFF"])
    assert traced.indexed() == before


def test_what_is_left_is_written_when_the_stack_stops(
    models: Path, tmp_path: Path
) -> None:
    file = tmp_path / "trace.json"
    flags = ["--trace-level=TIMESTAMPS", "--trace-rate=1", f"--trace-file={file}"]
    with started_stack(models, *flags) as stack:
        stack.wait_ready()
        Traced(stack, tmp_path).infer(GRPC, count=5)
    requests = requests_in(file)
    assert Counter(request["model_name"] for request in requests) == {"simple": 5}
    assert [request["id"] for request in requests] == [1, 2, 3, 4, 5]


def test_an_answer_of_the_cache_has_no_times_of_an_execution(
    models: Path, tmp_path: Path
) -> None:
    cached = tmp_path / "models"
    shutil.copytree(models, cached)
    with (cached / "simple" / "config.pbtxt").open("a") as config:
        config.write("\nresponse_cache { enable: true }\n")
    file = tmp_path / "trace.json"
    flags = [f"--trace-config=triton,file={file}", "--trace-config=rate=1"]
    flags += ["--trace-config=level=TIMESTAMPS", "--cache-config=local,size=1048576"]
    with running_stack(cached, *flags) as stack:
        Traced(stack, tmp_path).infer(HTTP, count=2)
    missed, hit = requests_in(file)
    assert tuple(missed["times"]) == (*FIRST[0], *COMPUTE, *FIRST[1])
    executed = [name for name in COMPUTE if name.startswith("COMPUTE_")]
    assert not set(executed) & hit["times"].keys()
    assert {"REQUEST_START", "QUEUE_START", "REQUEST_END"} <= hit["times"].keys()
    assert list(hit["times"].values()) == sorted(hit["times"].values())
