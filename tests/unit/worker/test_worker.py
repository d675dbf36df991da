"""A whole worker: a real control stream, real router streams, a real model."""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from protos import (
    control_pb2,
    control_pb2_grpc,
    model_config_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from services.worker.control_client import ControlClient, ControlReports
from services.worker.device import Device, DeviceKind
from services.worker.loader import Loader
from services.worker.worker import Worker
from tests.unit.worker.messages import answers, batch, ints, request
from tests.unit.worker.onnx_models import write_add_sub
from tests.unit.worker.puppets import WAIT_S

INT32 = 8
DEVICE = Device(kind=DeviceKind.CPU, memory_bytes=1 << 30)


class PuppetControl(control_pb2_grpc.WorkerControlServicer):
    """A control whose decisions are the test's."""

    def __init__(self) -> None:
        self._streams: queue.Queue[ControlStream] = queue.Queue()

    def Attach(
        self,
        request_iterator: Iterator[control_pb2.WorkerReport],
        context: grpc.ServicerContext,
    ) -> Iterator[control_pb2.WorkerCommand]:
        stream = ControlStream(request_iterator)
        context.add_callback(stream.end)
        self._streams.put(stream)
        yield from iter(stream.commands.get, None)

    def accept(self) -> "ControlStream":
        return self._streams.get(timeout=WAIT_S)


class ControlStream:
    def __init__(self, reports: Iterator[control_pb2.WorkerReport]) -> None:
        self._reports = reports
        self.commands: queue.Queue[control_pb2.WorkerCommand | None] = queue.Queue()

    def order(self, **command: Any) -> None:  # noqa: ANN401 - any field
        self.commands.put(control_pb2.WorkerCommand(**command))

    def report(self) -> control_pb2.WorkerReport:
        return next(self._reports)

    def end(self) -> None:
        self.commands.put(None)


class PuppetRouter(worker_pb2_grpc.WorkerDispatchServicer):
    """A router that hands out the test's batches."""

    def __init__(self) -> None:
        self._streams: queue.Queue[RouterStream] = queue.Queue()

    def Serve(
        self,
        request_iterator: Iterator[worker_pb2.BatchResponse],
        context: grpc.ServicerContext,
    ) -> Iterator[worker_pb2.BatchRequest]:
        metadata = {item[0]: item[1] for item in context.invocation_metadata()}
        stream = RouterStream(metadata["nereid-instance-bin"], request_iterator)
        context.add_callback(stream.end)
        self._streams.put(stream)
        yield from iter(stream.batches.get, None)

    def accept(self) -> "RouterStream":
        return self._streams.get(timeout=WAIT_S)


class RouterStream:
    def __init__(
        self, hello: str | bytes, received: Iterator[worker_pb2.BatchResponse]
    ) -> None:
        assert isinstance(hello, bytes)
        self.hello = worker_pb2.InstanceHello.FromString(hello)
        self._received = received
        self.batches: queue.Queue[worker_pb2.BatchRequest | None] = queue.Queue()

    def execute(self, message: bytes) -> bytes:
        self.batches.put(worker_pb2.BatchRequest.FromString(message))
        return next(self._received).SerializeToString()

    def wait_for_half_close(self) -> None:
        assert list(self._received) == [worker_pb2.BatchResponse(farewell=True)]
        self.end()

    def end(self) -> None:
        self.batches.put(None)


class House:
    """One worker among puppets."""

    def __init__(self, directory: Path) -> None:
        self.control = PuppetControl()
        self.router = PuppetRouter()
        self.router_target = f"unix:{directory}/router.sock"
        self.control_target = f"unix:{directory}/control.sock"
        targets = (self.control_target, self.router_target)
        self._servers = [self._server(target) for target in targets]
        control_pb2_grpc.add_WorkerControlServicer_to_server(
            self.control, self._servers[0]
        )
        worker_pb2_grpc.add_WorkerDispatchServicer_to_server(
            self.router, self._servers[1]
        )
        for server in self._servers:
            server.start()
        self.model_directory = directory / "1"
        write_add_sub(self.model_directory)
        self.worker = Worker(self.control_target, "w", DEVICE, give_up=lambda: None)
        self.worker.start()

    @staticmethod
    def _server(target: str) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(8))
        server.add_insecure_port(target)
        return server

    def load(
        self,
        generation: int,
        **config: Any,  # noqa: ANN401 - any field
    ) -> control_pb2.LoadModel:
        return control_pb2.LoadModel(
            generation=generation,
            model_name="m",
            model_version=1,
            version_directory=str(self.model_directory),
            instances=[control_pb2.Instance(name="m_0_0", group=0)],
            config=model_config_pb2.ModelConfig(
                **{
                    "name": "m",
                    "backend": "onnxruntime",
                    "max_batch_size": 8,
                    "input": [
                        {"name": name, "data_type": INT32, "dims": [4]} for name in "AB"
                    ],
                    "output": [{"name": "SUM", "data_type": INT32, "dims": [4]}],
                    **config,
                }
            ),
        )

    def close(self) -> None:
        for server in self._servers:
            server.stop(0).wait(WAIT_S)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.worker.stop()
    house.close()


def connect(house: House, control: ControlStream) -> None:
    control.order(routers=control_pb2.Routers(endpoints=[house.router_target]))


def test_a_worker_says_what_it_is(house: House) -> None:
    hello = house.control.accept().report().hello
    assert hello.worker_id == "w"
    assert hello.device.kind == control_pb2.Device.CPU
    assert hello.device.memory_bytes == 1 << 30
    assert {"onnxruntime", "python", "identity"} <= set(hello.backends)
    assert list(hello.generations) == []


def test_a_model_is_loaded_serves_and_is_unloaded(house: House) -> None:
    control = house.control.accept()
    control.report()
    connect(house, control)
    control.order(load=house.load(7))
    assert control.report().loaded.generation == 7
    stream = house.router.accept()
    assert stream.hello == worker_pb2.InstanceHello(
        worker_id="w",
        model_name="m",
        model_version=1,
        generation=7,
        instance_name="m_0_0",
        device="cpu",
    )
    a, b = ints(1, 2, 3, 4), ints(1, 1, 1, 1)
    for count in (1, 5):
        message = batch(*[request({"A": a, "B": b})] * count)
        found = answers(stream.execute(message))
        assert [answer.array("SUM").tolist() for answer in found] == [
            [[2, 3, 4, 5]]
        ] * count
    control.order(unload=control_pb2.UnloadModel(generation=7))
    stream.wait_for_half_close()
    assert control.report().unloaded.generation == 7


def test_a_stream_to_a_router_that_ends_is_dialled_again(house: House) -> None:
    control = house.control.accept()
    control.report()
    connect(house, control)
    control.order(load=house.load(7))
    house.router.accept().end()
    stream = house.router.accept()
    message = batch(request({"A": ints(1, 2, 3, 4), "B": ints(0, 0, 0, 0)}))
    assert answers(stream.execute(message))[0].error is None
    stopping = threading.Thread(target=house.worker.stop)
    stopping.start()
    stream.wait_for_half_close()
    stopping.join(WAIT_S)


def test_a_control_that_comes_back_hears_what_still_serves(house: House) -> None:
    control = house.control.accept()
    control.report()
    control.order(load=house.load(7))
    assert control.report().loaded.generation == 7
    control.end()
    again = house.control.accept()
    assert list(again.report().hello.generations) == [7]


def test_a_worker_that_cannot_obey_dials_anew(house: House) -> None:
    class Exhausted:
        """A loader on a host that gives no more threads."""

        def generations(self) -> tuple[int, ...]:
            return ()

        def connect(self, endpoints: object) -> None:
            raise RuntimeError(f"can't start new thread for {endpoints}")

    client = ControlClient(
        house.control_target,
        lambda _: control_pb2.WorkerHello(worker_id="exhausted"),
        DEVICE,
        cast("Loader", Exhausted()),
        ControlReports(),
    )
    house.control.accept()
    client.start()
    for _ in range(2):
        control = house.control.accept()
        assert control.report().hello.worker_id == "exhausted"
        connect(house, control)
    client.stop()


def test_a_model_that_cannot_be_loaded_is_reported(house: House) -> None:
    control = house.control.accept()
    control.report()
    control.order(load=house.load(7, backend="nosuch"))
    failed = control.report().load_failed
    assert failed.generation == 7
    assert failed.message == (
        "Invalid argument: unable to find backend library for backend 'nosuch', try"
        " specifying runtime on the model configuration."
    )
    control.order(load=house.load(8, max_batch_size=-1))
    failed = control.report().load_failed
    assert failed.generation == 8
    assert failed.message.startswith("Invalid argument: ")


def test_a_model_file_is_inspected(house: House) -> None:
    control = house.control.accept()
    control.report()
    inspect = control_pb2.InspectModel(
        inspection=3,
        backend="onnxruntime",
        version_directory=str(house.model_directory),
        config=model_config_pb2.ModelConfig(name="m"),
    )
    control.order(inspect=inspect)
    inspected = control.report().inspected
    assert inspected.inspection == 3
    assert [
        (tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in inspected.found.input
    ] == [("A", INT32, [-1, 4]), ("B", INT32, [-1, 4])]
    assert [tensor.name for tensor in inspected.found.output] == ["SUM", "DIFF"]
    inspect.version_directory = "/nowhere"
    control.order(inspect=inspect)
    assert control.report().inspected.error == (
        "Internal: failed to stat file /nowhere/model.onnx"
    )


def test_what_no_backend_may_find_is_an_error_not_silence() -> None:
    reports = ControlReports()
    sent = reports.open(control_pb2.WorkerHello())
    next(sent)
    reports.inspected(4, cast("Any", None))
    inspected = next(sent).inspected
    assert inspected.inspection == 4
    assert inspected.error.startswith("Internal: AttributeError: ")
