"""The baseline's worker: ``grpc.aio``, generated stubs, ONNX Runtime, numpy."""

# ruff: noqa: ARG002  grpcio hands a request and a context to every method

import argparse
import asyncio
from pathlib import Path

import grpc
import numpy as np
import onnxruntime

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from services.core.datatype import DataType
from tests.bench.baseline_aio import model_config

Context = grpc.aio.ServicerContext[object, object]


class Worker(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Runs one model, one batch at a time.

    The generated base class refuses the other methods.
    """

    def __init__(self, model_directory: Path) -> None:
        """Load the model.

        One thread: more only cost on a model so small.
        """
        config = model_config.read(model_directory)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._name = config.name
        self._session = onnxruntime.InferenceSession(
            str(model_directory / model_config.VERSION / "model.onnx"),
            options,
            providers=["CPUExecutionProvider"],
        )
        self._outputs = {
            output.name: DataType.from_config(output.data_type)
            for output in config.output
        }

    async def ModelInfer(
        self, request: pb.ModelInferRequest, context: Context
    ) -> pb.ModelInferResponse:
        """Run a batch; the loop waits, as nothing else is to be done meanwhile."""
        feeds = {
            tensor.name: np.frombuffer(
                raw, DataType.from_protocol(tensor.datatype).numpy_dtype
            ).reshape(tensor.shape)
            for tensor, raw in zip(
                request.inputs, request.raw_input_contents, strict=True
            )
        }
        arrays = self._session.run(list(self._outputs), feeds)
        response = pb.ModelInferResponse(
            model_name=self._name, model_version=model_config.VERSION
        )
        for (name, datatype), array in zip(self._outputs.items(), arrays, strict=True):
            response.outputs.add(name=name, datatype=datatype.value, shape=array.shape)
            response.raw_output_contents.append(array.tobytes())
        return response


async def serve(model_directory: Path, listen: str) -> None:
    """Serve until the process is ended."""
    server = grpc.aio.server()
    inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
        Worker(model_directory),  # type: ignore[abstract]
        server,
    )
    server.add_insecure_port(listen)
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    """Run the baseline's worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True, help="its folder")
    parser.add_argument("--listen", required=True, help="gRPC address")
    options = parser.parse_args()
    asyncio.run(serve(options.model, options.listen))


if __name__ == "__main__":
    main()
