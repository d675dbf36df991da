"""grpcio's C-core completion queue, driven directly: the only private API we use.

``grpc._cython.cygrpc`` lies under both of grpcio's public APIs. Driven from one
thread it serves a unary call in 47 us of CPU where ``grpc.aio`` takes 413
(`simple`, concurrency 32): no task, no future and no thread hop for a call, and
messages stay bytes. It is private, so grpcio is pinned exactly and everything we
touch of it stands in this package, guarded by tests/unit/core/completion_queue.

How it works: every operation on a call is posted with a *tag*; ``poll`` hands
the tag back when the operation is complete. Our tags are callables that take the
event, so the loop is ``poll().tag(event)``. A tag of None is a completion that
nobody waits for.

Rules of C-core that bite: one outstanding send and one outstanding receive for a
call, hence the out-queues; its deadlines have a grain of 1 ms, hence the short
sleeps before a near timer; an *empty* batch on any retained call completes at
once, which is how another thread wakes the loop; the end of a call is seen while
it is being served only if a receive-close batch of its own was posted.
"""

from services.core.completion_queue.call import (
    CallFactory,
    Metadata,
    NativeCall,
    NativeMetadata,
    StreamCall,
    UnaryCall,
    metadata_values,
)
from services.core.completion_queue.client_stream import (
    UNLIMITED_MESSAGES,
    ClientStream,
    Options,
)
from services.core.completion_queue.close_watch import CloseWatch, Watchable
from services.core.completion_queue.reactor import Reactor, Timer
from services.core.completion_queue.server import Server

__all__ = [
    "UNLIMITED_MESSAGES",
    "CallFactory",
    "ClientStream",
    "CloseWatch",
    "Metadata",
    "NativeCall",
    "NativeMetadata",
    "Options",
    "Reactor",
    "Server",
    "StreamCall",
    "Timer",
    "UnaryCall",
    "Watchable",
    "metadata_values",
]
