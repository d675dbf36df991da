"""The question who is ready, on its way to control."""

from collections.abc import Sequence
from typing import Final

import grpc
import structlog

from protos import control_pb2
from services.router.readiness import Ask

# Longer than control waits for its workers.
_TIMEOUT_S: Final = 10.0
_METHOD: Final = "/nereid.control.ReadinessControl/CheckReadiness"

_log = structlog.get_logger(__name__)


def asker(channel: grpc.Channel) -> Ask:
    """Return the way to ask control."""
    call = channel.unary_unary(
        _METHOD,
        control_pb2.CheckReadinessRequest.SerializeToString,
        control_pb2.CheckReadinessResponse.FromString,
    )

    def ask(generations: Sequence[int], is_server: bool) -> frozenset[int]:  # noqa: FBT001 - a callback
        request = control_pb2.CheckReadinessRequest(
            generations=generations, server=is_server
        )
        try:
            return frozenset(call(request, timeout=_TIMEOUT_S).not_ready)
        except grpc.RpcError as error:
            _log.debug("control was not asked who is ready", reason=str(error))
            return frozenset()

    return ask
