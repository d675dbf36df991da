"""Settings that change how fast a model runs, not what it answers."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from services.core.model_config_fields import FieldError, require_name


class ExecutionPriority(enum.Enum):
    """Of a model among others; values are the schema's numbers."""

    DEFAULT = 0
    MAX = 1
    MIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaGraphLowerBound:
    """From where on a captured graph serves.

    Attributes:
        batch_size: Rows.
        inputs: Shape by input name, without the batch dimension.
    """

    batch_size: int
    inputs: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaGraphSpec:
    """A batch to capture as a CUDA graph.

    Attributes:
        batch_size: Rows.
        inputs: Shape by input name, without the batch dimension.
        lower_bound: None: the graph serves exactly this.
    """

    batch_size: int
    inputs: Mapping[str, tuple[int, ...]]
    lower_bound: CudaGraphLowerBound | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaOptions:
    """What a backend does with CUDA.

    Attributes:
        graphs: Capture graphs.
        busy_wait_events: Spin on events.
        output_copy_stream: Copy results on a stream of their own.
        graph_specs: What to capture; (): the backend's choice.
    """

    graphs: bool = False
    busy_wait_events: bool = False
    output_copy_stream: bool = False
    graph_specs: tuple[CudaGraphSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A faster engine inside a backend.

    Attributes:
        name: For example "tensorrt" or "openvino".
        parameters: For that engine.
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
class OptimizationPolicy:
    """Settings for the backend.

    Attributes:
        graph_level: -1: off, 0: the backend's default, 1 and above: more; None:
            not given.
        priority: Among models.
        cuda: None: not given.
        gpu_accelerators: To try on a GPU, in order.
        cpu_accelerators: To try on a CPU, in order.
        input_pinned_memory: Gather inputs in pinned memory.
        output_pinned_memory: Receive outputs in pinned memory.
        gather_kernel_buffer_threshold: Buffers from which inputs are gathered by
            a kernel; 0: the backend's choice.
        eager_batching: Collect the next batch while one executes.
    """

    graph_level: int | None = None
    priority: ExecutionPriority = ExecutionPriority.DEFAULT
    cuda: CudaOptions | None = None
    gpu_accelerators: tuple[Accelerator, ...] = ()
    cpu_accelerators: tuple[Accelerator, ...] = ()
    input_pinned_memory: bool = True
    output_pinned_memory: bool = True
    gather_kernel_buffer_threshold: int = 0
    eager_batching: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        if self.graph_level is not None and self.graph_level < -1:
            raise FieldError("the graph level must be at least -1", "graph", "level")
