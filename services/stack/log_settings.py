"""The log settings that clients have changed, for ``nereid serve``'s own lines.

Control tells them to whoever dials it with a stream; this process has none, and looks.
"""

import asyncio
from typing import Final, Never

import grpc

from services.core import logs
from services.core.logs import LogSettings
from services.stack import inference_client

LOOK_EVERY_S: Final = 1.0
# Control that is started again is found at once.
_OPTIONS: Final = (("grpc.max_reconnect_backoff_ms", 1000),)


async def follow(target: str, start: LogSettings) -> Never:
    """Write this process's log as control at ``target`` says, until cancelled.

    Args:
        target: Control's gRPC address; while it is away nothing changes.
        start: What is in force now.
    """
    current = start
    with grpc.insecure_channel(target, options=_OPTIONS) as channel:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            found = await asyncio.to_thread(inference_client.log_settings, channel)
            if found is not None and found != current:
                current = found
                logs.configure(settings=current)
