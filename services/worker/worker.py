"""One worker: its models, its stream to control, its streams to the routers."""

import os
import socket
from collections.abc import Callable
from typing import Final

from protos import control_pb2, worker_pb2
from services.core.clock import MonotonicClock
from services.core.completion_queue import ClientStream
from services.core.process_use import process_use
from services.worker import backends
from services.worker.control_client import ControlClient, ControlReports
from services.worker.device import Device, DeviceKind
from services.worker.loader import Loader, LoadOrder
from services.worker.model_metrics import ModelMetrics
from services.worker.turns import Turns, limits_of
from services.worker.watchdog import Watchdog

_SERVE_METHOD: Final = "/nereid.worker.WorkerDispatch/Serve"
_HELLO_KEY: Final = "nereid-instance-bin"


class Worker:
    """Serves one device until it is stopped."""

    def __init__(
        self,
        control: str,
        worker_id: str,
        device: Device,
        *,
        give_up: Callable[[], None],
        loading_threads: int = 4,
        turns: Turns | None = None,
    ) -> None:
        """Wire the parts together.

        Args:
            control: Control's gRPC address.
            worker_id: By which control and routers know this worker.
            device: What it serves; no other is visible to this process.
            give_up: Called when an execution hangs that only the end of this
                process can end.
            loading_threads: How many models are loaded at once.
            turns: Of instances with resources; None: nothing is limited.
        """
        self._worker_id = worker_id
        self._device = device
        self._is_limited = turns is not None
        self._reports = reports = ControlReports()
        self._metrics = ModelMetrics()
        self._watchdog = Watchdog(MonotonicClock(), give_up)
        self._loader = Loader(
            lambda source: backends.find_runtime(source.config),
            self._dial,
            MonotonicClock(),
            reports,
            threads=loading_threads,
            metrics=self._metrics,
            watchdog=self._watchdog,
            turns=turns,
        )
        self._control = ControlClient(
            control,
            self._hello,
            device,
            self._loader,
            reports,
            on_dial=self._metrics.repeat,
        )

    def start(self) -> None:
        """Dial control; whatever else happens is ordered from there."""
        self._metrics.start(self._reports.metrics)
        self._control.start()

    def tick(self) -> None:
        """Report what this process takes of its host."""
        self._reports.process(process_use())

    def stop(self) -> None:
        """Leave control, answer what is executing, leave the routers."""
        self._metrics.tell(self._reports.metrics)
        self._control.stop()
        self._loader.stop()
        self._watchdog.stop()
        self._metrics.stop()

    def _dial(
        self, order: LoadOrder, instance_name: str, endpoint: str
    ) -> ClientStream:
        """Open the stream of one instance to one router."""
        hello = worker_pb2.InstanceHello(
            worker_id=self._worker_id,
            model_name=order.source.config.name,
            model_version=order.source.version,
            generation=order.generation,
            instance_name=instance_name,
            device=self._device.label,
            takes_turns=self._is_limited and takes_turns(order, instance_name),
        )
        metadata = ((_HELLO_KEY, hello.SerializeToString()),)
        return ClientStream(endpoint, _SERVE_METHOD, metadata)

    def _hello(self, generations: tuple[int, ...]) -> control_pb2.WorkerHello:
        device = self._device
        is_gpu = device.kind is DeviceKind.GPU
        return control_pb2.WorkerHello(
            worker_id=self._worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=control_pb2.Device(
                kind=control_pb2.Device.GPU if is_gpu else control_pb2.Device.CPU,
                index=device.index,
                uuid=device.uuid,
                memory_bytes=device.memory_bytes,
            ),
            backends=backends.available_backends(has_gpu=is_gpu),
            generations=generations,
            started_ms=process_use().started_ms,
        )


def takes_turns(order: LoadOrder, instance_name: str) -> bool:
    """Return whether the configuration limits when an instance executes."""
    config = order.source.config
    return any(
        place.name == instance_name and limits_of(config, place) is not None
        for place in order.places
    )
