"""The ModelOptimizationPolicy message, made into its dataclass."""

from types import MappingProxyType

from protos import model_config_pb2 as pb
from services.core.model_config_optimization import (
    Accelerator,
    CudaGraphLowerBound,
    CudaGraphSpec,
    CudaOptions,
    ExecutionPriority,
    OptimizationPolicy,
)
from services.core.model_config_proto_reading import at, each, member

_Cuda = pb.ModelOptimizationPolicy.Cuda
_Accelerators = pb.ModelOptimizationPolicy.ExecutionAccelerators


def optimization_from_proto(message: pb.ModelOptimizationPolicy) -> OptimizationPolicy:
    """Return the dataclass that says what ``message`` says.

    Raises:
        FieldError: with the path inside ``message``.
    """
    cuda = None
    if message.HasField("cuda"):
        with at("cuda"):
            cuda = _cuda(message.cuda)
    accelerators = message.execution_accelerators
    with at("execution_accelerators"):
        on_gpu = each(
            "gpu_execution_accelerator",
            accelerators.gpu_execution_accelerator,
            _accelerator,
        )
        on_cpu = each(
            "cpu_execution_accelerator",
            accelerators.cpu_execution_accelerator,
            _accelerator,
        )
    return OptimizationPolicy(
        graph_level=message.graph.level if message.HasField("graph") else None,
        priority=member(ExecutionPriority, message.priority, "priority"),
        cuda=cuda,
        gpu_accelerators=on_gpu,
        cpu_accelerators=on_cpu,
        input_pinned_memory=(
            message.input_pinned_memory.enable
            if message.HasField("input_pinned_memory")
            else True
        ),
        output_pinned_memory=(
            message.output_pinned_memory.enable
            if message.HasField("output_pinned_memory")
            else True
        ),
        gather_kernel_buffer_threshold=message.gather_kernel_buffer_threshold,
        eager_batching=message.eager_batching,
    )


def _cuda(message: _Cuda) -> CudaOptions:
    return CudaOptions(
        graphs=message.graphs,
        busy_wait_events=message.busy_wait_events,
        output_copy_stream=message.output_copy_stream,
        graph_specs=each("graph_spec", message.graph_spec, _graph_spec),
    )


def _graph_spec(message: _Cuda.GraphSpec) -> CudaGraphSpec:
    bound = None
    if message.HasField("graph_lower_bound"):
        lower = message.graph_lower_bound
        shapes = {name: tuple(shape.dim) for name, shape in lower.input.items()}
        bound = CudaGraphLowerBound(
            batch_size=lower.batch_size, inputs=MappingProxyType(shapes)
        )
    shapes = {name: tuple(shape.dim) for name, shape in message.input.items()}
    return CudaGraphSpec(
        batch_size=message.batch_size,
        inputs=MappingProxyType(shapes),
        lower_bound=bound,
    )


def _accelerator(message: _Accelerators.Accelerator) -> Accelerator:
    return Accelerator(
        name=message.name, parameters=MappingProxyType(dict(message.parameters))
    )
