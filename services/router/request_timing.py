"""A request's own times, for the client that asked for them.

With the request parameter ``nereid_timing: true`` the response carries them as
parameters. They are appended to the finished response: protobuf merges.
"""

from collections.abc import Mapping
from typing import Final

from protos import inference_pb2 as pb

TIMING_PARAMETER: Final = "nereid_timing"
# As Server-Timing names them, and the parameters with their durations.
_METRICS: Final = {
    "queue": "nereid_queue_ns",
    "input": "nereid_compute_input_ns",
    "infer": "nereid_compute_infer_ns",
    "output": "nereid_compute_output_ns",
}
_DESCRIBED: Final = {
    "batch": "nereid_batch_size",
    "retries": "nereid_retries",
}
_NAMED: Final = {"worker": "nereid_worker", "version": "nereid_version"}

Parameters = Mapping[str, pb.InferParameter]


def timing_suffix(
    *,
    queue_ns: int,
    batch_size: int,
    timing: tuple[int, int, int],
    retries: int,
    worker: str,
    version: str,
) -> bytes:
    """Return what to append to a serialized ModelInferResponse.

    Args:
        queue_ns: From admission to the dispatch of its batch.
        batch_size: Rows of the whole batch.
        timing: What the worker measured of the batch: input, infer, output; ns.
        retries: How often it had been sent to a worker that was lost.
        worker: Which executed it.
        version: Of the model.
    """
    numbers = {
        "nereid_queue_ns": max(queue_ns, 0),
        "nereid_batch_size": batch_size,
        "nereid_compute_input_ns": timing[0],
        "nereid_compute_infer_ns": timing[1],
        "nereid_compute_output_ns": timing[2],
        "nereid_retries": retries,
    }
    texts = {"nereid_worker": worker, "nereid_version": version}
    parameters = {
        **{name: pb.InferParameter(int64_param=n) for name, n in numbers.items()},
        **{name: pb.InferParameter(string_param=text) for name, text in texts.items()},
    }
    return pb.ModelInferResponse(parameters=parameters).SerializeToString()


def server_timing(parameters: Parameters) -> str:
    """Return the header Server-Timing that tells of them; "" if there are none.

    Source: W3C Server Timing; durations are milliseconds.
    """
    if "nereid_queue_ns" not in parameters:
        return ""
    parts = [
        f"{name};dur={parameters[key].int64_param / 1e6:.6g}"
        for name, key in _METRICS.items()
    ]
    parts += [
        f'{name};desc="{parameters[key].int64_param}"'
        for name, key in _DESCRIBED.items()
    ]
    parts += [
        f'{name};desc="{_quotable(parameters[key].string_param)}"'
        for name, key in _NAMED.items()
    ]
    return ", ".join(parts)


def _quotable(text: str) -> str:
    return "".join(
        c for c in text if c.isascii() and c.isprintable() and c not in '"\\'
    )
