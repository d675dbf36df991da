"""The log settings that clients have changed, for ``nereid serve``'s own lines.

Control tells them to whoever dials it with a stream; this process has none, and looks.
"""

import asyncio
from typing import Final, Never

import grpc

from protos import inference_pb2 as pb
from protos.inference_pb2_grpc import GRPCInferenceServiceStub
from services.core import logs
from services.core.logs import LogSettings

LOOK_EVERY_S: Final = 1.0
_TIMEOUT_S: Final = 2.0
# Control that is started again is found at once.
_OPTIONS: Final = (("grpc.max_reconnect_backoff_ms", 1000),)


def settings_from(answer: pb.LogSettingsResponse) -> LogSettings:
    """Return what control answers, as this process understands it."""
    settings = answer.settings
    return LogSettings(
        verbose=settings["log_verbose_level"].uint32_param,
        info=settings["log_info"].bool_param,
        warning=settings["log_warning"].bool_param,
        error=settings["log_error"].bool_param,
        iso8601=settings["log_format"].string_param == "ISO8601",
    )


async def follow(target: str, start: LogSettings) -> Never:
    """Write this process's log as control at ``target`` says, until cancelled.

    Args:
        target: Control's gRPC address; while it is away nothing changes.
        start: What is in force now.
    """
    current = start
    with grpc.insecure_channel(target, options=_OPTIONS) as channel:
        stub = GRPCInferenceServiceStub(channel)
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            found = await asyncio.to_thread(_ask, stub)
            if found is not None and found != current:
                current = found
                logs.configure(settings=current)


def _ask(stub: "GRPCInferenceServiceStub") -> LogSettings | None:
    try:
        answer = stub.LogSettings(pb.LogSettingsRequest(), timeout=_TIMEOUT_S)
    except grpc.RpcError:
        return None
    return settings_from(answer)
