"""What a model is and how it wants to be served.

The protobuf message of the same name is what travels and what people write; this
is what code reads: typed, complete, in nanoseconds, and free of contradictions
inside one record. ``services.core.model_config_proto`` makes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from services.core.model_config_fields import FieldError, require_name
from services.core.model_config_optimization import (
    Accelerator,
    CudaGraphLowerBound,
    CudaGraphSpec,
    CudaOptions,
    ExecutionPriority,
    OptimizationPolicy,
)
from services.core.model_config_padding import Padding
from services.core.model_config_placement import (
    AllVersions,
    InstanceGroup,
    InstanceKind,
    LatestVersions,
    RateLimiter,
    RateLimiterResource,
    SecondaryDevice,
    SpecificVersions,
    VersionPolicy,
)
from services.core.model_config_scheduling import (
    DynamicBatching,
    Ensemble,
    EnsembleStep,
    QueuePolicy,
    TimeoutAction,
)
from services.core.model_config_sequences import (
    DEFAULT_SEQUENCE_IDLE_NS,
    ControlKind,
    DirectStrategy,
    InitialState,
    OldestStrategy,
    SequenceBatching,
    SequenceControl,
    SequenceControlInput,
    SequenceState,
)
from services.core.model_config_tensors import (
    BatchInput,
    BatchInputKind,
    BatchOutput,
    BatchOutputKind,
    ModelInput,
    ModelOutput,
    TensorFormat,
)
from services.core.model_config_warmup import Warmup, WarmupData, WarmupInput

__all__ = [
    "DEFAULT_SEQUENCE_IDLE_NS",
    "ENSEMBLE_PLATFORM",
    "Accelerator",
    "AllVersions",
    "BatchInput",
    "BatchInputKind",
    "BatchOutput",
    "BatchOutputKind",
    "ControlKind",
    "CudaGraphLowerBound",
    "CudaGraphSpec",
    "CudaOptions",
    "DirectStrategy",
    "DynamicBatching",
    "Ensemble",
    "EnsembleStep",
    "ExecutionPriority",
    "FieldError",
    "InitialState",
    "InstanceGroup",
    "InstanceKind",
    "LatestVersions",
    "MetricControl",
    "ModelConfig",
    "ModelInput",
    "ModelOutput",
    "OldestStrategy",
    "OptimizationPolicy",
    "QueuePolicy",
    "RateLimiter",
    "RateLimiterResource",
    "RepositoryAgent",
    "SecondaryDevice",
    "SequenceBatching",
    "SequenceControl",
    "SequenceControlInput",
    "SequenceState",
    "SpecificVersions",
    "TensorFormat",
    "TimeoutAction",
    "VersionPolicy",
    "Warmup",
    "WarmupData",
    "WarmupInput",
]

ENSEMBLE_PLATFORM: Final = "ensemble"

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryAgent:
    """Something that acts on the model's files before they load.

    Attributes:
        name: Which.
        parameters: For it.
    """

    name: str
    parameters: Mapping[str, str]

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        require_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricControl:
    """How one metric of this model is measured.

    Attributes:
        family: The metric's family.
        histogram_buckets: Upper bounds, ascending, never empty.
    """

    family: str
    histogram_buckets: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        if not self.family:
            msg = "metric identifier must specify non-empty 'family'"
            raise FieldError(msg, "metric_identifier")
        if not self.histogram_buckets:
            msg = "histogram options must specify non-empty 'buckets'"
            raise FieldError(msg, "histogram_options")
        for i, bound in enumerate(self.histogram_buckets[1:], start=1):
            if bound <= self.histogram_buckets[i - 1]:
                msg = "the bounds of 'buckets' must ascend"
                raise FieldError(msg, "histogram_options", "buckets", i)


CHECKPOINT_PARAMETER: Final = "nereid_state_checkpoint"
"""Set to "true" in a model's parameters: its states are kept outside the worker too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model's configuration.

    What needs more than one field to be judged, and is therefore checked by
    ``services.control.config_validation``: that backend and platform fit, that
    names are unique, that batch sizes stay below ``max_batch_size``, and so on.

    Attributes:
        name: Of the model, and of its folder.
        platform: "<framework>_<format>" or "ensemble"; "" if the backend has
            none.
        backend: What executes the model; "" for an ensemble.
        runtime: The backend's own choice of engine; "" for its default.
        version_policy: Which versions are served.
        max_batch_size: Rows in one execution; 0: no batch dimension.
        inputs: In the configuration's order.
        outputs: In the configuration's order.
        batch_inputs: Inputs that the batcher fills.
        batch_outputs: Outputs that need a rule to be cut.
        optimization: Settings for the backend.
        dynamic_batching: At most one of these three is given; with none,
            requests run one by one.
        sequence_batching: See ``dynamic_batching``.
        ensemble: See ``dynamic_batching``.
        instance_groups: At least one, once normalised; () for an ensemble.
        default_model_filename: In the version's folder; "" if the backend needs
            none.
        cc_model_filenames: Preferred file by CUDA compute capability ("7.5").
        metric_tags: Labels of the model's metrics.
        parameters: Free settings, read by the backend.
        warmups: To run before the model is ready.
        op_library_filenames: Shared libraries with custom operators.
        decoupled: A request may have any number of responses.
        agents: In the order they act.
        response_cache_enabled: Answers may be remembered.
        metric_controls: How metrics are measured.
        padding: Declared in ``parameters``: how lengths are made equal; None: not.
        execution_timeout_ns: Declared in ``parameters``: how long one execution may
            take before it counts as hung; 0: for ever.
    """

    name: str
    platform: str = ""
    backend: str = ""
    runtime: str = ""
    version_policy: VersionPolicy = field(default_factory=LatestVersions)
    max_batch_size: int = 0
    inputs: tuple[ModelInput, ...] = ()
    outputs: tuple[ModelOutput, ...] = ()
    batch_inputs: tuple[BatchInput, ...] = ()
    batch_outputs: tuple[BatchOutput, ...] = ()
    optimization: OptimizationPolicy = field(default_factory=OptimizationPolicy)
    dynamic_batching: DynamicBatching | None = None
    sequence_batching: SequenceBatching | None = None
    ensemble: Ensemble | None = None
    instance_groups: tuple[InstanceGroup, ...] = ()
    default_model_filename: str = ""
    cc_model_filenames: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    metric_tags: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    parameters: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    warmups: tuple[Warmup, ...] = ()
    op_library_filenames: tuple[str, ...] = ()
    decoupled: bool = False
    agents: tuple[RepositoryAgent, ...] = ()
    response_cache_enabled: bool = False
    metric_controls: tuple[MetricControl, ...] = ()
    padding: Padding | None = None
    execution_timeout_ns: int = 0

    @property
    def client_inputs(self) -> tuple[ModelInput, ...]:
        """The inputs that clients send: all but those the server generates."""
        generated = self.padding.generated if self.padding else frozenset()
        return tuple(one for one in self.inputs if one.name not in generated)

    @property
    def checkpoints_states(self) -> bool:
        """Whether a sequence may go on elsewhere when its worker is lost."""
        return self.parameters.get(CHECKPOINT_PARAMETER) == "true"

    @property
    def states(self) -> tuple[SequenceState, ...]:
        """What the server keeps between the requests of a sequence."""
        batching = self.sequence_batching
        return batching.states if batching is not None else ()

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        require_name(self.name)
        if self.max_batch_size < 0:
            msg = "'max_batch_size' must be non-negative value"
            raise FieldError(msg, "max_batch_size")
        schedulers = (self.dynamic_batching, self.sequence_batching, self.ensemble)
        if sum(scheduler is not None for scheduler in schedulers) > 1:
            raise FieldError("at most one scheduler can be given")
