"""The REST door of inference: what happens off the loop's thread, and meanwhile."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from google.api.httpbody_pb2 import HttpBody

from protos import inference_pb2 as pb
from protos import rest_pb2, worker_pb2
from services.core.completion_queue import NativeCall, NativeMetadata
from services.router.header_forwarding import NO_FORWARDING
from services.router.rest_infer_call import (
    REST_INFER_METHOD,
    RestInferCall,
    RestInferDoor,
)
from tests.unit.router.routes import add_sub_request
from tests.unit.router.running import PuppetWorker, RunningRouter, running_router

INPUTS = [
    {"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "data": [i] * 16}
    for i in (0, 1)
]


class HeldPool(Executor):
    """Holds what it is given until the test runs it, on the test's thread."""

    def __init__(self) -> None:
        self.held: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        self.held.put(lambda: fn(*args, **kwargs))
        return Future()

    def run_next(self) -> None:
        self.held.get(timeout=5)()


class Door:
    """The door in a running router, and one client before it."""

    def __init__(self, router: RunningRouter) -> None:
        self.router, self.pool = router, HeldPool()
        door = RestInferDoor(
            router.inference, router.reactor, self.pool, 1 << 30, NO_FORWARDING
        )
        self._calls: list[RestInferCall] = []

        def accept(
            call: NativeCall, method: str, metadata: NativeMetadata
        ) -> RestInferCall:
            self._calls.append(door.accept(call, method, metadata))
            return self._calls[-1]

        router.serve(REST_INFER_METHOD, accept)
        self._method = router.channel.stream_stream(REST_INFER_METHOD)
        self.call: Any = None

    def post(self, padding: int = 0) -> None:
        document = json.dumps({"inputs": INPUTS}).encode() + b" " * padding
        request = rest_pb2.RestRequest(
            model_name="simple", body=HttpBody(data=document)
        )
        self.call = self._method(iter((request.SerializeToString(),)), timeout=10)

    def leave(self) -> None:
        """Cancel the call, and wait until the router has noticed."""
        (call,) = self._calls
        self.call.cancel()
        while call.open:
            self.router.on_loop(lambda: None)

    def counted(self) -> dict[str, int]:
        taken: list[Any] = []
        self.router.on_loop(
            lambda: taken.extend(self.router.inference.statistics.take())
        )
        counts = [increments.counts for _, _, increments in taken]
        return dict(counts[0]) if counts else {}


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with running_router(tmp_path) as router:
        yield Door(router)


def answer_at_length(worker: PuppetWorker) -> None:
    """Answer the one request of a batch with more than is encoded on the loop."""
    worker.next_batch()
    response = pb.ModelInferResponse(
        model_name="simple",
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(
                name="OUTPUT0", datatype="INT32", shape=[1, 1 << 15]
            )
        ],
        raw_output_contents=[bytes(4 << 15)],
    )
    reply = worker_pb2.Reply(response=response.SerializeToString())
    worker.answers.put(worker_pb2.BatchResponse(reply=[reply]))


def test_a_long_answer_is_written_elsewhere(door: Door) -> None:
    door.post()
    answer_at_length(door.router.worker())
    door.pool.run_next()
    (piece,) = door.call
    document = json.loads(HttpBody.FromString(piece).data)
    assert document["outputs"][0]["shape"] == [1, 1 << 15]


def test_who_leaves_while_the_answer_is_written_is_counted_once(door: Door) -> None:
    door.post()
    answer_at_length(door.router.worker())
    write = door.pool.held.get(timeout=5)
    door.leave()
    write()
    counted = door.counted()
    assert counted["success.count"] == 1
    assert "fail.count" not in counted


def test_who_leaves_while_the_question_is_read_asks_nobody(door: Door) -> None:
    worker = door.router.worker()
    door.post(padding=1 << 17)
    read = door.pool.held.get(timeout=5)
    door.leave()
    read()
    door.router.infer(add_sub_request(id="next"))
    assert [request.id for request in worker.next_batch()] == ["next"]
