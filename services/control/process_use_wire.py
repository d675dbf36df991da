"""What a process says that it takes of its host."""

from protos import control_pb2
from services.core.process_use import ProcessUse


def process_use_from_proto(message: control_pb2.ProcessUse) -> ProcessUse:
    """Return what a process takes of its host."""
    return ProcessUse(
        cpu_ns=message.cpu_ns,
        resident_bytes=message.resident_bytes,
        started_ms=message.started_ms,
    )
