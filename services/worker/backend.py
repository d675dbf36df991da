"""What a runtime has to offer to serve models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from numpy.typing import NDArray

from services.core.datatype import DataType
from services.core.model_config import ModelConfig
from services.worker.device import Device
from services.worker.model_metrics import ModelMetrics, VersionMetrics
from services.worker.peers import Peers
from services.worker.request_details import RequestDetails

Tensors: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """What is to be loaded, and where.

    Attributes:
        config: The whole configuration when loading; what is known of it when
            inspecting.
        version: The model version.
        directory: ``<repository>/<model>/<version>``, absolute.
        device: The one this worker has.
        config_json: ``config`` as the configuration endpoint shows it.
        peers: The way to other models.
        metrics: Where instances show what they count themselves.
    """

    config: ModelConfig
    version: int
    directory: str
    device: Device
    config_json: str = "{}"
    peers: Peers = field(default_factory=Peers)
    metrics: VersionMetrics = field(default_factory=lambda: ModelMetrics().of("", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePlace:
    """One instance of a model version.

    Attributes:
        name: As Triton names it, e.g. "simple_0_0".
        group: An index into the configuration's instance groups.
    """

    name: str
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTensor:
    """An input or output as the model file declares it.

    Attributes:
        name: In the file.
        datatype: Of its elements.
        shape: Full, a batch dimension included; -1 where the file leaves it open.
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """What a model file says about its tensors.

    Attributes:
        inputs: In the file's order.
        outputs: In the file's order.
        max_rows: How long a first dimension that varies may be at most, where it is
            the same one in all tensors; 0: it is not, the model cannot batch; None:
            the file does not tell.
    """

    inputs: tuple[FoundTensor, ...]
    outputs: tuple[FoundTensor, ...]
    max_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedConfig:
    """The whole configuration, completed by the model itself, as JSON."""

    json: str


class Backend(Protocol):
    """One model instance, loaded on one device.

    Exactly one Instance owns it and calls it from one thread at a time, so it
    needs no locks and may keep device memory between calls. Instances of one
    model may share what their runtime shares safely.
    """

    def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        """Run one batch.

        Args:
            inputs: By input name; C-contiguous ``(rows, *dims)`` in the dtype
                that the model configuration declares (BF16 as its uint16 bit
                pattern, BYTES as an object array of bytes), the same ``rows``
                for all, 1 <= rows <= max_batch_size; ``dims`` after the
                configuration's reshape. With max_batch_size 0 the shapes are
                the request's own. An optional input may be missing. Read-only,
                and valid only during the call.
            output_names: The outputs somebody asked for, never empty.

        Returns:
            By output name, at least ``output_names``; ``(rows, *dims)``, row
            ``i`` answering input row ``i``, dtypes as above (BYTES also as
            str). The arrays stay valid until the next call.

        Raises:
            BackendError: the runtime failed; the batch fails, the instance
                lives on.

        Source:
            TRITONBACKEND_ModelInstanceExecute, in tritonbackend.h.
        """
        ...

    def unload(self) -> None:
        """Release everything; nothing is called afterwards."""
        ...


class RequestTensor(NamedTuple):
    """One input of a single request.

    Attributes:
        slot: Its place among the configuration's inputs.
        shape: The model's, after the configuration's reshape, rows included.
        data: As on the wire (BYTES: each element behind its length); valid only
            during the call.
    """

    slot: int
    shape: tuple[int, ...]
    data: memoryview


class BackendCall(NamedTuple):
    """One request, for a backend that takes them one by one.

    Attributes:
        request_id: The client's; may be empty.
        inputs: In the request's order.
        outputs: Indices of the configuration's outputs that are wanted.
        details: What else the client said.
    """

    request_id: str
    inputs: tuple[RequestTensor, ...]
    outputs: tuple[int, ...]
    details: RequestDetails


class ReplyTensor(NamedTuple):
    """One output of a single request.

    Attributes:
        slot: Its place among the configuration's outputs.
        datatype: Of its elements.
        shape: The model's, rows included.
        data: As on the wire; valid until the next call.
    """

    slot: int
    datatype: DataType
    shape: tuple[int, ...]
    data: memoryview


class BackendReply(NamedTuple):
    """The tensors that answer one request, and parameters for the client."""

    tensors: tuple[ReplyTensor, ...]
    parameters: Mapping[str, bool | int | float | str]


class BackendFailure(NamedTuple):
    """Why one request has no answer.

    Attributes:
        code: A google.rpc.Code.
        text: For the client.
        is_answer: Whether the model itself answered so; the execution succeeded.
    """

    code: int
    text: str
    is_answer: bool = False


class Rescheduled(NamedTuple):
    """The model wants a request executed again, in a later batch.

    Source: TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, in tritonserver.h.
    """


BackendAnswer: TypeAlias = BackendReply | BackendFailure | Rescheduled


@runtime_checkable
class RequestBackend(Protocol):
    """One model instance that takes a batch request by request.

    As with Backend, one thread at a time calls it.
    """

    def execute_requests(self, calls: Sequence[BackendCall]) -> Sequence[BackendAnswer]:
        """Run one batch.

        Returns:
            One answer for each of ``calls``, in order.

        Raises:
            BackendError: the runtime failed; the batch fails, the instance
                lives on.
        """
        ...

    def unload(self) -> None:
        """Release everything; nothing is called afterwards."""
        ...


class Deliver(Protocol):
    """Takes the answers to a decoupled batch, from any thread."""

    def __call__(
        self,
        call: int,
        answer: BackendAnswer | None,
        is_final: bool,  # noqa: FBT001 - a callback
        /,
    ) -> None:
        """Send an answer to a call.

        Waits while the client reads more slowly than it is answered, unless it has
        left, ``is_final`` is set or the backend is a PacedBackend.

        Args:
            call: Its place among the batch's calls.
            answer: None to say only that there will be no more. Its data may be
                reused as soon as this returns.
            is_final: Whether there will be no more; what comes later is dropped.
        """
        ...


@runtime_checkable
class DecoupledBackend(Protocol):
    """One model instance that gives any number of answers, when it likes.

    As with Backend, one thread at a time calls it.
    """

    def execute_decoupled(
        self,
        calls: Sequence[BackendCall],
        deliver: Deliver,
        cancel_with: Callable[[Callable[[int], None]], None],
    ) -> Sequence[BackendFailure | Rescheduled | None]:
        """Begin one batch.

        Args:
            calls: Their data is valid only during the call.
            deliver: Takes answers during the call and after it.
            cancel_with: Is to be given, once, what to call with a call that nobody
                waits for any longer; from any thread.

        Returns:
            For each of ``calls``, why it has failed, or that the model wants it
            back; None if it was or will be answered.

        Raises:
            BackendError: the runtime failed; what has no final answer fails.
        """
        ...

    def unload(self) -> None:
        """Release everything; nothing is called afterwards."""
        ...


Pace: TypeAlias = Callable[[int, bool], None]
"""Is told of a call, and whether its client reads too slowly: True, or no more."""


@runtime_checkable
class PacedBackend(DecoupledBackend, Protocol):
    """A decoupled one that has those wait itself who answer slow readers."""

    def execute_paced(
        self,
        calls: Sequence[BackendCall],
        deliver: Deliver,
        cancel_with: Callable[[Callable[[int], None]], None],
        pace_with: Callable[[Pace], None],
    ) -> Sequence[BackendFailure | Rescheduled | None]:
        """Begin one batch; as ``execute_decoupled``, but ``deliver`` never waits.

        Args:
            calls: As there.
            deliver: As there.
            cancel_with: As there. Who is cancelled is told of no pause's end.
            pace_with: Is to be given, once, what to call with a call whose client
                reads more slowly than it is answered, and again when it has caught
                up; from any thread, and not to wait.
        """
        ...


@runtime_checkable
class SelfTelling(Protocol):
    """One model instance that knows best whether it would execute a request."""

    def is_ready(self) -> bool:
        """Return whether it would; from any thread, also during an execution.

        Takes some seconds at most.
        """
        ...


@runtime_checkable
class AbandonableBackend(Protocol):
    """One whose executions can be ended from outside."""

    def abandon(self) -> None:
        """Have the execution that is running, if any, raise HungError soon.

        From any thread; what takes the place of what hung executes the next batch.
        """
        ...


@runtime_checkable
class Forgetting(Protocol):
    """One model instance that may lose what it knows of sequences, and live on."""

    def when_forgotten(self, callback: Callable[[], None]) -> None:
        """Call back, from any thread, whenever that happens.

        Before a batch that is being executed fails for it.
        """
        ...


AnyBackend: TypeAlias = Backend | RequestBackend | DecoupledBackend


class Runtime(Protocol):
    """The way to load models of one kind. Called from several threads."""

    def load(
        self, source: ModelSource, places: Sequence[InstancePlace]
    ) -> Sequence[AnyBackend]:
        """Load one model version.

        Returns:
            One backend for each of ``places``, in order.

        Raises:
            ConfigError: file and configuration contradict each other.
            BackendError: the runtime cannot load the file.
        """
        ...

    def inspect(self, source: ModelSource) -> FoundModel | CompletedConfig:
        """Read what the model file says about its tensors, or have it say all.

        Raises:
            ConfigError: this kind of model does not tell.
            BackendError: the runtime cannot read the file.
        """
        ...
