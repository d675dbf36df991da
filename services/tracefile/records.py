"""Trace files, as Nereid and Triton write them. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# The phases of a request, each between two times. A door has one of two names.
PHASES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "receive": (
        ("HTTP_RECV_START", "HTTP_RECV_END"),
        ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
    ),
    "queue": (("QUEUE_START", "COMPUTE_START"),),
    "input": (("COMPUTE_START", "COMPUTE_INPUT_END"),),
    "infer": (("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),),
    "output": (("COMPUTE_OUTPUT_START", "COMPUTE_END"),),
    "send": (
        ("HTTP_SEND_START", "HTTP_SEND_END"),
        ("GRPC_SEND_START", "GRPC_SEND_END"),
    ),
}
WHOLE: Final = (("REQUEST_START", "REQUEST_END"),)


@dataclass(slots=True, kw_only=True)
class TracedRequest:
    """What a file says of one request.

    Attributes:
        number: Its id in the file.
        model: Its model; empty if the file does not say.
        version: Of the model.
        request_id: The client's; may be empty.
        parent: The id of the request that it is a step of; 0 if it is none.
        times_ns: By name, of a monotonic clock.
    """

    number: int
    model: str = ""
    version: int = 0
    request_id: str = ""
    parent: int = 0
    times_ns: dict[str, int] = field(default_factory=dict)

    def span(self, choices: tuple[tuple[str, str], ...]) -> tuple[int, int] | None:
        """Return begin and end of a phase, nanoseconds; None if it is not there."""
        for begin, end in choices:
            if begin in self.times_ns and end in self.times_ns:
                return self.times_ns[begin], self.times_ns[end]
        return None


def read(text: str) -> list[TracedRequest]:
    """Return the requests of a trace file, in the order of their records.

    Raises:
        ValueError: it is no trace file.
    """
    records = json.loads(text)
    if not isinstance(records, list):
        raise ValueError("a trace file is an array of records")  # noqa: TRY004
    requests: dict[int, TracedRequest] = {}
    try:
        for record in records:
            number = int(record["id"])
            request = requests.setdefault(number, TracedRequest(number=number))
            if "model_name" in record:
                request.model = str(record["model_name"])
                request.version = int(record["model_version"])
                request.request_id = str(record.get("request_id", ""))
                request.parent = int(record.get("parent_id", 0))
            for timestamp in record.get("timestamps", ()):
                request.times_ns[str(timestamp["name"])] = int(timestamp["ns"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a record of a trace file: {error!r}") from error
    return list(requests.values())
