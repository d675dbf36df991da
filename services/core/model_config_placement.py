"""Which versions of a model are served, and where its instances live."""

import enum
from dataclasses import dataclass
from typing import TypeAlias

from services.core.model_config_fields import FieldError, require_name


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestVersions:
    """Serve the versions with the highest numbers.

    Attributes:
        count: How many, >= 1.
    """

    count: int = 1

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        if self.count < 1:
            raise FieldError("'num_versions' must be at least 1", "num_versions")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllVersions:
    """Serve every version there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecificVersions:
    """Serve the versions that are named and no other.

    Attributes:
        versions: As written; those that are missing are not served.
    """

    versions: tuple[int, ...]


VersionPolicy: TypeAlias = LatestVersions | AllVersions | SpecificVersions


class InstanceKind(enum.Enum):
    """Where instances run; values are the schema's numbers.

    AUTO is gone once the instance groups are normalised.
    """

    AUTO = 0
    GPU = 1
    CPU = 2
    MODEL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimiterResource:
    """Something an instance must hold to execute.

    Attributes:
        name: What instances share it by.
        is_global: One pool for the whole server, not one for each device.
        count: How many units.
    """

    name: str
    is_global: bool = False
    count: int = 0

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        require_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimiter:
    """When an instance may execute.

    Attributes:
        resources: What it must hold.
        priority: Weight among those that wait; 2 gets half as many turns as 1;
            0 reads as 1.
    """

    resources: tuple[RateLimiterResource, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondaryDevice:
    """An NVIDIA deep learning accelerator.

    Attributes:
        device_id: Its number.
    """

    device_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """Instances of one kind.

    Attributes:
        name: Instances are called ``<name>_<i>``; "" before normalisation.
        kind: Where they run.
        count: For each GPU of a GPU group, else in all; 0: not given, only
            before normalisation.
        gpus: Indices, for GPU and AUTO only; () of these: all there are.
        rate_limiter: When they may execute.
        passive: Loaded, but never given requests.
        profiles: TensorRT optimization profiles, by number.
        host_policy: Name of a policy given at start-up.
        secondary_devices: Accelerators beside the GPU.
    """

    name: str = ""
    kind: InstanceKind = InstanceKind.AUTO
    count: int = 0
    gpus: tuple[int, ...] = ()
    rate_limiter: RateLimiter | None = None
    passive: bool = False
    profiles: tuple[str, ...] = ()
    host_policy: str = ""
    secondary_devices: tuple[SecondaryDevice, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            FieldError: with the path inside this record.
        """
        if self.count < 0:
            msg = f"instance group count must be non-negative; got {self.count}"
            raise FieldError(msg, "count")
        if self.gpus and self.kind in (InstanceKind.CPU, InstanceKind.MODEL):
            msg = (
                f"instance group has kind KIND_{self.kind.name} but specifies one or "
                "more GPUs"
            )
            raise FieldError(msg, "gpus")
        for i, gpu in enumerate(self.gpus):
            if gpu in self.gpus[:i]:
                raise FieldError(f"gpu {gpu} is listed twice", "gpus", i)
        for i, profile in enumerate(self.profiles):
            if not profile.isdecimal():
                msg = (
                    f"invalid profile '{profile}': it should contain the string "
                    "representation of a non-negative integer"
                )
                raise FieldError(msg, "profile", i)
