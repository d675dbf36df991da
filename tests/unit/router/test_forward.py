"""Methods that control answers: how long a router waits for it."""

import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from services.core.errors import InvalidRequestError, ModelNotReadyError
from services.router.forward import ControlForwarder
from services.router.servicer import SERVICE


class Puppet(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not at run time
    """A control that holds every answer until it is told to go on."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.go_on = threading.Event()

    def service(self, _details: object) -> Any:  # noqa: ANN401 - untyped grpc
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.asked.release()
            if request == b"bad":
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such thing")
            self.go_on.wait(20)
            return b"answer"

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def puppet() -> Iterator[tuple[Puppet, str]]:
    control = Puppet()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, handlers=[control])
        address = f"unix:{folder}/control.sock"
        server.add_insecure_port(address)
        server.start()
        yield control, address
        control.go_on.set()
        server.stop(0).wait()


def test_a_control_that_hangs_is_not_waited_for_without_end_but_a_load_is_awaited(
    puppet: tuple[Puppet, str],
) -> None:
    control, address = puppet
    forwarder = ControlForwarder(address, quick_s=0.2, loading_s=20)
    load = forwarder.method(SERVICE + "RepositoryModelLoad")
    with ThreadPoolExecutor(1) as loading:
        answer = loading.submit(load, b"")
        assert control.asked.acquire(timeout=10)
        for name in ("RepositoryIndex", "ModelStatistics", "LogSettings"):
            with pytest.raises(ModelNotReadyError, match=r"not answer within 0\.2 s"):
                forwarder.method(SERVICE + name)(b"")
        control.go_on.set()
        assert answer.result(10) == b"answer"
    forwarder.close()


def test_what_control_refuses_is_refused_in_its_words(
    puppet: tuple[Puppet, str],
) -> None:
    _, address = puppet
    forwarder = ControlForwarder(address)
    with pytest.raises(InvalidRequestError, match="no such thing"):
        forwarder.method(SERVICE + "RepositoryIndex")(b"bad")
    forwarder.close()
