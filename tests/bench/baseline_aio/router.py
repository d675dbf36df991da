"""The baseline's router: ``grpc.aio``, generated stubs, an asyncio batcher.

What one writes after reading grpcio's tutorial, with the methods that
perf_analyzer asks for.
"""

# ruff: noqa: ARG002  grpcio hands a request and a context to every method

import argparse
import asyncio
from pathlib import Path

import grpc

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc, model_config_pb2
from tests.bench.baseline_aio import model_config
from tests.bench.baseline_aio.batcher import Batcher

Context = grpc.aio.ServicerContext[object, object]


class Router(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """As much of the inference service as a load generator needs.

    The generated base class refuses the rest.
    """

    def __init__(self, config: model_config_pb2.ModelConfig, batcher: Batcher) -> None:
        """Serve one model."""
        self._config = config
        self._batcher = batcher

    async def ModelInfer(
        self, request: pb.ModelInferRequest, context: Context
    ) -> pb.ModelInferResponse:
        """Infer, together with others."""
        inputs = self._config.input
        if request.model_name != self._config.name:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown model")
        if len(request.inputs) != len(inputs) or len(request.raw_input_contents) != len(
            inputs
        ):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "wrong inputs")
        return await self._batcher.infer(request)

    async def ServerLive(
        self, request: pb.ServerLiveRequest, context: Context
    ) -> pb.ServerLiveResponse:
        """Always."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(
        self, request: pb.ServerReadyRequest, context: Context
    ) -> pb.ServerReadyResponse:
        """Always: the worker is started first."""
        return pb.ServerReadyResponse(ready=True)

    async def ModelReady(
        self, request: pb.ModelReadyRequest, context: Context
    ) -> pb.ModelReadyResponse:
        """Always."""
        return pb.ModelReadyResponse(ready=True)

    async def ServerMetadata(
        self, request: pb.ServerMetadataRequest, context: Context
    ) -> pb.ServerMetadataResponse:
        """Name what perf_analyzer may use."""
        return pb.ServerMetadataResponse(
            name="baseline", version="1", extensions=["statistics"]
        )

    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        """Describe the tensors."""
        return model_config.metadata(self._config)

    async def ModelConfig(
        self, request: pb.ModelConfigRequest, context: Context
    ) -> pb.ModelConfigResponse:
        """Show the configuration."""
        return pb.ModelConfigResponse(config=self._config)

    async def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, context: Context
    ) -> pb.ModelStatisticsResponse:
        """Count requests, rows and batches."""
        batcher = self._batcher
        # perf_analyzer finds the version that worked by its queue's count.
        counted = pb.StatisticDuration(count=batcher.request_count)
        return pb.ModelStatisticsResponse(
            model_stats=[
                pb.ModelStatistics(
                    name=self._config.name,
                    version=model_config.VERSION,
                    inference_count=batcher.row_count,
                    execution_count=batcher.execution_count,
                    inference_stats=pb.InferStatistics(success=counted, queue=counted),
                )
            ]
        )


async def serve(model_directory: Path, listen: str, worker: str) -> None:
    """Serve until the process is ended."""
    config = model_config.read(model_directory)
    async with grpc.aio.insecure_channel(worker) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        batcher = Batcher(stub, config.max_batch_size)
        server = grpc.aio.server()
        inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
            Router(config, batcher),  # type: ignore[abstract]
            server,
        )
        server.add_insecure_port(listen)
        await channel.channel_ready()
        await server.start()
        await batcher.run()


def main() -> None:
    """Run the baseline's router."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True, help="its folder")
    parser.add_argument("--listen", required=True, help="HOST:PORT")
    parser.add_argument("--worker", required=True, help="gRPC target")
    options = parser.parse_args()
    asyncio.run(serve(options.model, options.listen, options.worker))


if __name__ == "__main__":
    main()
