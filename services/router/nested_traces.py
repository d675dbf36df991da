"""The traces that what models ask of others becomes part of. Pure.

A trace is found by the key that went to the model with its request and came back with
the model's own. A key is good until the last of its tree has ended.
"""

from protos import inference_pb2 as pb
from services.core.trace_token import TRACE_PARAMETER, TraceToken
from services.router.request_trace import RequestTrace


class NestedTraces:
    """Traces under way whose models may ask others."""

    __slots__ = ("_by_key", "_endpoint", "_next", "_prefix")

    def __init__(self, prefix: str, endpoint: str) -> None:
        """Begin without any.

        Args:
            prefix: Of all keys: no other router has it, nor this after a restart.
            endpoint: Where workers reach this router.
        """
        self._prefix = prefix
        self._endpoint = endpoint
        self._next = 0
        self._by_key: dict[str, RequestTrace] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._by_key)

    def open(self, trace: RequestTrace) -> bytes:
        """Return what tells the model of ``trace``, to be appended to its request."""
        key = f"{self._prefix}-{self._next}"
        self._next += 1
        self._by_key[key] = trace
        trace.tree.keys.append(key)
        token = TraceToken(
            key=key, endpoint=self._endpoint, traceparent=trace.traceparent
        )
        value = pb.InferParameter(string_param=token.text)
        request = pb.ModelInferRequest(parameters={TRACE_PARAMETER: value})
        return request.SerializeToString()

    def find(self, text: str) -> RequestTrace | None:
        """Return whose model asked, given what came with its request."""
        token = TraceToken.read(text)
        return self._by_key.get(token.key) if token is not None else None

    def close(self, keys: list[str]) -> None:
        """Forget those of a tree that has ended."""
        for key in keys:
            self._by_key.pop(key, None)
