"""A response cache in control's Redis, shared by two routers of one stack."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.chaos.load import wait_until
from tests.support.ports import free_ports
from tests.support.stack import NEREID, ROOT, Stack, running_stack

pytestmark = pytest.mark.timeout(180)

# Answers how often it has executed: a response that was kept shows.
MODEL: Final = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.count += 1
            output = pb_utils.Tensor("COUNT", np.array([[self.count]], np.int32))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""
CACHE: Final = "--cache-config=redis,size=1000000,ttl=600"
CONFIG: Final = """
backend: "python"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
response_cache { enable: true }
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("models")
    version = repository / "counted" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    with running_stack(
        repository, "--cache-config=redis,size=1000000,ttl=600"
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        yield client


@contextlib.contextmanager
def second_router(stack: Stack) -> Iterator[triton.InferenceServerClient]:
    """Start one more router of the stack; yield a client of it."""
    command = stack.processes()[stack.process_of("router")]
    control = re.search(r"--control=\S+", command)
    assert control is not None
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        flags = [f"--grpc-port={port}", "--grpc-address=127.0.0.1", control.group()]
        flags += [f"--internal-listen=unix:{directory}/router.sock", CACHE]
        process = subprocess.Popen([NEREID, "router", *flags], cwd=ROOT)
        try:
            with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
                wait_until(lambda: is_ready(client), within_s=30)
                yield client
        finally:
            process.terminate()
            process.wait(30)


def is_ready(client: triton.InferenceServerClient) -> bool:
    try:
        return bool(client.is_model_ready("counted"))
    except InferenceServerException:
        return False


def ask(client: triton.InferenceServerClient, value: int) -> int:
    """Return how often the model had executed when this was answered."""
    tensor = triton.InferInput("X", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    result: Any = client.infer("counted", [tensor], client_timeout=30)
    return int(result.as_numpy("COUNT")[0, 0])


def ask_until_kept(client: triton.InferenceServerClient, value: int) -> int:
    """Ask until two answers are the same: the first is kept a moment later."""
    answers = [ask(client, value)]

    def is_kept() -> bool:
        answers.append(ask(client, value))
        return answers[-1] == answers[-2]

    wait_until(is_kept, within_s=30)
    return answers[-1]


def counts(client: triton.InferenceServerClient) -> dict[str, int]:
    (stats,) = client.get_inference_statistics("counted").model_stats
    told = stats.inference_stats
    return {
        "hit": told.cache_hit.count,
        "miss": told.cache_miss.count,
        "success": told.success.count,
        "executed": stats.execution_count,
    }


def test_what_one_router_was_answered_another_need_not_ask(
    stack: Stack, client: triton.InferenceServerClient
) -> None:
    kept = ask_until_kept(client, 1)
    with second_router(stack) as other:
        assert ask(other, 1) == kept
        assert ask(other, 2) != kept


def test_hits_and_misses_are_counted_and_on_the_metrics_page(
    stack: Stack, client: triton.InferenceServerClient
) -> None:
    before = counts(client)
    ask_until_kept(client, 3)
    ask(client, 3)
    after = counts(client)
    hits, misses = (after[kind] - before[kind] for kind in ("hit", "miss"))
    assert hits >= 2
    assert misses >= 1
    assert after["success"] - before["success"] == hits + misses
    assert after["executed"] - before["executed"] == misses
    url = f"http://127.0.0.1:{stack.metrics}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        page = answer.read().decode()
    labels = r'\{model="counted",version="1"\}'
    for name, count in (("hits", after["hit"]), ("misses", after["miss"])):
        pattern = rf"^nv_cache_num_{name}_per_model{labels} {count}$"
        assert re.search(pattern, page, re.MULTILINE), page


def test_a_redis_that_hangs_is_a_miss_and_no_error(
    stack: Stack, client: triton.InferenceServerClient
) -> None:
    kept = ask_until_kept(client, 4)
    valkey = stack.process_of("redis")
    os.kill(valkey, signal.SIGSTOP)
    try:
        answers = [ask(client, 4) for _ in range(10)]
        assert kept not in answers
        assert len(set(answers)) == 10
    finally:
        os.kill(valkey, signal.SIGCONT)
    wait_until(lambda: ask(client, 4) == ask(client, 4), within_s=30)
