"""Where a request's trace is kept, as the request itself tells it. Pure.

A router adds it to the traced requests of models that may ask others; a worker sends
it along with what such a model asks, to that very router.
"""

from dataclasses import dataclass
from typing import Final

TRACE_PARAMETER: Final = "nereid_trace"
_PARTS: Final = 3
_NONE: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceToken:
    """A trace that is under way.

    Attributes:
        key: What its router calls it; without a space.
        endpoint: Of that router, as workers know it.
        traceparent: The W3C trace context of who sent the request; may be empty.
    """

    key: str
    endpoint: str
    traceparent: str = ""

    @property
    def text(self) -> str:
        """The parameter's value."""
        return f"{self.key} {self.traceparent or _NONE} {self.endpoint}"

    @classmethod
    def read(cls, text: str) -> "TraceToken | None":
        """Return what ``text`` says; None if that is not what a router says."""
        parts = text.split(" ", _PARTS - 1)
        if len(parts) < _PARTS:
            return None
        key, traceparent, endpoint = parts
        return cls(
            key=key,
            endpoint=endpoint,
            traceparent="" if traceparent == _NONE else traceparent,
        )
