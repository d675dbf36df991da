"""Five times more requests than a model can take: flat memory, quick refusals."""

import queue
import re
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(120)

# One request each 5 ms.
RATE_PER_S: Final = 200
OVERLOAD: Final = 5
DURATION_S: Final = 10.0
SETTLING_S: Final = 3.0
RECOVERY_S: Final = 2.0
BODY_BYTES: Final = 64 << 10
QUEUE_SIZE: Final = 20
# Of more than 600 MB that arrive: what an allocator keeps of its bursts.
MOST_GROWTH_KIB: Final = 24 << 10

MODEL = f"""
import threading
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            threading.Event().wait({1 / RATE_PER_S})
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            output = pb_utils.Tensor("Y", x[:, :1].copy())
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""
CONFIG = f"""
backend: "python" max_batch_size: 4
input [ {{ name: "X" data_type: TYPE_UINT8 dims: [ -1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_UINT8 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
dynamic_batching {{ default_queue_policy {{ max_queue_size: {QUEUE_SIZE} }} }}
"""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of the requests, each with the seconds that it took.

    Attributes:
        answered: Those with an answer.
        refused: Those that were turned away with a hint when to come again.
        errors: What the others were told.
    """

    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(self, call: Any, took_s: float) -> None:  # noqa: ANN401 - grpc is untyped
        if call.code() is grpc.StatusCode.OK:
            self.answered.append(took_s)
        elif call.code() is grpc.StatusCode.UNAVAILABLE and _has_hint(call):
            self.refused.append(took_s)
        else:
            self.errors.append(call.details())


def _has_hint(call: Any) -> bool:  # noqa: ANN401 - grpc is untyped
    """Tell whether a google.rpc.RetryInfo came with the error."""
    trailing = dict(call.trailing_metadata())
    return b"google.rpc.RetryInfo" in trailing.get("grpc-status-details-bin", b"")


def offer(stub: Any, rate_per_s: float, duration_s: float) -> Outcome:  # noqa: ANN401 - grpc is untyped
    """Send at a steady rate, whatever the server does; return what came of it."""
    outcome = Outcome()
    done: queue.SimpleQueue[tuple[Any, float]] = queue.SimpleQueue()
    request = service_pb2.ModelInferRequest(model_name="slow")
    request.inputs.add(name="X", datatype="UINT8", shape=[1, BODY_BYTES])
    request.raw_input_contents.append(bytes(BODY_BYTES))
    clock = threading.Event()
    count = int(rate_per_s * duration_s)
    began = time.monotonic()
    for number in range(count):
        clock.wait(max(0.0, began + number / rate_per_s - time.monotonic()))
        sent = time.monotonic()

        def heard(call: Any, sent: float = sent) -> None:  # noqa: ANN401
            done.put((call, time.monotonic() - sent))

        stub.ModelInfer.future(request, timeout=30).add_done_callback(heard)
    for _ in range(count):
        outcome.add(*done.get(timeout=30))
    return outcome


def resident_kib(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("models")
    version = repository / "slow" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (repository / "slow" / "config.pbtxt").write_text(CONFIG)
    with running_stack(repository) as running:
        yield running


def test_overload_is_refused_quickly_kept_out_of_memory_and_soon_forgotten(
    stack: Stack,
) -> None:
    router = stack.process_of("router")
    with grpc.insecure_channel(f"127.0.0.1:{stack.grpc}") as channel:
        client = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        usual = statistics.median(offer(client, RATE_PER_S / 10, 1).answered)
        warm = offer(client, RATE_PER_S * OVERLOAD, SETTLING_S)
        before = resident_kib(router)
        outcome = offer(client, RATE_PER_S * OVERLOAD, DURATION_S)
        after = resident_kib(router)
        threading.Event().wait(RECOVERY_S)
        later = offer(client, RATE_PER_S / 10, 1)
    assert warm.errors == outcome.errors == later.errors == []
    # The model is kept busy, and the rest is refused.
    assert len(outcome.answered) > RATE_PER_S * DURATION_S / 8
    assert len(outcome.refused) > len(outcome.answered)
    # What the machine and this client take is in both times; the wait in the queue
    # only in that of the answered, and nobody waits longer than the queue is long.
    waited = statistics.median(outcome.answered) - statistics.median(outcome.refused)
    assert waited > QUEUE_SIZE / RATE_PER_S / 2
    assert waited < 3 * QUEUE_SIZE * DURATION_S / len(outcome.answered)
    assert after - before < MOST_GROWTH_KIB
    assert later.refused == []
    assert statistics.median(later.answered) < usual + QUEUE_SIZE / RATE_PER_S / 2
