"""A request of a sequence, as its scheduler and its instance see it."""

from collections.abc import Hashable

from protos import inference_pb2 as pb
from services.router.pending_request import PendingRequest
from services.router.sequence_controls import SequenceControls


class SequenceRequest:
    """Stands for a client's request, with its place in its sequence.

    Its bytes are the client's with the control tensors behind them.
    """

    __slots__ = (
        "attempts",
        "body",
        "correlation_id",
        "ends",
        "enqueued_ns",
        "priority",
        "request",
        "rows",
        "shape_key",
        "starts",
        "timeout_ns",
    )

    shape_key: Hashable

    def __init__(self, request: PendingRequest, controls: SequenceControls) -> None:
        """Read the place of ``request`` from its parameters.

        Raises:
            InvalidRequestError: the correlation id does not fit the model.
        """
        self.request = request
        parameters = pb.ModelInferRequest.FromString(request.body).parameters
        self.correlation_id = _correlation_id(parameters.get("sequence_id"))
        self.starts = _is_true(parameters.get("sequence_start"))
        self.ends = _is_true(parameters.get("sequence_end"))
        self.body = request.body + controls.suffix(
            self.correlation_id, starts=self.starts, ends=self.ends
        )
        self.rows = request.rows
        self.shape_key = request.shape_key
        self.enqueued_ns = request.enqueued_ns
        self.priority = request.priority
        self.timeout_ns = request.timeout_ns
        self.attempts = 0

    @property
    def open(self) -> bool:
        """Whether the client still waits."""
        return self.request.open

    def answer(self, message: bytes) -> None:
        """Give the client a serialized ModelInferResponse."""
        self.request.answer(message)

    def fail(self, code: int, details: str) -> None:
        """Give the client an error."""
        self.request.fail(code, details)


class GapRequest:
    """Fills the row of a slot that has nothing to do: its answer is for nobody."""

    __slots__ = (
        "attempts",
        "body",
        "enqueued_ns",
        "open",
        "priority",
        "rows",
        "shape_key",
        "timeout_ns",
    )

    def __init__(self, like: SequenceRequest, controls: SequenceControls) -> None:
        """Have the tensors of ``like``, and controls that say "not ready"."""
        self.body = like.request.body + controls.suffix(
            0, starts=False, ends=False, ready=False
        )
        self.rows = like.rows
        self.shape_key: Hashable = like.shape_key
        self.enqueued_ns = like.enqueued_ns
        self.priority = self.timeout_ns = self.attempts = 0
        self.open = False

    def answer(self, message: bytes) -> None:
        """Drop the answer."""

    def fail(self, code: int, details: str) -> None:
        """Drop the error."""


def _correlation_id(value: pb.InferParameter | None) -> int | str:
    if value is None:
        return 0
    choice = value.WhichOneof("parameter_choice")
    found: int | str = getattr(value, choice) if choice else 0
    return found


def _is_true(value: pb.InferParameter | None) -> bool:
    return value is not None and value.bool_param
