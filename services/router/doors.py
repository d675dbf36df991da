"""Which methods a router's servers serve, and by what."""

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from services.core.completion_queue import CallFactory, Reactor, Server
from services.core.restrictions import Restriction
from services.router.cold_call import cold_calls
from services.router.forward import FORWARDED_METHODS, TRAFFIC_METHOD, ControlForwarder
from services.router.header_forwarding import HeaderForwarding
from services.router.health import CHECK_METHOD, WATCH_METHOD, Health
from services.router.infer_call import INFER_METHOD, infer_calls
from services.router.inference import Inference
from services.router.readiness import Readiness
from services.router.rest_generate_call import (
    GENERATE_METHOD,
    GENERATE_STREAM_METHOD,
    GenerateDoor,
    GenerateStreamDoor,
)
from services.router.rest_infer_call import REST_INFER_METHOD, RestInferDoor
from services.router.rest_service import RestService, rest_calls
from services.router.restricted_call import Guard
from services.router.servicer import InferenceServicer
from services.router.shared_memory_registry import SharedMemoryRegistry
from services.router.shared_memory_servicer import SharedMemoryServicer
from services.router.stream_infer import STREAM_INFER_METHOD, stream_infer_calls

_ASKING_METHODS: Final = ("ModelReady", "ServerReady")


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """What stands behind a router's methods.

    Attributes:
        inference: Executes.
        reactor: Runs the calls.
        pool: For what may block for a moment.
        management: For what may block for long.
        asking: For who asks who is ready: models may take seconds to tell.
        readiness: Knows who is ready.
        forwarder: Knows what control answers.
        shared_memory: The clients' regions.
        max_input_bytes: The largest REST body.
        grpc_headers: Those of gRPC calls that models see.
        http_headers: Those of REST calls.
    """

    inference: Inference
    reactor: Reactor
    pool: Executor
    management: Executor
    asking: Executor
    readiness: Readiness
    forwarder: ControlForwarder
    shared_memory: SharedMemoryRegistry
    max_input_bytes: int
    grpc_headers: HeaderForwarding
    http_headers: HeaderForwarding

    def open_grpc(
        self,
        server: Server,
        servicer: InferenceServicer,
        health: Health,
        restrictions: Mapping[str, Restriction],
        *,
        is_internal: bool,
    ) -> None:
        """Serve inference.GRPCInferenceService and grpc.health.v1.

        ``is_internal``: also to others than clients, see Guard.
        """
        guard = Guard(restrictions, is_internal=is_internal)

        def add(name: str, factory: CallFactory) -> None:
            server.add_method(name, guard.guarded(name, factory))

        infer = infer_calls(self.inference, self.grpc_headers)
        server.add_hot_method(INFER_METHOD, guard.guarded(INFER_METHOD, infer))
        add(STREAM_INFER_METHOD, stream_infer_calls(self.inference, self.grpc_headers))
        memory = SharedMemoryServicer(self.shared_memory)
        for name, handle in {**servicer.methods(), **memory.methods()}.items():
            add(name, cold_calls(handle, self._pool_of(name)))
        for name, handle in self.forwarder.methods().items():
            add(name, cold_calls(handle, self._pool_of(name)))
        add(CHECK_METHOD, health.check)
        add(WATCH_METHOD, health.watch)

    def open_rest(
        self, server: Server, restrictions: Mapping[str, Restriction]
    ) -> None:
        """Serve nereid.rest.RestService."""
        guard = Guard(restrictions, is_rest=True)
        shared = (
            self.inference,
            self.reactor,
            self.pool,
            self.max_input_bytes,
            self.http_headers,
        )

        def add(name: str, factory: CallFactory) -> None:
            server.add_method(name, guard.guarded(name, factory))

        infer = guard.guarded(REST_INFER_METHOD, RestInferDoor(*shared).accept)
        server.add_hot_method(REST_INFER_METHOD, infer)
        add(GENERATE_METHOD, GenerateDoor(*shared).accept)
        add(GENERATE_STREAM_METHOD, GenerateStreamDoor(*shared).accept)
        service = RestService(
            self.inference,
            self.readiness,
            self.forwarder.methods(),
            self.shared_memory,
        )
        for name, handle in service.methods().items():
            grpc_name = _grpc_name(name.rpartition("/")[2])
            add(name, rest_calls(handle, self._pool_of(grpc_name)))

    def _pool_of(self, method: str) -> Executor:
        """Return where a gRPC method runs, by how long it may take."""
        name = method.rpartition("/")[2]
        if name in _ASKING_METHODS:
            return self.asking
        if name in FORWARDED_METHODS or TRAFFIC_METHOD.endswith("/" + name):
            return self.management
        return self.pool


def _grpc_name(rest_method: str) -> str:
    """Return the gRPC method that reads and writes what two of REST do."""
    return rest_method.removesuffix("Get").removesuffix("Update")
