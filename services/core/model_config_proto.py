"""The ModelConfig message, made into the dataclasses that code reads.

Microseconds become nanoseconds here, absent messages become None or their
defaults, numbers become enums, and a contradiction is raised with its path.
"""

from types import MappingProxyType

from protos import model_config_pb2 as pb
from services.core.model_config import (
    AllVersions,
    BatchInput,
    BatchInputKind,
    BatchOutput,
    BatchOutputKind,
    FieldError,
    InstanceGroup,
    InstanceKind,
    LatestVersions,
    MetricControl,
    ModelConfig,
    ModelInput,
    ModelOutput,
    RateLimiter,
    RateLimiterResource,
    RepositoryAgent,
    SecondaryDevice,
    SpecificVersions,
    TensorFormat,
    VersionPolicy,
    Warmup,
    WarmupData,
    WarmupInput,
)
from services.core.model_config_execution import (
    EXECUTION_TIMEOUT_PARAMETER,
    execution_timeout_from_parameters,
)
from services.core.model_config_optimization_proto import optimization_from_proto
from services.core.model_config_padding import (
    PADDING_PARAMETER,
    padding_from_parameters,
)
from services.core.model_config_proto_reading import (
    at,
    data_type,
    each,
    each_value,
    member,
)
from services.core.model_config_scheduling_proto import (
    dynamic_batching_from_proto,
    ensemble_from_proto,
    sequence_batching_from_proto,
)


def from_proto(message: pb.ModelConfig) -> ModelConfig:
    """Return the dataclass that says what ``message`` says.

    Args:
        message: Completed or as written; only ``name`` has to be there.

    Raises:
        FieldError: a field contradicts itself or another one of the same
            record; its path is that of the field in ``message``.
    """
    dynamic_batching = sequence_batching = ensemble = None
    scheduler = message.WhichOneof("scheduling_choice")
    if scheduler == "dynamic_batching":
        with at(scheduler):
            dynamic_batching = dynamic_batching_from_proto(message.dynamic_batching)
    elif scheduler == "sequence_batching":
        with at(scheduler):
            sequence_batching = sequence_batching_from_proto(message.sequence_batching)
    elif scheduler == "ensemble_scheduling":
        with at(scheduler):
            ensemble = ensemble_from_proto(message.ensemble_scheduling)
    with at("optimization"):
        optimization = optimization_from_proto(message.optimization)
    with at("version_policy"):
        version_policy = _version_policy(message.version_policy)
    inputs = each("input", message.input, _input)
    outputs = each("output", message.output, _output)
    parameters = {k: value.string_value for k, value in message.parameters.items()}
    with at("parameters", PADDING_PARAMETER):
        padding = padding_from_parameters(
            parameters, inputs, outputs, message.max_batch_size
        )
    with at("parameters", EXECUTION_TIMEOUT_PARAMETER):
        execution_timeout_ns = execution_timeout_from_parameters(parameters)
    return ModelConfig(
        name=message.name,
        platform=message.platform,
        backend=message.backend,
        runtime=message.runtime,
        version_policy=version_policy,
        max_batch_size=message.max_batch_size,
        inputs=inputs,
        outputs=outputs,
        batch_inputs=each("batch_input", message.batch_input, _batch_input),
        batch_outputs=each("batch_output", message.batch_output, _batch_output),
        optimization=optimization,
        dynamic_batching=dynamic_batching,
        sequence_batching=sequence_batching,
        ensemble=ensemble,
        instance_groups=each("instance_group", message.instance_group, _group),
        default_model_filename=message.default_model_filename,
        cc_model_filenames=MappingProxyType(dict(message.cc_model_filenames)),
        metric_tags=MappingProxyType(dict(message.metric_tags)),
        parameters=MappingProxyType(parameters),
        warmups=each("model_warmup", message.model_warmup, _warmup),
        op_library_filenames=tuple(message.model_operations.op_library_filename),
        decoupled=message.model_transaction_policy.decoupled,
        agents=_agents(message.model_repository_agents),
        response_cache_enabled=message.response_cache.enable,
        metric_controls=_metric_controls(message.model_metrics),
        padding=padding,
        execution_timeout_ns=execution_timeout_ns,
    )


def _version_policy(message: pb.ModelVersionPolicy) -> VersionPolicy:
    choice = message.WhichOneof("policy_choice")
    if choice == "all":
        return AllVersions()
    if choice == "specific":
        return SpecificVersions(versions=tuple(message.specific.versions))
    return LatestVersions(count=message.latest.num_versions or 1)


def _reshape(message: pb.ModelInput | pb.ModelOutput) -> tuple[int, ...] | None:
    return tuple(message.reshape.shape) if message.HasField("reshape") else None


def _input(message: pb.ModelInput) -> ModelInput:
    return ModelInput(
        name=message.name,
        datatype=data_type(message.data_type),
        dims=tuple(message.dims),
        reshape=_reshape(message),
        optional=message.optional,
        allow_ragged_batch=message.allow_ragged_batch,
        format=member(TensorFormat, message.format, "format"),
        is_shape_tensor=message.is_shape_tensor,
        is_non_linear_format_io=message.is_non_linear_format_io,
    )


def _output(message: pb.ModelOutput) -> ModelOutput:
    return ModelOutput(
        name=message.name,
        datatype=data_type(message.data_type),
        dims=tuple(message.dims),
        reshape=_reshape(message),
        label_filename=message.label_filename,
        is_shape_tensor=message.is_shape_tensor,
        is_non_linear_format_io=message.is_non_linear_format_io,
    )


def _batch_input(message: pb.BatchInput) -> BatchInput:
    kind = member(BatchInputKind, message.kind, "kind")
    return BatchInput(
        kind=kind,
        target_names=tuple(message.target_name),
        datatype=data_type(message.data_type),
        source_input=_only_source(message, "input", f"BATCH_{kind.name}"),
    )


def _batch_output(message: pb.BatchOutput) -> BatchOutput:
    kind = member(BatchOutputKind, message.kind, "kind")
    return BatchOutput(
        kind=kind,
        target_names=tuple(message.target_name),
        source_input=_only_source(message, "output", f"BATCH_{kind.name}"),
    )


def _only_source(message: pb.BatchInput | pb.BatchOutput, what: str, kind: str) -> str:
    if len(message.source_input) != 1:
        msg = (
            f"batch {what} kind '{kind}' expects 1 source input, got "
            f"{len(message.source_input)}"
        )
        raise FieldError(msg, "source_input")
    return message.source_input[0]


def _group(message: pb.ModelInstanceGroup) -> InstanceGroup:
    limiter = None
    if message.HasField("rate_limiter"):
        with at("rate_limiter"):
            limiter = _rate_limiter(message.rate_limiter)
    return InstanceGroup(
        name=message.name,
        kind=member(InstanceKind, message.kind, "kind"),
        count=message.count,
        gpus=tuple(message.gpus),
        rate_limiter=limiter,
        passive=message.passive,
        profiles=tuple(message.profile),
        host_policy=message.host_policy,
        secondary_devices=tuple(
            SecondaryDevice(device_id=device.device_id)
            for device in message.secondary_devices
        ),
    )


def _rate_limiter(message: pb.ModelRateLimiter) -> RateLimiter:
    return RateLimiter(
        resources=each("resources", message.resources, _resource),
        priority=message.priority,
    )


def _resource(message: pb.ModelRateLimiter.Resource) -> RateLimiterResource:
    # "global" is a word of Python's own.
    is_global = bool(getattr(message, "global"))
    return RateLimiterResource(
        name=message.name, is_global=is_global, count=message.count
    )


def _warmup(message: pb.ModelWarmup) -> Warmup:
    return Warmup(
        name=message.name,
        batch_size=message.batch_size,
        inputs=each_value("inputs", message.inputs, _warmup_input),
        count=message.count or 1,
    )


def _warmup_input(message: pb.ModelWarmup.Input) -> WarmupInput:
    source = message.WhichOneof("input_data_type")
    if source is None:
        msg = "must specify 'zero_data', 'random_data' or 'input_data_file'"
        raise FieldError(msg)
    return WarmupInput(
        datatype=data_type(message.data_type),
        dims=tuple(message.dims),
        data=WarmupData(source),
        data_file=message.input_data_file,
    )


def _agents(message: pb.ModelRepositoryAgents) -> tuple[RepositoryAgent, ...]:
    with at("model_repository_agents"):
        return each("agents", message.agents, _agent)


def _agent(message: pb.ModelRepositoryAgents.Agent) -> RepositoryAgent:
    return RepositoryAgent(
        name=message.name, parameters=MappingProxyType(dict(message.parameters))
    )


def _metric_controls(message: pb.ModelMetrics) -> tuple[MetricControl, ...]:
    with at("model_metrics"):
        return each("metric_control", message.metric_control, _metric_control)


def _metric_control(message: pb.ModelMetrics.MetricControl) -> MetricControl:
    return MetricControl(
        family=message.metric_identifier.family,
        histogram_buckets=tuple(message.histogram_options.buckets),
    )
