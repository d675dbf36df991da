"""A request of a sequence, as its scheduler and its instance see it."""

from collections.abc import Callable, Hashable

from protos import inference_pb2 as pb
from services.core.backlog import Pace
from services.router.pending_request import PendingRequest
from services.router.request_split import split_request
from services.router.sequence_controls import SequenceControls, inputs_end
from services.router.streamed_replies import (
    DecoupledRequest,
    hears_of_end,
    takes_many,
)


class SequenceRequest:
    """Stands for a client's request, with its place in its sequence.

    Attributes:
        client: The client's own request.
        request: Whom answers go to: the same, or what stands for it.
        body: The client's bytes; with the control tensors once ``tell`` was called.
        number: Of the sequence's life.
        inputs_end: Where in the client's bytes its inputs end.
    """

    __slots__ = (
        "_controls",
        "attempts",
        "body",
        "client",
        "correlation_id",
        "ends",
        "enqueued_ns",
        "inputs_end",
        "number",
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
        self.client = self.request = request
        self._controls = controls
        parameters = split_request(request.body)[0].parameters
        self.correlation_id = _correlation_id(parameters.get("sequence_id"))
        self.starts = _is_true(parameters.get("sequence_start"))
        self.ends = _is_true(parameters.get("sequence_end"))
        controls.check_id(self.correlation_id)
        self.inputs_end = inputs_end(request.body)
        self.body = request.body
        self.rows = request.rows
        self.shape_key = request.shape_key
        self.enqueued_ns = request.enqueued_ns
        self.priority = request.priority
        self.timeout_ns = request.timeout_ns
        self.attempts = self.number = 0

    def begin_own(self, correlation_id: int) -> None:
        """Be a sequence of its own: the request names none.

        Raises:
            InvalidRequestError: the id does not fit the model.
        """
        self._controls.check_id(correlation_id)
        self.correlation_id = correlation_id
        self.starts, self.ends = True, False

    def tell(self) -> None:
        """Have the model told where in its sequence the request now stands."""
        self.body = self._controls.write_into(
            self.client.body,
            self.inputs_end,
            self.correlation_id,
            starts=self.starts,
            ends=self.ends,
            number=self.number,
        )

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


class StreamedSequenceRequest(SequenceRequest):
    """One whose client takes any number of responses."""

    __slots__ = ("_streamed",)

    def __init__(self, request: DecoupledRequest, controls: SequenceControls) -> None:
        """Stand for ``request``; see SequenceRequest."""
        super().__init__(request, controls)
        self._streamed = request

    @property
    def withdraw(self) -> Callable[[], None] | None:
        """What is to be called if the client leaves while a model works on it."""
        return self._streamed.withdraw

    @withdraw.setter
    def withdraw(self, value: Callable[[], None] | None) -> None:
        self._streamed.withdraw = value

    def hold(self) -> None:
        """Hear that the last response comes before the end of the execution."""
        if hears_of_end(self._streamed):
            self._streamed.hold()

    def release(self) -> None:
        """Hear that the execution has ended."""
        if hears_of_end(self._streamed):
            self._streamed.release()

    @property
    def pace(self) -> Pace | None:
        """What is called while the client reads too slowly."""
        return self._streamed.pace

    @pace.setter
    def pace(self, pace: Pace | None) -> None:
        self._streamed.pace = pace

    def respond(self, message: bytes | None, *, final: bool) -> None:
        """Give the client one response; None only says that nothing more comes."""
        self._streamed.respond(message, final=final)

    def respond_with_error(self, code: int, details: str) -> None:
        """Give the client an error, after which more may come."""
        self._streamed.respond_with_error(code, details)


def sequence_request(
    request: PendingRequest, controls: SequenceControls
) -> SequenceRequest:
    """Return what stands for ``request`` in its sequence.

    Raises:
        InvalidRequestError: the correlation id does not fit the model.
    """
    if takes_many(request):
        return StreamedSequenceRequest(request, controls)
    return SequenceRequest(request, controls)


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
        self.body = controls.write_into(
            like.client.body,
            like.inputs_end,
            0,
            starts=False,
            ends=False,
            ready=False,
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
