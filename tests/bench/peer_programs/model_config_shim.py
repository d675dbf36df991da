"""Has a server of grpc.aio answer ModelConfig, which perf_analyzer asks for.

MLServer and KServe do not know that method. Nothing else of theirs is changed.
"""

import os
from pathlib import Path

import grpc

METHOD = "/inference.GRPCInferenceService/ModelConfig"
# A serialized ModelConfigResponse.
RESPONSE_VARIABLE = "BENCH_MODEL_CONFIG_RESPONSE"


class ModelConfigHandler(grpc.GenericRpcHandler):
    """Answers the one method, whatever is asked."""

    def __init__(self, response):
        self._response = response

    def service(self, handler_call_details):
        if handler_call_details.method != METHOD:
            return None

        async def answer(request, context):
            del request, context
            return self._response

        return grpc.unary_unary_rpc_method_handler(answer)


def install():
    """Add the handler to every server of grpc.aio that is made from now on."""
    response = Path(os.environ[RESPONSE_VARIABLE]).read_bytes()
    make = grpc.aio.server

    def server(*arguments, **named):
        made = make(*arguments, **named)
        made.add_generic_rpc_handlers((ModelConfigHandler(response),))
        return made

    grpc.aio.server = server
