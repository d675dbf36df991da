"""A router's core on a real completion queue, and a puppet worker that dials in."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc

from protos import inference_pb2 as pb
from protos import worker_pb2
from services.core.completion_queue import (
    CallFactory,
    ClientStream,
    Reactor,
    Server,
)
from services.router.dispatcher import SERVE_METHOD
from services.router.infer_call import INFER_METHOD, infer_calls
from services.router.inference import Inference
from services.router.response_cache import ResponseCache
from services.router.route_table import RouteTable
from services.router.shared_responses import SharedResponses
from services.router.stream_infer import STREAM_INFER_METHOD, stream_infer_calls
from tests.unit.router.routes import add_sub, route

# Or what makes one that needs the router's loop.
Cache = ResponseCache | SharedResponses | Callable[[Reactor], SharedResponses] | None


class PuppetWorker:
    """One instance that holds every batch until it is told to answer."""

    def __init__(self, target: str, generation: int = 1) -> None:
        hello = worker_pb2.InstanceHello(
            worker_id="puppet", model_name="simple", generation=generation
        )
        metadata = (("nereid-instance-bin", hello.SerializeToString()),)
        self.stream = ClientStream(target, SERVE_METHOD, metadata)
        self.batches: SimpleQueue[list[pb.ModelInferRequest]] = SimpleQueue()
        self.answers: SimpleQueue[worker_pb2.BatchResponse] = SimpleQueue()
        self.messages: SimpleQueue[bytes] = SimpleQueue()
        self._has_left = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (message := self.stream.receive()) is not None:
            self.messages.put(message)
            batch = worker_pb2.BatchRequest.FromString(message)
            if batch.cancelled or batch.paused or batch.resumed:
                continue
            self.batches.put(
                [pb.ModelInferRequest.FromString(r) for r in batch.request]
            )
            answer = self.answers.get().SerializeToString()
            if not self._has_left:
                self.stream.send(answer)

    def next_batch(self) -> list[pb.ModelInferRequest]:
        return self.batches.get(timeout=5)

    def answer(self, *requests: pb.ModelInferRequest) -> None:
        """Answer the batch that is held: each request with its own id."""
        replies = [
            worker_pb2.Reply(
                response=pb.ModelInferResponse(
                    model_name=r.model_name, model_version="1", id=r.id
                ).SerializeToString()
            )
            for r in requests
        ]
        self.answers.put(worker_pb2.BatchResponse(reply=replies))

    def answer_next(self) -> list[pb.ModelInferRequest]:
        batch = self.next_batch()
        self.answer(*batch)
        return batch

    def leave(self) -> None:
        """Leave in order, without having begun the batch that is held."""
        self._has_left = True
        farewell = worker_pb2.BatchResponse(farewell=True)
        self.stream.send(farewell.SerializeToString())
        self.stream.finish()

    def die(self) -> None:
        """Break the stream, with or without a batch in hand."""
        self.stream.cancel()
        self.answers.put(worker_pb2.BatchResponse())
        self._thread.join(timeout=5)
        self.stream.close()


class RunningRouter:
    """The core of a router that serves `simple`, and ways to reach it."""

    def __init__(self, directory: Path, cache: Cache = None) -> None:
        self.reactor = Reactor()
        if callable(cache):
            cache = cache(self.reactor)
        self.inference = Inference(self.reactor, lambda: None, cache=cache)
        self.target = f"unix:{directory}/router.sock"
        self._server = Server(self.reactor)
        self._server.add_hot_method(INFER_METHOD, infer_calls(self.inference))
        self._server.add_method(STREAM_INFER_METHOD, stream_infer_calls(self.inference))
        self._server.add_method(SERVE_METHOD, self.inference.dispatcher.accept)
        self._server.listen(self.target)
        self._server.start()
        self._thread = threading.Thread(target=self.reactor.run)
        self._thread.start()
        self.channel: Any = grpc.insecure_channel(self.target)
        self._workers: list[PuppetWorker] = []
        self._calls: list[Any] = []
        self.apply(RouteTable.of([route(add_sub())]))

    def serve(self, method: str, factory: CallFactory) -> None:
        """Serve one more method."""
        self.on_loop(lambda: self._server.add_method(method, factory))

    def on_loop(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the router's thread and wait for it."""
        done = threading.Event()

        def run() -> None:
            callback()
            done.set()

        self.reactor.call_soon_threadsafe(run)
        assert done.wait(30)

    def eventually(self, is_true: Callable[[], bool]) -> bool:
        """Look on the router's thread until something is true, for five seconds."""
        until_s = time.monotonic() + 5
        found: list[bool] = []
        while time.monotonic() < until_s:
            self.on_loop(lambda: found.append(is_true()))
            if found[-1]:
                return True
        return False

    def apply(self, table: RouteTable) -> threading.Event:
        """Apply ``table``; the event is set when it is in force."""
        applied = threading.Event()
        self.on_loop(lambda: self.inference.apply(table, applied.set))
        return applied

    def worker(self, generation: int = 1) -> PuppetWorker:
        self._workers.append(PuppetWorker(self.target, generation))
        return self._workers[-1]

    def infer(self, request: pb.ModelInferRequest, timeout: float = 10) -> Any:  # noqa: ANN401
        """Begin one unary inference; a grpc future of its response."""
        call = self.channel.unary_unary(
            INFER_METHOD,
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        # grpc cancels a call that nobody holds.
        self._calls.append(call.future(request, timeout=timeout))
        return self._calls[-1]

    def stream(
        self,
        requests: Iterator[pb.ModelInferRequest],
        *metadata: tuple[str, str],
        timeout: float = 10,
    ) -> Any:  # noqa: ANN401
        """Begin one streaming inference; an iterator of its responses."""
        call = self.channel.stream_stream(
            STREAM_INFER_METHOD,
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )
        return call(requests, timeout=timeout, metadata=metadata)

    def close(self) -> None:
        for worker in self._workers:
            worker.die()
        self.channel.close()

        def shutdown() -> None:
            self.inference.close()
            self._server.shutdown(self.reactor.stop)
            self._server.cancel_all_calls()

        self.reactor.call_soon_threadsafe(shutdown)
        self._thread.join(timeout=5)
        assert not self._thread.is_alive()


@contextmanager
def running_router(directory: Path, cache: Cache = None) -> Iterator[RunningRouter]:
    router = RunningRouter(directory, cache)
    try:
        yield router
    finally:
        router.close()
