"""What a runtime has to offer to serve models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from services.core.datatype import DataType
from services.core.model_config import ModelConfig
from services.worker.device import Device

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
    """

    config: ModelConfig
    version: int
    directory: str
    device: Device


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
    """What a model file says about its tensors."""

    inputs: tuple[FoundTensor, ...]
    outputs: tuple[FoundTensor, ...]


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


class Runtime(Protocol):
    """The way to load models of one kind. Called from several threads."""

    def load(
        self, source: ModelSource, places: Sequence[InstancePlace]
    ) -> Sequence[Backend]:
        """Load one model version.

        Returns:
            One backend for each of ``places``, in order.

        Raises:
            ConfigError: file and configuration contradict each other.
            BackendError: the runtime cannot load the file.
        """
        ...

    def inspect(self, source: ModelSource) -> FoundModel:
        """Read what the model file says about its tensors.

        Raises:
            ConfigError: this kind of model does not tell.
            BackendError: the runtime cannot read the file.
        """
        ...
