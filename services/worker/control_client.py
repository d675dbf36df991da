"""The worker's stream to control: orders come, reports go."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Final

import grpc
import structlog

from protos import control_pb2, control_pb2_grpc, model_config_pb2
from services.core import (
    log_settings_proto,
    model_config_json,
    model_config_proto,
)
from services.core.errors import ServingError
from services.core.process_use import ProcessUse
from services.worker.backend import (
    CompletedConfig,
    FoundModel,
    FoundTensor,
    InstancePlace,
    ModelSource,
)
from services.worker.backoff import Backoff
from services.worker.device import Device
from services.worker.load_error import describe
from services.worker.loader import Loader, LoadOrder
from services.worker.memory import MemoryUse
from services.worker.model_metrics import Shown

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A control on another host that vanished without a word is noticed.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Every dial is a new attempt; without it the library's own backoff, which
    # grows to two minutes, answers in place of a control that is back.
    ("grpc.use_local_subchannel_pool", 1),
)
_END: Final = None

_log = structlog.get_logger(__name__)


class ControlReports:
    """Sends outcomes to control; what nobody listens to is dropped.

    A control that comes back learns from the hello what is loaded and orders
    anew what is not, so a lost report costs nothing but that.
    """

    def __init__(self) -> None:
        """Begin without a listener."""
        self._lock = threading.Lock()
        self._outbox: queue.SimpleQueue[control_pb2.WorkerReport | None] | None = None

    def open(
        self, hello: control_pb2.WorkerHello
    ) -> Iterator[control_pb2.WorkerReport]:
        """Return the reports of a new stream, the hello first; ends at ``close``."""
        outbox: queue.SimpleQueue[control_pb2.WorkerReport | None] = queue.SimpleQueue()
        outbox.put(control_pb2.WorkerReport(hello=hello))
        with self._lock:
            self._outbox = outbox
        return iter(outbox.get, _END)

    def close(self) -> None:
        """Let the present stream's reports end."""
        with self._lock:
            outbox, self._outbox = self._outbox, None
        if outbox is not None:
            outbox.put(_END)

    def loaded(self, generation: int, memory: MemoryUse) -> None:
        """See Reports."""
        loaded = control_pb2.ModelLoaded(
            generation=generation,
            cpu_bytes=memory.cpu_bytes,
            gpu_bytes=memory.gpu_bytes,
        )
        self._report(control_pb2.WorkerReport(loaded=loaded))

    def load_failed(self, generation: int, message: str) -> None:
        """See Reports."""
        failed = control_pb2.ModelLoadFailed(generation=generation, message=message)
        self._report(control_pb2.WorkerReport(load_failed=failed))

    def unloaded(self, generation: int) -> None:
        """See Reports."""
        unloaded = control_pb2.ModelUnloaded(generation=generation)
        self._report(control_pb2.WorkerReport(unloaded=unloaded))

    def inspected(self, inspection: int, found: FoundModel | CompletedConfig) -> None:
        """See Reports."""
        try:
            config = _found_config(found)
        except Exception as error:  # noqa: BLE001 - a backend may find anything
            self.inspection_failed(inspection, describe(error))
            return
        inspected = control_pb2.ModelInspected(inspection=inspection, found=config)
        self._report(control_pb2.WorkerReport(inspected=inspected))

    def inspection_failed(self, inspection: int, message: str) -> None:
        """See Reports."""
        inspected = control_pb2.ModelInspected(inspection=inspection, error=message)
        self._report(control_pb2.WorkerReport(inspected=inspected))

    def readiness(self, question: int, *, is_ready: bool) -> None:
        """See Reports."""
        answer = control_pb2.ReadinessChecked(question=question, ready=is_ready)
        self._report(control_pb2.WorkerReport(readiness=answer))

    def metrics(self, shown: Shown) -> None:
        """Tell what a source of metrics shows; see ModelMetrics."""
        self._report(control_pb2.WorkerReport(metrics=metrics_to_proto(shown)))

    def process(self, use: ProcessUse) -> None:
        """Tell what this process takes of its host."""
        message = control_pb2.ProcessUse(
            cpu_ns=use.cpu_ns,
            resident_bytes=use.resident_bytes,
            started_ms=use.started_ms,
        )
        self._report(control_pb2.WorkerReport(process=message))

    def _report(self, report: control_pb2.WorkerReport) -> None:
        with self._lock:
            if self._outbox is not None:
                self._outbox.put(report)


class ControlClient:
    """Keeps a stream to control and obeys what comes down."""

    def __init__(
        self,
        target: str,
        make_hello: Callable[[tuple[int, ...]], control_pb2.WorkerHello],
        device: Device,
        loader: Loader,
        reports: ControlReports,
        *,
        on_dial: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; ``start`` dials.

        Args:
            target: Control's gRPC address.
            make_hello: Given the generations that are served now.
            device: What models are loaded on.
            loader: Carries the orders out.
            reports: What the loader reports to.
            on_dial: Called when reports begin to go to a new stream.
        """
        self._make_hello = make_hello
        self._device = device
        self._loader = loader
        self._reports = reports
        self._on_dial = on_dial
        self._target = target
        # What has been ordered and not taken back.
        self._orders: dict[int, control_pb2.LoadModel] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._channel: grpc.Channel | None = None
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Dial, and dial again whenever the stream is lost."""
        self._thread.start()

    def stop(self) -> None:
        """Leave control and return when no further order can come."""
        self._stopping.set()
        self._reports.close()
        with self._lock:
            if self._channel is not None:
                self._channel.close()
        self._thread.join()

    def _run(self) -> None:
        backoff = Backoff()
        while (channel := self._dial()) is not None:
            with channel:
                self._attend(channel, backoff)
            self._reports.close()
            self._stopping.wait(backoff.after_failure())

    def _dial(self) -> grpc.Channel | None:
        """Return a new channel; None once we leave."""
        with self._lock:
            if self._stopping.is_set():
                return None
            self._channel = grpc.insecure_channel(self._target, options=_OPTIONS)
            return self._channel

    def _attend(self, channel: grpc.Channel, backoff: Backoff) -> None:
        """Obey one stream's commands until it ends."""
        stub = control_pb2_grpc.WorkerControlStub(channel)
        generations = self._loader.generations()
        hello = self._make_hello(generations)
        hello.loads.extend(self._orders[n] for n in generations if n in self._orders)
        try:
            reports = self._reports.open(hello)
            self._on_dial()
            for command in stub.Attach(reports):
                backoff.reset()
                self._obey(command)
            reason = "control ended the stream"
        except (grpc.RpcError, ValueError) as error:
            # A channel that stop has closed raises ValueError.
            reason = _reason(error)
        except Exception:  # noqa: BLE001 - control orders anew whom it does not hear
            _log.exception("an order from control could not be carried out")
            reason = "an order could not be carried out"
        if self._stopping.is_set():
            return
        # Said once for each loss, and for each dial to who wants to know.
        say = _log.warning if backoff.is_fresh else _log.debug
        say("no stream to control", reason=reason)

    def _obey(self, command: control_pb2.WorkerCommand) -> None:
        match command.WhichOneof("command"):
            case "routers":
                self._loader.connect(tuple(command.routers.endpoints))
            case "load":
                self._load(command.load)
            case "unload":
                self._orders.pop(command.unload.generation, None)
                self._loader.unload(command.unload.generation)
            case "inspect":
                self._inspect(command.inspect)
            case "check_readiness":
                check = command.check_readiness
                self._loader.check_readiness(check.question, check.generation)
            case "log_settings":
                log_settings_proto.obey(command.log_settings)
            case other:
                _log.warning("control sent an unknown command", command=other)

    def _load(self, load: control_pb2.LoadModel) -> None:
        try:
            order = LoadOrder(
                generation=load.generation,
                source=self._source(
                    load.config, load.model_version, load.version_directory
                ),
                places=tuple(
                    InstancePlace(name=instance.name, group=instance.group)
                    for instance in load.instances
                ),
                fingerprint=load.fingerprint,
            )
        except (ServingError, ValueError) as error:
            self._reports.load_failed(load.generation, describe(error))
            return
        self._orders[load.generation] = load
        self._loader.load(order)

    def _inspect(self, inspect: control_pb2.InspectModel) -> None:
        config = model_config_pb2.ModelConfig()
        config.CopyFrom(inspect.config)
        config.backend = inspect.backend or config.backend
        try:
            source = self._source(config, 0, inspect.version_directory)
        except (ServingError, ValueError) as error:
            self._reports.inspection_failed(inspect.inspection, describe(error))
            return
        self._loader.inspect(inspect.inspection, source)

    def _source(
        self, config: model_config_pb2.ModelConfig, version: int, directory: str
    ) -> ModelSource:
        return ModelSource(
            config=model_config_proto.from_proto(config),
            version=version,
            directory=directory,
            device=self._device,
            config_json=model_config_json.to_json(config).decode(),
        )


def metrics_to_proto(shown: Shown) -> control_pb2.ModelMetrics:
    """Return what a source of metrics shows, as control gets it."""
    message = control_pb2.ModelMetrics(
        source=shown.source, model=shown.model, version=shown.version
    )
    for family in shown.families:
        kind = control_pb2.MetricFamily.Kind.Value(family.kind)
        told = message.family.add(name=family.name, text=family.text, kind=kind)
        for metric in family.metrics:
            told.metric.add(
                labels=metric.labels,
                value=metric.value,
                bound=metric.bounds,
                count=metric.counts,
            )
    return message


def _found_config(found: FoundModel | CompletedConfig) -> model_config_pb2.ModelConfig:
    if isinstance(found, CompletedConfig):
        return model_config_json.from_json(found.json)
    config = model_config_pb2.ModelConfig()
    if found.max_rows is not None:
        config.max_batch_size = found.max_rows or -1
    for tensor in found.inputs:
        config.input.add(**_fields(tensor))
    for tensor in found.outputs:
        config.output.add(**_fields(tensor))
    return config


def _fields(tensor: FoundTensor) -> dict[str, object]:
    return {
        "name": tensor.name,
        "data_type": tensor.datatype.config_number,
        "dims": tensor.shape,
    }


def _reason(error: Exception) -> str:
    details = getattr(error, "details", None)
    return str(details()) if callable(details) else str(error)
