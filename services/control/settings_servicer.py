"""The trace and logging extensions; routers forward their methods here."""

from typing import Any, Final

import grpc

from protos import inference_pb2
from services.control import log_settings, trace_setting_values
from services.control.log_settings import ParameterValue
from services.control.log_switch import LogSwitch
from services.control.route_table import routes_of
from services.control.supervisor import Supervisor
from services.control.trace_settings import TraceChange
from services.control.traces import Traces
from services.core.errors import InvalidRequestError
from services.core.lifecycle import ModelState

SERVICE: Final = "inference.GRPCInferenceService"

_Context = grpc.aio.ServicerContext[Any, Any]
_LogValue = inference_pb2.LogSettingsResponse.SettingValue
_TraceValue = inference_pb2.TraceSettingResponse.SettingValue


class SettingsServicer:
    """Reads and changes the settings of traces and of the log."""

    def __init__(self, supervisor: Supervisor, traces: Traces, log: LogSwitch) -> None:
        """Serve what ``traces`` and ``log`` own; ``supervisor`` knows the models."""
        self._supervisor = supervisor
        self._traces = traces
        self._log = log

    async def TraceSetting(
        self, request: inference_pb2.TraceSettingRequest, context: _Context
    ) -> inference_pb2.TraceSettingResponse:
        """Change what is named, and return what holds then."""
        del context
        model = request.model_name
        if model and not self._is_ready(model):
            raise InvalidRequestError(f"Request for unknown model : {model}")
        named = {name: list(each.value) for name, each in request.settings.items()}
        change = trace_setting_values.change_of(named)
        if change != TraceChange():
            await self._traces.update(model, change)
        settings = await self._traces.read(model)
        shown = trace_setting_values.answer(settings, model)
        return inference_pb2.TraceSettingResponse(
            settings={name: _TraceValue(value=each) for name, each in shown.items()}
        )

    async def LogSettings(
        self, request: inference_pb2.LogSettingsRequest, context: _Context
    ) -> inference_pb2.LogSettingsResponse:
        """Change what is named, and return what holds then."""
        del context
        self._log.update({n: _parameter(v) for n, v in request.settings.items()})
        shown = log_settings.answer(self._log.settings, self._log.file)
        return inference_pb2.LogSettingsResponse(
            settings={name: _log_value(each) for name, each in shown.items()}
        )

    def methods(self) -> "grpc.GenericRpcHandler[Any, Any]":
        """Return the methods as a server takes them."""
        handlers = {
            "TraceSetting": grpc.unary_unary_rpc_method_handler(
                self.TraceSetting,
                inference_pb2.TraceSettingRequest.FromString,
                inference_pb2.TraceSettingResponse.SerializeToString,
            ),
            "LogSettings": grpc.unary_unary_rpc_method_handler(
                self.LogSettings,
                inference_pb2.LogSettingsRequest.FromString,
                inference_pb2.LogSettingsResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _is_ready(self, model: str) -> bool:
        return any(
            route.model == model and route.state is ModelState.READY
            for route in routes_of(self._supervisor.reconciler.registry)
        )


def _parameter(
    value: inference_pb2.LogSettingsRequest.SettingValue,
) -> ParameterValue:
    match value.WhichOneof("parameter_choice"):
        case "bool_param":
            return value.bool_param
        case "uint32_param":
            return value.uint32_param
        case "string_param":
            return value.string_param
        case _:
            return None


def _log_value(value: bool | int | str) -> _LogValue:  # noqa: FBT001 - of any kind
    if isinstance(value, bool):
        return _LogValue(bool_param=value)
    if isinstance(value, int):
        return _LogValue(uint32_param=value)
    return _LogValue(string_param=value)
