"""Takes samples of a server's counters on a thread while a load is on."""

import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import grpc

from protos import inference_pb2, inference_pb2_grpc
from tests.bench import process_cpu
from tests.bench.errors import BenchError
from tests.bench.window import Sample

INTERVAL_S: Final = 0.2
CALL_TIMEOUT_S: Final = 10.0


class Sampler:
    """Samples from ``with`` to its end.

    The ModelStatistics that it asks for cost the router next to nothing: five calls
    a second beside thousands.
    """

    def __init__(
        self, address: str, model: str, roles: Mapping[str, Sequence[int]]
    ) -> None:
        """Prepare.

        Args:
            address: Of the server's gRPC port.
            model: Whose requests are counted.
            roles: The server's processes.
        """
        self._channel = grpc.insecure_channel(address)
        self._stub = inference_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._request = inference_pb2.ModelStatisticsRequest(name=model)
        self._roles = roles
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: Exception | None = None
        self.samples: list[Sample] = []

    def __enter__(self) -> Self:
        """Take the first sample, then go on in the background."""
        self.samples.append(self._sample())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End.

        Raises:
            BenchError: a sample could not be taken, and nothing else has failed.
        """
        self._ended.set()
        self._thread.join(timeout=2 * CALL_TIMEOUT_S)
        self._channel.close()
        if self._failure is not None and error is None:
            raise BenchError(f"no statistics: {self._failure}") from self._failure

    def _run(self) -> None:
        try:
            while not self._ended.wait(INTERVAL_S):
                self.samples.append(self._sample())
        except (grpc.RpcError, OSError) as error:
            self._failure = error

    def _sample(self) -> Sample:
        response = self._stub.ModelStatistics(self._request, timeout=CALL_TIMEOUT_S)
        counted = response.model_stats
        return Sample(
            at_ns=time.monotonic_ns(),
            requests=sum(one.inference_stats.success.count for one in counted),
            rows=sum(one.inference_count for one in counted),
            executions=sum(one.execution_count for one in counted),
            cpu_ns=process_cpu.cpu_ns(self._roles),
        )
