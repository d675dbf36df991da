"""Ten thousand requests of all kinds, processes killed at random: counted right."""

import json
import os
import random
import signal
import textwrap
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.chaos.load import wait_until
from tests.support.stack import Stack, build_demo, running_stack

pytestmark = pytest.mark.timeout(180)

REQUESTS: Final = 10_000
CLIENTS: Final = 8
KILLS: Final = ("router", "worker", "router", "worker", "router", "worker")
SEED: Final = 6
# What a killed router had counted and not reported yet, with a margin for a machine
# that has other things to do.
UNREPORTED_S: Final = 0.6
# How long after the kill a client may take its last answer.
LATE_S: Final = 0.1

MOODY = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        if x[0] < 0:
            raise ValueError("not today")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])]
"""
MOODY_CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    repository = build_demo(tmp_path / "models", "--only", "simple")
    version = repository / "moody" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(textwrap.dedent(MOODY))
    (repository / "moody" / "config.pbtxt").write_text(MOODY_CONFIG)
    with running_stack(repository) as running:
        yield running


@dataclass(slots=True, kw_only=True)
class Seen:
    """What clients saw of the requests to one model.

    Attributes:
        succeeded_s: When each answer came, on the monotonic clock.
        failed_s: When each error of the model itself came.
        refused: How many were no requests the model could have been asked.
        lost: How many got no word from the server.
    """

    succeeded_s: list[float] = field(default_factory=list)
    failed_s: list[float] = field(default_factory=list)
    refused: int = 0
    lost: int = 0


class Clients:
    """Threads that send requests of all kinds, and what they saw, by model."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._news = threading.Condition()
        self._done = 0
        self.seen = {"simple": Seen(), "moody": Seen()}
        self.strange: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(number),))  # noqa: S311
            for number in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def wait_for(self, requests: int) -> None:
        """Return once so many requests have ended."""
        with self._news:
            is_enough = self._news.wait_for(lambda: self._done >= requests, 90)
        assert is_enough, f"{self._done} of {requests} requests ended in time"

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self, chance: random.Random) -> None:
        grpc_at = f"127.0.0.1:{self._stack.grpc}"
        http_at = f"127.0.0.1:{self._stack.http}"
        with (
            triton_grpc.InferenceServerClient(grpc_at) as by_grpc,
            triton_http.InferenceServerClient(http_at, network_timeout=30) as by_http,
        ):
            doors = ((triton_grpc, by_grpc), (triton_http, by_http))
            for _ in range(REQUESTS // CLIENTS):
                module, client = doors[chance.random() < 0.2]
                model, inputs = _request(module, chance)
                try:
                    client.infer(model, inputs)
                except InferenceServerException as error:
                    self._failed(model, str(error))
                except (OSError, HTTPException) as error:
                    # An answer that breaks off is none.
                    self._failed(model, f"UNAVAILABLE: {error}")
                else:
                    self._note(self.seen[model].succeeded_s)

    def _failed(self, model: str, text: str) -> None:
        seen = self.seen[model]
        if "not today" in text:
            self._note(seen.failed_s)
            return
        with self._news:
            self._done += 1
            self._news.notify()
            if "unexpected shape" in text:
                seen.refused += 1
                return
            seen.lost += 1
            self.strange[text[:120]] += 1
        # Who is refused at once would otherwise spend all its requests on it.
        threading.Event().wait(0.02)

    def _note(self, times_s: list[float]) -> None:
        with self._news:
            times_s.append(time.monotonic())
            self._done += 1
            self._news.notify()


def _request(module: Any, chance: random.Random) -> tuple[str, list[Any]]:  # noqa: ANN401
    """Return a model and the inputs to ask it with: good, bad or refused."""
    if chance.random() < 0.1:
        value = chance.choice((-1, 1))
        return "moody", [_tensor(module, "X", np.full(1, value, np.int32))]
    # One in fifty has a shape that the model does not have.
    width = 15 if chance.random() < 0.02 else 16
    values = np.ones((chance.randint(1, 4), width), np.int32)
    return "simple", [_tensor(module, name, values) for name in ("INPUT0", "INPUT1")]


def _tensor(module: Any, name: str, values: np.ndarray) -> Any:  # noqa: ANN401
    tensor = module.InferInput(name, list(values.shape), "INT32")
    tensor.set_data_from_numpy(values)
    return tensor


def _counted(stack: Stack, model: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{stack.http}/v2/models/{model}/stats"
    with urllib.request.urlopen(url) as response:
        (stats,) = json.load(response)["model_stats"]
    found: dict[str, Any] = stats["inference_stats"]
    return found


def _kill(stack: Stack, role: str) -> float:
    """Kill a process as soon as there is one; return when."""

    def is_there() -> bool:
        return sum(f"nereid {role}" in line for line in stack.processes().values()) == 1

    wait_until(is_there, within_s=30)
    now_s = time.monotonic()
    os.kill(stack.process_of(role), signal.SIGKILL)
    return now_s


def test_what_clients_saw_is_what_was_counted_whoever_dies(stack: Stack) -> None:
    chance = random.Random(SEED)  # noqa: S311
    roles = chance.sample(KILLS, len(KILLS))
    moments = sorted(chance.sample(range(500, REQUESTS - 1000), len(KILLS)))
    clients = Clients(stack)
    router_kills_s = []
    for moment, role in zip(moments, roles, strict=True):
        clients.wait_for(moment)
        killed_s = _kill(stack, role)
        if role == "router":
            router_kills_s.append(killed_s)
    clients.join()

    def unreported(times_s: list[float]) -> int:
        return sum(
            any(-LATE_S < kill_s - at_s < UNREPORTED_S for kill_s in router_kills_s)
            for at_s in times_s
        )

    most_unheard = CLIENTS * len(router_kills_s)
    for model, seen in clients.seen.items():
        counted = _counted(stack, model)
        success, fail = counted["success"]["count"], counted["fail"]["count"]
        context = (model, success, fail, len(seen.succeeded_s), clients.strange)
        assert success >= len(seen.succeeded_s) - unreported(seen.succeeded_s), context
        assert fail >= len(seen.failed_s) - unreported(seen.failed_s), context
        assert success <= len(seen.succeeded_s) + most_unheard, context
        assert fail <= len(seen.failed_s) + min(seen.lost, most_unheard), context
        assert seen.succeeded_s
    assert clients.seen["moody"].failed_s
    assert clients.seen["simple"].refused
    total = sum(
        len(s.succeeded_s) + len(s.failed_s) + s.refused + s.lost
        for s in clients.seen.values()
    )
    assert total == REQUESTS
