"""A dynamic batcher the usual way: an asyncio queue and a future for each request."""

import asyncio
from typing import Never

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from tests.bench.baseline_aio.batching import join, rows_of, split


class Batcher:
    """Sends what has gathered whenever the worker is free.

    Attributes:
        request_count: Answered so far.
        row_count: In those requests.
        execution_count: Batches sent so far.
    """

    def __init__(
        self,
        worker: "inference_pb2_grpc.GRPCInferenceServiceAsyncStub",
        max_batch_size: int,
    ) -> None:
        """Start with nothing gathered."""
        self.request_count = self.row_count = self.execution_count = 0
        self._worker = worker
        self._max_batch_size = max(1, max_batch_size)
        self._arrivals: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._left_over: _Waiting | None = None

    async def infer(self, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
        """Return the answer to one request, which shares its execution."""
        answer: asyncio.Future[pb.ModelInferResponse] = asyncio.Future()
        self._arrivals.put_nowait((request, answer))
        return await answer

    async def run(self) -> Never:
        """Form batches for ever, one at a time."""
        while True:
            batch = await self._gather()
            requests = [request for request, _ in batch]
            try:
                response = await self._worker.ModelInfer(join(requests))
            except Exception as error:  # noqa: BLE001  it goes to those who wait
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), one in zip(batch, split(response, requests), strict=True):
                if not answer.done():
                    answer.set_result(one)
            self.request_count += len(batch)
            self.row_count += sum(map(rows_of, requests))
            self.execution_count += 1

    async def _gather(self) -> "list[_Waiting]":
        """Wait for a request, then take what else is there, up to a full batch."""
        batch = [self._left_over or await self._arrivals.get()]
        self._left_over = None
        rows = rows_of(batch[0][0])
        while rows < self._max_batch_size and not self._arrivals.empty():
            waiting = self._arrivals.get_nowait()
            rows += rows_of(waiting[0])
            if rows > self._max_batch_size:
                self._left_over = waiting
                break
            batch.append(waiting)
        return batch


_Waiting = tuple[pb.ModelInferRequest, "asyncio.Future[pb.ModelInferResponse]"]
