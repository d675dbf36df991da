"""Between control's records and what it says with workers, in protos/control.proto."""

import math
from collections.abc import Iterator

from protos import control_pb2
from protos.model_config_pb2 import ModelConfig
from services.control.commands import (
    CheckReadiness,
    FileInspected,
    InspectFile,
    ReadinessChecked,
    ServeRouters,
    SetLogs,
    WorkerOrder,
)
from services.control.events import (
    InstancesFailed,
    InstancesLoaded,
    InstancesUnloaded,
    LoadInstances,
    UnloadInstances,
)
from services.control.model_registry import (
    DeviceKind,
    Generation,
    MemoryUse,
    PlacedInstance,
    VersionSpec,
    Worker,
)
from services.control.prometheus import Family, Sample, histogram_samples
from services.core import log_settings_proto
from services.core.errors import InvalidRequestError


def worker_from_proto(hello: control_pb2.WorkerHello) -> Worker:
    """Return who is calling.

    Raises:
        InvalidRequestError: it has no name.
    """
    if not hello.worker_id:
        raise InvalidRequestError("a worker must say its worker_id")
    is_gpu = hello.device.kind == control_pb2.Device.GPU
    return Worker(
        worker_id=hello.worker_id,
        host=hello.host,
        process_id=hello.pid,
        started_ms=hello.started_ms,
        device=DeviceKind.GPU if is_gpu else DeviceKind.CPU,
        device_index=hello.device.index,
        device_uuid=hello.device.uuid,
        memory_bytes=hello.device.memory_bytes,
        backends=frozenset(hello.backends),
    )


def described_generations(hello: control_pb2.WorkerHello) -> tuple[Generation, ...]:
    """Return what a worker was told of the generations that it serves."""
    return tuple(
        Generation(
            number=load.generation,
            spec=VersionSpec(
                model=load.model_name,
                version=load.model_version,
                config=load.config.SerializeToString(deterministic=True),
                backend=load.config.backend,
                directory=load.version_directory,
                fingerprint=load.version_fingerprint,
                content=load.fingerprint,
            ),
            former={
                hello.worker_id: tuple(
                    PlacedInstance(name=each.name, group=each.group)
                    for each in load.instances
                )
            },
        )
        for load in hello.loads
    )


def report_from_proto(
    worker: Worker, report: control_pb2.WorkerReport
) -> InstancesLoaded | InstancesFailed | InstancesUnloaded | FileInspected | None:
    """Return what a worker says; None for what this release does not know."""
    worker_id = worker.worker_id
    match report.WhichOneof("report"):
        case "loaded":
            memory = MemoryUse(
                cpu_bytes=report.loaded.cpu_bytes,
                gpu_bytes=report.loaded.gpu_bytes,
                gpu_index=worker.device_index,
            )
            return InstancesLoaded(
                worker_id=worker_id,
                generation=report.loaded.generation,
                memory=memory,
            )
        case "load_failed":
            return InstancesFailed(
                worker_id=worker_id,
                generation=report.load_failed.generation,
                reason=report.load_failed.message,
            )
        case "unloaded":
            number = report.unloaded.generation
            return InstancesUnloaded(worker_id=worker_id, generation=number)
        case "inspected":
            return FileInspected(
                number=report.inspected.inspection,
                found=report.inspected.found.SerializeToString(),
                error=report.inspected.error,
            )
        case _:
            return None


def readiness_from_proto(message: control_pb2.ReadinessChecked) -> ReadinessChecked:
    """Return what a worker says of its instances."""
    return ReadinessChecked(number=message.question, is_ready=message.ready)


def model_metrics_from_proto(message: control_pb2.ModelMetrics) -> tuple[Family, ...]:
    """Return the families that one source of a worker shows."""
    return tuple(
        Family(
            name=family.name,
            text=family.text,
            kind=control_pb2.MetricFamily.Kind.Name(family.kind).lower(),
            samples=tuple(
                sample for metric in family.metric for sample in _samples(metric)
            ),
        )
        for family in message.family
    )


def _samples(metric: control_pb2.Metric) -> Iterator[Sample]:
    labels = dict(metric.labels)
    if not metric.bound:
        yield Sample(labels=labels, value=metric.value)
        return
    bounds = (*metric.bound, math.inf)
    counts = dict(zip(bounds, metric.count, strict=False))
    yield from histogram_samples(labels, counts, metric.value)


def order_to_proto(order: WorkerOrder) -> control_pb2.WorkerCommand:
    """Return an order as workers get it."""
    match order:
        case LoadInstances():
            return control_pb2.WorkerCommand(load=_load_to_proto(order))
        case UnloadInstances(generation=generation):
            unload = control_pb2.UnloadModel(generation=generation)
            return control_pb2.WorkerCommand(unload=unload)
        case ServeRouters(endpoints=endpoints):
            routers = control_pb2.Routers(endpoints=endpoints)
            return control_pb2.WorkerCommand(routers=routers)
        case SetLogs(settings=settings):
            message = log_settings_proto.to_proto(settings)
            return control_pb2.WorkerCommand(log_settings=message)
        case CheckReadiness(number=number, generation=generation):
            check = control_pb2.CheckReadiness(question=number, generation=generation)
            return control_pb2.WorkerCommand(check_readiness=check)
        case InspectFile():
            inspect = control_pb2.InspectModel(
                inspection=order.number,
                backend=order.backend,
                version_directory=order.directory,
                config=ModelConfig.FromString(order.config),
            )
            return control_pb2.WorkerCommand(inspect=inspect)


def _load_to_proto(order: LoadInstances) -> control_pb2.LoadModel:
    return control_pb2.LoadModel(
        generation=order.generation,
        model_name=order.spec.model,
        model_version=order.spec.version,
        config=ModelConfig.FromString(order.spec.config),
        version_directory=order.spec.directory,
        fingerprint=order.spec.content,
        version_fingerprint=order.spec.fingerprint,
        instances=[
            control_pb2.Instance(name=each.name, group=each.group)
            for each in order.instances
        ],
    )
