"""What routers and instances tell each other of the states that instances keep.

Down: BatchRequests without a batch. Up: BatchResponses without an answer.
"""

from collections.abc import Iterable
from typing import Final

from protos import worker_pb2
from services.core.wire_format import length_prefix

_RESTORED_FIELD: Final = 7
_STATES_TAG: Final = b"\x32"


def ended_notice(numbers: Iterable[int]) -> bytes:
    """Return the notice that sequences are over."""
    return worker_pb2.BatchRequest(ended_sequence=numbers).SerializeToString()


def restored_notice(states: bytes) -> bytes:
    """Return the notice that a sequence goes on; ``states`` is a SequenceStates."""
    return length_prefix(_RESTORED_FIELD, len(states)) + states


def has_states(message: bytes) -> bool:
    """Tell a message of states from the end of an execution."""
    return message.startswith(_STATES_TAG)


def states_of(message: bytes) -> dict[int, bytes]:
    """Return each SequenceStates of a message, serialized, by its sequence."""
    parsed = worker_pb2.BatchResponse.FromString(message)
    return {one.sequence: one.SerializeToString() for one in parsed.states}
