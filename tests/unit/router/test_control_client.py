"""The router's stream to control, against a puppet that speaks for control."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from protos import control_pb2, control_pb2_grpc
from services.core import model_config_proto
from services.core.completion_queue import Reactor
from services.router.control_client import ControlClient
from services.router.route_table import RouteTable


class PuppetControl(control_pb2_grpc.RouterControlServicer):
    """Hands out the route tables it is told to, and keeps what it is told."""

    def __init__(self) -> None:
        self.reports: SimpleQueue[control_pb2.RouterReport] = SimpleQueue()
        self.tables: SimpleQueue[control_pb2.RouteTable | None] = SimpleQueue()

    def Attach(self, request_iterator: Any, context: Any) -> Any:  # noqa: ANN401, ARG002
        threading.Thread(target=self._listen, args=(request_iterator,)).start()
        for table in iter(self.tables.get, None):
            yield control_pb2.RouterUpdate(routes=table)

    def _listen(self, reports: Any) -> None:  # noqa: ANN401
        try:
            for report in reports:
                self.reports.put(report)
        except grpc.RpcError:
            return


def table(revision: int, config: str = "simple") -> control_pb2.RouteTable:
    message = control_pb2.RouteTable(revision=revision, ready=True)
    version = message.models.add(name="simple").versions.add(version=1, generation=7)
    version.state = control_pb2.VersionRoute.READY
    version.config.name = config
    return message


class Running:
    """A client on a running reactor, and the puppet at the other end."""

    def __init__(self, directory: Path) -> None:
        self.target = f"unix:{directory}/control.sock"
        self.puppet = PuppetControl()
        self.seen: SimpleQueue[RouteTable] = SimpleQueue()
        self.reactor = Reactor()
        hello = control_pb2.RouterHello(router_id="r", worker_endpoint="unix:r")
        self.client = ControlClient(self.reactor, self.target, hello, self.seen.put)
        self._server: Any = None
        self._thread = threading.Thread(target=self.reactor.run)
        self._thread.start()
        self.reactor.call_soon_threadsafe(self.client.start)

    def serve(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(4))
        control_pb2_grpc.add_RouterControlServicer_to_server(self.puppet, self._server)
        self._server.add_insecure_port(self.target)
        self._server.start()

    def end_service(self) -> None:
        self.puppet.tables.put(None)
        self._server.stop(0).wait(30)

    def close(self) -> None:
        self.puppet.tables.put(None)
        self.reactor.call_soon_threadsafe(self.client.stop)
        self.reactor.call_soon_threadsafe(self.reactor.stop)
        self._thread.join(30)
        self._server.stop(0).wait(30)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    running.serve()
    yield running
    running.close()


def test_the_router_says_hello_and_takes_the_table(running: Running) -> None:
    hello = running.puppet.reports.get(timeout=5).hello
    assert (hello.router_id, hello.worker_endpoint) == ("r", "unix:r")
    running.puppet.tables.put(table(3))
    taken = running.seen.get(timeout=5)
    assert taken.revision == 3
    assert taken.ready
    route = taken.find("simple", "")
    assert route.generation == 7
    assert route.config == model_config_proto.from_proto(
        table(3).models[0].versions[0].config
    )


def test_an_acknowledgement_reaches_control(running: Running) -> None:
    assert running.puppet.reports.get(timeout=5).HasField("hello")
    running.reactor.call_soon_threadsafe(lambda: running.client.acknowledge(9))
    assert running.puppet.reports.get(timeout=5).applied.revision == 9


def test_a_table_that_cannot_be_read_is_left_out(running: Running) -> None:
    running.puppet.tables.put(table(1, config=""))
    running.puppet.tables.put(table(2))
    assert running.seen.get(timeout=5).revision == 2


def test_an_update_with_an_unheard_of_state_does_not_end_the_listening(
    running: Running,
) -> None:
    newer = table(1)
    newer.models[0].versions[0].state = 99  # type: ignore[assignment]
    running.puppet.tables.put(newer)
    running.puppet.tables.put(table(2))
    assert running.seen.get(timeout=5).revision == 2


def test_the_router_dials_again_when_control_comes_back(running: Running) -> None:
    assert running.puppet.reports.get(timeout=5).HasField("hello")
    running.end_service()
    running.serve()
    assert running.puppet.reports.get(timeout=10).HasField("hello")
    running.puppet.tables.put(table(5))
    assert running.seen.get(timeout=5).revision == 5
