"""Triton's rate limiter: models that share resources, as their clients see them.

Each execution writes down when it began and ended, so that what overlapped and who
came when is known exactly.
"""

import concurrent.futures
import itertools
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

MODEL: Final = """
import itertools
import json
import pathlib
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.delay_s = int(config["parameters"]["delay_ms"]["string_value"]) / 1000
        folder = pathlib.Path(args["model_repository"])
        self.log = (folder / f"{args['model_instance_name']}.log").open("a")

    def execute(self, requests):
        began = time.monotonic_ns()
        time.sleep(self.delay_s)
        print(began, time.monotonic_ns(), len(requests), file=self.log, flush=True)
        name = lambda r: pb_utils.get_input_tensor_by_name(r, "X").as_numpy()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", name(r))])
            for r in requests
        ]
"""
TENSORS: Final = """
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
SEQUENCE: Final = """
sequence_batching { control_input [ { name: "START" control {
  kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } ] }
"""
CLIENTS: Final = 8
EXECUTIONS: Final = 30


@dataclass(frozen=True, slots=True, order=True)
class Execution:
    """What a model has written down; ns of one clock."""

    began: int
    ended: int
    requests: int
    model: str


def write(
    root: Path,
    name: str,
    *groups: str,
    delay_ms: int = 5,
    batching: str = "",
    max_batch_size: int = 4,
) -> None:
    version = root / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    instance_groups = ", ".join(
        f"{{ kind: KIND_CPU count: 1 rate_limiter {{ {group} }} }}" for group in groups
    )
    (root / name / "config.pbtxt").write_text(
        f'backend: "python" max_batch_size: {max_batch_size} {TENSORS} {batching}\n'
        f"instance_group [ {instance_groups} ]\n"
        f'parameters {{ key: "delay_ms" value {{ string_value: "{delay_ms}" }} }}\n'
    )


def needs(*resources: tuple[str, int], priority: int = 1) -> str:
    """Return a rate_limiter; a resource with a capital is global."""
    texts = [
        f'{{ name: "{name}" count: {count} global: {str(name.isupper()).lower()} }}'
        for name, count in resources
    ]
    return f"resources [ {', '.join(texts)} ] priority: {priority}"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write(root, "first", needs(("r", 4)))
    write(root, "second", needs(("r", 2), ("G", 2), priority=2))
    write(root, "beside", needs(("s", 1)), delay_ms=30)
    write(root, "beside_too", needs(("s", 1)), delay_ms=30)
    # All sizes are preferred, so that only the limiter can hold a batch back.
    preferred = "preferred_batch_size: [ 1, 2, 3, 4 ]"
    write(
        root,
        "pair",
        needs(("p", 4)),
        needs(("p", 2), ("G", 2), priority=2),
        batching=f"dynamic_batching {{ {preferred} }}",
        delay_ms=60,
    )
    write(
        root,
        "tale",
        *(needs(("t", 1), priority=n) for n in (1, 2, 3)),
        batching=SEQUENCE,
        max_batch_size=1,
    )
    write(root, "greedy", needs(("r", 5)))
    write(root, "unheard_of", needs(("none", 1)))
    write(root, "conflicting", needs(("r", 1)).replace("false", "true"))
    write(root, "free", "priority: 3")
    return root


@pytest.fixture(scope="module")
def stack(repository: Path) -> Iterator[Stack]:
    loaded = ("first", "second", "beside", "beside_too", "pair", "tale", "free")
    amounts = ("r:4", "G:2", "s:2", "p:4", "t:2:0", "t:0:1")
    with running_stack(
        repository,
        "--model-control-mode=explicit",
        "--rate-limit=execution_count",
        *(f"--load-model={model}" for model in loaded),
        *(f"--rate-limit-resource={amount}" for amount in amounts),
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        yield client


def infer(client: triton.InferenceServerClient, model: str, **sequence: object) -> None:
    tensor = triton.InferInput("X", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[7]], np.int32))
    result: Any = client.infer(model, [tensor], **sequence)
    assert result.as_numpy("Y").tolist() == [[7]]


def executions(repository: Path, *models: str) -> list[Execution]:
    """Return what these models have executed, in order."""
    found = [
        Execution(int(began), int(ended), int(requests), model)
        for model in models
        for log in (repository / model).glob("*.log")
        for began, ended, requests in map(str.split, log.read_text().splitlines())
    ]
    return sorted(found)


def keep_busy(
    client: triton.InferenceServerClient, repository: Path, *models: str
) -> list[Execution]:
    """Have each model always asked for something until one has executed enough."""
    before = executions(repository, *models)

    def ask(model: str) -> None:
        while len(executions(repository, model)) < EXECUTIONS:
            infer(client, model)
            if any(len(executions(repository, m)) >= EXECUTIONS for m in models):
                return

    with concurrent.futures.ThreadPoolExecutor(len(models) * CLIENTS) as threads:
        clients = [threads.submit(ask, m) for m in models for _ in range(CLIENTS)]
        for each in clients:
            each.result(60)
    return [each for each in executions(repository, *models) if each not in before]


def overlaps(found: list[Execution]) -> int:
    """Return how many executions began before the one before them had ended."""
    pairs = itertools.pairwise(found)
    return sum(second.began < first.ended for first, second in pairs)


def test_models_that_want_the_same_resource_take_turns_by_their_priority(
    client: triton.InferenceServerClient, repository: Path
) -> None:
    found = keep_busy(client, repository, "first", "second")
    assert overlaps(found) == 0
    both = [each.model for each in found]
    # While both are asked: the clients of one begin later, and end later.
    begin = max(both.index("first"), both.index("second"))
    end = min(len(both) - both[::-1].index(model) for model in ("first", "second"))
    both = both[begin:end]
    ratio = both.count("first") / both.count("second")
    assert 1.6 < ratio < 2.5, f"{ratio}: priority 2 has half as many turns"


def test_models_for_whom_there_is_enough_execute_at_the_same_time(
    client: triton.InferenceServerClient, repository: Path
) -> None:
    models = ("beside", "beside_too")
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: infer(client, models[n % 2]), range(24)))
    assert overlaps(executions(repository, *models)) > 0


def test_a_batch_grows_while_its_instance_waits_for_resources(
    client: triton.InferenceServerClient, repository: Path
) -> None:
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: infer(client, "pair"), range(96)))
    found = executions(repository, "pair")
    assert overlaps(found) == 0  # of the two instances
    sizes = [each.requests for each in found]
    assert sum(sizes) == 96
    # The first may be alone, and the last: all between are as large as can be.
    assert sizes[1:-4] == [4] * len(sizes[1:-4])


def test_a_sequence_stays_on_its_instance_whoever_would_be_first(
    client: triton.InferenceServerClient, repository: Path
) -> None:
    for number in range(9):
        flags = {"sequence_start": number == 0, "sequence_end": number == 8}
        infer(client, "tale", sequence_id=1, **flags)
    logs = [log.read_text().splitlines() for log in (repository / "tale").glob("*.log")]
    assert sorted(map(len, logs)) == [0, 0, 9]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            "greedy",
            'Resource count for "r" is limited to 4 which will prevent scheduling of '
            "one or more model instances, the minimum required count is 5",
        ),
        (
            "unheard_of",
            'Resource count for "none" is limited to 0 which will prevent scheduling '
            "of one or more model instances, the minimum required count is 1",
        ),
        (
            "conflicting",
            'Resource "r" is present as both global and device-specific resource in '
            "the model configuration.",
        ),
    ],
)
def test_a_model_that_could_never_execute_is_not_loaded(
    client: triton.InferenceServerClient, model: str, reason: str
) -> None:
    with pytest.raises(InferenceServerException, match="load failed for model"):
        client.load_model(model)
    index = client.get_model_repository_index(as_json=True)
    (entry,) = [each for each in index["models"] if each["name"] == model]
    assert reason in entry["reason"]


def test_a_model_without_resources_is_not_limited(
    client: triton.InferenceServerClient,
) -> None:
    infer(client, "free")


def test_the_configuration_shows_the_limits(stack: Stack) -> None:
    url = f"http://127.0.0.1:{stack.http}/v2/models/second/config"
    with urllib.request.urlopen(url, timeout=30) as answer:
        (group,) = json.load(answer)["instance_group"]
    limits = group["rate_limiter"]
    assert limits["priority"] == 2
    names = [(each["name"], each["count"]) for each in limits["resources"]]
    assert names == [("r", 2), ("G", 2)]
