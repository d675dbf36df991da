"""How a request that is traced came in: its door's own times, and its caller."""

from services.core.completion_queue import NativeMetadata, metadata_values
from services.router.infer_call import InferCall
from services.router.pending_request import PendingRequest
from services.router.rest_infer_call import RestInferCall
from services.router.stream_infer import StreamedRequest
from services.router.traced_request import Arrival


def arrival_of(request: PendingRequest) -> Arrival:
    """Return how ``request`` came in.

    A gRPC call is looked at when its message is complete: no thread waits for it,
    so waiting begins and ends with admission. An unknown door tells nothing.
    """
    match request:
        case InferCall() | StreamedRequest():
            at_ns = request.enqueued_ns
            return Arrival(
                received=(("GRPC_WAITREAD_START", at_ns), ("GRPC_WAITREAD_END", at_ns)),
                send_prefix="GRPC_SEND",
                traceparent=_traceparent(request.metadata),
            )
        case RestInferCall():
            return Arrival(
                received=(
                    ("HTTP_RECV_START", request.began_ns),
                    ("HTTP_RECV_END", request.received_ns),
                ),
                send_prefix="HTTP_SEND",
                traceparent=_traceparent(request.metadata),
            )
        case _:
            return Arrival()


def _traceparent(metadata: NativeMetadata) -> str:
    value = metadata_values(metadata).get("traceparent", "")
    return value if isinstance(value, str) else ""
