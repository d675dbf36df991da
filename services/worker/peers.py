"""The way from a model to others: through a router, as any client."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import grpc

_SERVICE: Final = "/inference.GRPCInferenceService/"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

# A serialized response, or an error's google.rpc.Code and text.
Outcome: TypeAlias = bytes | tuple[int, str]
Cancel: TypeAlias = Callable[[], object]


class Peers:
    """Calls models, and manages them, through the routers that there are."""

    def __init__(self) -> None:
        """Begin without a router."""
        self._lock = threading.Lock()
        self._endpoints: tuple[str, ...] = ()
        self._channels: dict[str, grpc.Channel] = {}
        self._turn = 0

    def connect(self, endpoints: Sequence[str]) -> None:
        """Use these routers from now on."""
        with self._lock:
            self._endpoints = tuple(endpoints)
            gone = set(self._channels).difference(endpoints)
            channels = [self._channels.pop(endpoint) for endpoint in gone]
        for channel in channels:
            channel.close()

    def call(
        self,
        method: str,
        request: bytes,
        timeout_s: float | None,
        done: Callable[[Outcome], None],
        *,
        router: str = "",
    ) -> Cancel:
        """Call a method of GRPCInferenceService.

        Args:
            method: Its name.
            request: Its message, serialized.
            timeout_s: How long it may take; None for no limit.
            done: Is given the outcome, once, by another thread or this one.
            router: The endpoint of the one to ask, if it is there.

        Returns:
            What ends the call early.
        """
        channel = self._channel(router)
        if channel is None:
            done((grpc.StatusCode.UNAVAILABLE.value[0], "no router is connected"))
            return lambda: None
        # Bytes go and come as they are.
        future = channel.unary_unary(_SERVICE + method, bytes, bytes).future(
            request, timeout=timeout_s
        )
        future.add_done_callback(lambda ended: done(_outcome(ended)))
        return future.cancel

    def stream(
        self,
        request: bytes,
        timeout_s: float | None,
        answer: Callable[[Outcome], None],
        end: Callable[[], None],
        *,
        router: str = "",
    ) -> Cancel:
        """Call ModelStreamInfer with one request.

        Args:
            request: A serialized ModelInferRequest.
            timeout_s: How long all answers may take.
            answer: Is given each answer (a ModelStreamInferResponse), or why there
                is none, by another thread.
            end: Is called when there will be no more.
            router: The endpoint of the one to ask, if it is there.
        """
        channel = self._channel(router)
        if channel is None:
            answer((grpc.StatusCode.UNAVAILABLE.value[0], "no router is connected"))
            end()
            return lambda: None
        call = channel.stream_stream(_SERVICE + "ModelStreamInfer", bytes, bytes)(
            iter((request,)), timeout=timeout_s
        )

        def follow() -> None:
            try:
                for message in call:
                    answer(message)
            except grpc.RpcError:
                code = call.code()
                if code is not grpc.StatusCode.CANCELLED:
                    answer((int(code.value[0]), str(call.details())))
            end()

        threading.Thread(target=follow, name="nested stream", daemon=True).start()
        return call.cancel

    def close(self) -> None:
        """End what is under way."""
        self.connect(())

    def _channel(self, wanted: str) -> grpc.Channel | None:
        with self._lock:
            if not self._endpoints:
                return None
            self._turn += 1
            endpoint = (
                wanted
                if wanted in self._endpoints
                else self._endpoints[self._turn % len(self._endpoints)]
            )
            channel = self._channels.get(endpoint)
            if channel is None:
                channel = grpc.insecure_channel(endpoint, options=_OPTIONS)
                self._channels[endpoint] = channel
            return channel


def _outcome(ended: Any) -> Outcome:  # noqa: ANN401 - a call and a future at once
    if ended.code() is grpc.StatusCode.OK:
        message: bytes = ended.result()
        return message
    return (int(ended.code().value[0]), str(ended.details()))
