"""Control in this process, on a unix socket, and puppets that dial it."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from protos import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc
from protos.model_config_pb2 import ModelConfig
from services.control.catalog import Catalog
from services.control.catalog_settings import CatalogSettings, ControlMode
from services.control.doors import server_of
from services.control.kept_metrics import KeptMetrics
from services.control.live_settings import StartSettings, live_settings
from services.control.parts import Parts
from services.control.placing import place_version
from services.control.reconciler import Reconciler
from services.control.snapshot import Snapshot
from services.control.state_checkpoints import StateCheckpoints
from services.control.statistics import Statistics
from services.control.store import NoStore, Store
from services.control.supervisor import Grace, Supervisor
from services.core.clock import MonotonicClock
from services.core.logs import LogSettings

CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input { name: "IN" data_type: TYPE_INT32 dims: 16 }
output { name: "OUT" data_type: TYPE_INT32 dims: 16 }
instance_group { kind: KIND_CPU count: 1 }
"""

# Nobody is waited for unless a test says so.
IMPATIENT = Grace(worker_s=0.0, router_s=0.0, acknowledgement_s=30.0, recovery_s=30.0)


def write_model(
    root: Path, name: str, *, config: str | None = CONFIG, versions: str = "1"
) -> None:
    for version in versions.split():
        directory = root / name / version
        directory.mkdir(parents=True)
        (directory / "model.onnx").write_bytes(b"a model")
    (root / name).mkdir(exist_ok=True)
    if config is not None:
        (root / name / "config.pbtxt").write_text(config)


class Puppet:
    """A worker or router in the test's hands: what it is told is held, in order."""

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - grpc has no name for it
        self._call = call

    async def told(self, kind: str) -> Any:  # noqa: ANN401 - one of several messages
        """Return the next command of this kind; others before it are dropped."""
        async with asyncio.timeout(30):
            while True:
                message = await self._call.read()
                assert isinstance(message, Message), f"hung up before any {kind}"
                for oneof in ("command", "update"):
                    if oneof in message.DESCRIPTOR.oneofs_by_name and (
                        message.WhichOneof(oneof) == kind
                    ):
                        return getattr(message, kind)

    async def write(self, message: Message) -> None:
        """Say anything."""
        await self._call.write(message)

    async def report(self, **report: Any) -> None:  # noqa: ANN401
        await self._call.write(control_pb2.WorkerReport(**report))

    async def tell(self, **report: Any) -> None:  # noqa: ANN401
        """Report as a router."""
        await self._call.write(control_pb2.RouterReport(**report))

    async def loads(self) -> control_pb2.LoadModel:
        """Take the next order to load and obey it."""
        order: control_pb2.LoadModel = await self.told("load")
        await self.report(loaded=control_pb2.ModelLoaded(generation=order.generation))
        return order

    async def fails(self, message: str) -> control_pb2.LoadModel:
        order: control_pb2.LoadModel = await self.told("load")
        failure = control_pb2.ModelLoadFailed(
            generation=order.generation, message=message
        )
        await self.report(load_failed=failure)
        return order

    async def unloads(self) -> int:
        order: control_pb2.UnloadModel = await self.told("unload")
        await self.report(
            unloaded=control_pb2.ModelUnloaded(generation=order.generation)
        )
        return order.generation

    async def applies(self) -> control_pb2.RouteTable:
        """Take the next route table and acknowledge it."""
        table: control_pb2.RouteTable = await self.told("routes")
        applied = control_pb2.RoutesApplied(revision=table.revision)
        await self._call.write(control_pb2.RouterReport(applied=applied))
        return table

    async def applies_until(self, model: str, state: int) -> control_pb2.VersionRoute:
        """Take tables until version 1 of ``model`` is in ``state``."""
        while True:
            table = await self.applies()
            for route in table.models:
                if route.name == model and route.versions[0].state == state:
                    return route.versions[0]

    def hang_up(self) -> None:
        self._call.cancel()

    async def says_goodbye(self) -> None:
        """End the stream as a worker does that stops."""
        await self._call.done_writing()


class Control:
    """The parts of one control process."""

    def __init__(
        self,
        settings: CatalogSettings,
        *,
        store: Store | None = None,
        snapshot: Snapshot | None = None,
        grace: Grace = IMPATIENT,
        first_number: int = 1,
        start: StartSettings | None = None,
    ) -> None:
        self.store = store or NoStore()
        self.start = start or StartSettings(log=LogSettings())
        reconciler = Reconciler(place_version, first_number=first_number)
        self.supervisor = Supervisor(
            reconciler, self.store, MonotonicClock(), grace=grace
        )
        self.supervisor.restore(snapshot or Snapshot())
        self.catalog = Catalog(self.supervisor, settings, MonotonicClock())
        self.statistics = Statistics(
            self.store, self.supervisor.routers, MonotonicClock()
        )
        self.metrics = KeptMetrics(self.store)
        self.channel: grpc.aio.Channel

    @property
    def management(self) -> "inference_pb2_grpc.GRPCInferenceServiceAsyncStub":
        return inference_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    async def worker(
        self,
        name: str = "w1",
        *,
        generations: tuple[int, ...] = (),
        **fields: Any,  # noqa: ANN401
    ) -> Puppet:
        stub: Any = control_pb2_grpc.WorkerControlStub(self.channel)
        puppet = Puppet(stub.Attach())
        hello = control_pb2.WorkerHello(
            worker_id=name,
            host="h",
            generations=generations,
            backends=["onnxruntime"],
            **fields,
        )
        await puppet.report(hello=hello)
        return puppet

    async def router(self, name: str = "r1") -> Puppet:
        stub: Any = control_pb2_grpc.RouterControlStub(self.channel)
        call = stub.Attach()
        hello = control_pb2.RouterHello(
            router_id=name, worker_endpoint=f"unix:/run/{name}"
        )
        await call.write(control_pb2.RouterReport(hello=hello))
        return Puppet(call)

    async def index(self, *, ready: bool = False) -> list[tuple[str, str, str, str]]:
        request = inference_pb2.RepositoryIndexRequest(ready=ready)
        answer = await self.management.RepositoryIndex(request)
        return [(m.name, m.version, m.state, m.reason) for m in answer.models]


def settings_of(
    root: Path,
    *,
    mode: ControlMode = ControlMode.NONE,
    **fields: Any,  # noqa: ANN401
) -> CatalogSettings:
    return CatalogSettings(roots=(str(root),), mode=mode, fleet_wait_s=0.0, **fields)


@contextlib.asynccontextmanager
async def running(control: Control) -> AsyncIterator[Control]:
    """Serve ``control`` on a unix socket for as long as the block runs."""
    live = await live_settings(
        control.start,
        control.supervisor,
        control.store,
        first_session=control.supervisor.reconciler.table.revision,
    )
    control.supervisor.count_by(control.statistics.count)
    parts = Parts(
        store=control.store,
        supervisor=control.supervisor,
        catalog=control.catalog,
        statistics=control.statistics,
        live=live,
        metrics=control.metrics,
        states=StateCheckpoints(control.store),
    )
    server = server_of(parts)
    with tempfile.TemporaryDirectory() as directory:
        address = f"unix:{directory}/control.sock"
        server.add_insecure_port(address)
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            control.channel = channel
            following = asyncio.create_task(control.catalog.follow_workers())
            try:
                async with parts.at_work():
                    yield control
            finally:
                following.cancel()
                await server.stop(0)
                live.traces.close()


def found_add_sub() -> ModelConfig:
    """Return what a worker reads in an ONNX file with batches."""
    found = ModelConfig()
    found.input.add(name="IN", data_type="TYPE_INT32", dims=[-1, 16])
    found.output.add(name="OUT", data_type="TYPE_INT32", dims=[-1, 16])
    return found


def parameters(**values: str) -> Mapping[str, inference_pb2.ModelRepositoryParameter]:
    return {
        key: inference_pb2.ModelRepositoryParameter(string_param=value)
        for key, value in values.items()
    }
