"""What is noted of one request under observation.

The worker tells durations, not times; its execution is placed in the middle of the
time between dispatch and answer. Source of the names: Triton's trace extension.
"""

from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from services.router.pending_request import PendingRequest
from services.router.trace_tree import TraceTree

_START: Final = "REQUEST_START"
_QUEUED: Final = "QUEUE_START"
_COMPLETE: Final = "INFER_RESPONSE_COMPLETE"
_END: Final = "REQUEST_END"


@dataclass(slots=True, kw_only=True)
class RequestTrace:
    """What happened to one request.

    Attributes:
        model: Whose request.
        version: Of the model.
        request_id: The client's own; may be empty.
        is_step: Whether an ensemble made the request.
        timestamps: (name, monotonic nanoseconds), in order.
        keeps_tensors: Whether the next two are wanted.
        request: Serialized ModelInferRequest; empty unless tensors are wanted.
        response: Serialized ModelInferResponse; the same.
        traceparent: The caller's W3C trace context; may be empty.
        error: Why it failed; empty if it did not.
        steps: Of an ensemble, by the step's request.
        nested: What the model asked of others for its sake.
        tree: What it is part of.
    """

    model: str
    version: int
    request_id: str = ""
    is_step: bool = False
    timestamps: list[tuple[str, int]] = field(default_factory=list)
    keeps_tensors: bool = False
    request: bytes = b""
    response: bytes = b""
    traceparent: str = ""
    error: str = ""
    steps: "dict[PendingRequest, RequestTrace]" = field(default_factory=dict)
    nested: "list[RequestTrace]" = field(default_factory=list)
    tree: TraceTree = field(repr=False, compare=False)

    def begin(self, *, at_ns: int, queued_ns: int) -> None:
        """Note that the request has been admitted."""
        self.note(_START, at_ns)
        self.note(_QUEUED, queued_ns)

    def end(self, at_ns: int) -> None:
        """Note that there is a response, or an error."""
        self.note(_COMPLETE, at_ns)
        self.note(_END, at_ns)

    def note(self, name: str, at_ns: int) -> None:
        """Note a time."""
        self.timestamps.append((name, at_ns))

    def executed(
        self, dispatched_ns: int, timing: tuple[int, int, int], done_ns: int
    ) -> None:
        """Note an execution; of several, which are retries, the last counts.

        Args:
            dispatched_ns: When its batch left the queue.
            timing: What the worker measured: input, infer, output; ns.
            done_ns: When its answer was here.
        """
        input_ns, infer_ns, output_ns = timing
        elsewhere_ns = done_ns - dispatched_ns - sum(timing)
        start_ns = dispatched_ns + max(elsewhere_ns, 0) // 2
        execution = [
            ("COMPUTE_START", start_ns),
            ("COMPUTE_INPUT_END", start_ns + input_ns),
            ("COMPUTE_OUTPUT_START", start_ns + input_ns + infer_ns),
            ("COMPUTE_END", start_ns + input_ns + infer_ns + output_ns),
        ]
        if self.is_step:
            execution += [(_COMPLETE, done_ns), (_END, done_ns)]
        names = {name for name, _ in execution}
        self.timestamps = [each for each in self.timestamps if each[0] not in names]
        self.timestamps.extend(execution)
        # It may have had its last response before.
        self.timestamps.sort(key=itemgetter(1))
