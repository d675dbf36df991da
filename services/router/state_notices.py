"""What an instance is told of the states it keeps: BatchRequests without a batch."""

from collections.abc import Iterable

from protos import worker_pb2


def ended_notice(numbers: Iterable[int]) -> bytes:
    """Return the notice that sequences are over."""
    return worker_pb2.BatchRequest(ended_sequence=numbers).SerializeToString()
