"""Several requests as one, and its response as several. Pure."""

from collections.abc import Sequence

from protos import inference_pb2 as pb


def rows_of(request: pb.ModelInferRequest) -> int:
    """Return the first dimension of the inputs."""
    return request.inputs[0].shape[0]


def join(requests: Sequence[pb.ModelInferRequest]) -> pb.ModelInferRequest:
    """Return one request with the rows of all.

    Args:
        requests: With the same inputs, all in raw_input_contents.
    """
    joined = pb.ModelInferRequest(model_name=requests[0].model_name)
    rows = sum(rows_of(request) for request in requests)
    for index, tensor in enumerate(requests[0].inputs):
        joined.inputs.add(
            name=tensor.name,
            datatype=tensor.datatype,
            shape=[rows, *tensor.shape[1:]],
        )
        joined.raw_input_contents.append(
            b"".join(request.raw_input_contents[index] for request in requests)
        )
    return joined


def split(
    response: pb.ModelInferResponse, requests: Sequence[pb.ModelInferRequest]
) -> list[pb.ModelInferResponse]:
    """Return the response of each request.

    Args:
        response: To the joined request; each output has its rows.
        requests: Those that were joined.
    """
    total = sum(rows_of(request) for request in requests)
    answers = []
    first_row = 0
    for request in requests:
        rows = rows_of(request)
        answer = pb.ModelInferResponse(
            model_name=response.model_name,
            model_version=response.model_version,
            id=request.id,
        )
        for tensor, raw in zip(
            response.outputs, response.raw_output_contents, strict=True
        ):
            row_bytes = len(raw) // total
            answer.outputs.add(
                name=tensor.name,
                datatype=tensor.datatype,
                shape=[rows, *tensor.shape[1:]],
            )
            answer.raw_output_contents.append(
                raw[first_row * row_bytes : (first_row + rows) * row_bytes]
            )
        answers.append(answer)
        first_row += rows
    return answers
