"""Whether models that know it themselves are ready; routers ask."""

import asyncio
from typing import Any, Final

import grpc

from protos import control_pb2, control_pb2_grpc
from services.control.supervisor import Supervisor

# Somewhat more than an instance may take.
_TIMEOUT_S: Final = 8.0


class ReadinessServicer(control_pb2_grpc.ReadinessControlServicer):
    """Passes the question on to the workers that serve a generation."""

    def __init__(self, supervisor: Supervisor) -> None:
        """Ask the workers of ``supervisor``."""
        self._supervisor = supervisor

    async def CheckReadiness(
        self,
        request: control_pb2.CheckReadinessRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> control_pb2.CheckReadinessResponse:
        """Return which generations are not ready; one that is silent is not."""
        del context
        if request.server and not self._supervisor.reconciler.strict_readiness:
            return control_pb2.CheckReadinessResponse()
        generations = list(dict.fromkeys(request.generations))
        answers = await asyncio.gather(*map(self._is_ready, generations))
        return control_pb2.CheckReadinessResponse(
            not_ready=[
                generation
                for generation, is_ready in zip(generations, answers, strict=True)
                if not is_ready
            ]
        )

    async def _is_ready(self, generation: int) -> bool:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answers = await asyncio.gather(
                    *self._supervisor.check_readiness(generation)
                )
        except TimeoutError:
            return False
        return all(answers)
