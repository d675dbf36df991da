"""A puppet worker whose outputs are the sums of its inputs, plus one."""

from protos import inference_pb2 as pb
from protos import worker_pb2
from tests.unit.router.running import PuppetWorker


def raw(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True) * 16


def value_of(content: bytes) -> int:
    return int.from_bytes(content[:4], "little", signed=True)


def sums(batch: list[pb.ModelInferRequest]) -> worker_pb2.BatchResponse:
    """Return the answers to a batch: each output is the sum of the inputs, plus one."""
    replies = []
    for request in batch:
        total = sum(map(value_of, request.raw_input_contents)) + 1
        names = [output.name for output in request.outputs]
        reply = pb.ModelInferResponse(
            model_name=request.model_name,
            model_version="1",
            id=request.id,
            outputs=[
                pb.ModelInferResponse.InferOutputTensor(
                    name=name, datatype="INT32", shape=request.inputs[0].shape
                )
                for name in names
            ],
            raw_output_contents=[raw(total)] * len(names),
        )
        replies.append(worker_pb2.Reply(response=reply.SerializeToString()))
    return worker_pb2.BatchResponse(reply=replies)


def add(worker: PuppetWorker) -> list[pb.ModelInferRequest]:
    """Answer the next batch."""
    batch = worker.next_batch()
    worker.answers.put(sums(batch))
    return batch
