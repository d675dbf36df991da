"""The trace and logging extensions over REST.

Each call is the gRPC method of control, asked for in JSON and answered in it.

Source: Triton's trace and logging extensions; the texts are its HTTP server's.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from protos import inference_pb2 as pb
from services.core.errors import (
    InternalError,
    InvalidRequestError,
    OverloadedError,
    UnsupportedError,
)
from services.router import rest_documents, rest_json
from services.router.cold_call import ColdMethod
from services.router.inference import Inference
from services.router.rest_http_body import RestCall
from services.router.rest_response import HttpReply
from services.router.servicer import SERVICE

_SWITCHES: Final = ("log_info", "log_warning", "log_error")
_FORMATS: Final = ("default", "ISO8601")
_LOG_ORDER: Final = ("log_file", *_SWITCHES, "log_verbose_level", "log_format")
_TRACE_NUMBERS: Final = ("trace_rate", "trace_count", "log_frequency")
_TRACE_ORDER: Final = ("trace_level", *_TRACE_NUMBERS, "trace_file", "trace_mode")
_MAX_UINT32: Final = 2**32 - 1
# Triton's two servers differ in a space here.
_GRPC_COUNT: Final = "Unable to parse 'trace_count'. Expecting value >= -1, got: "


class RestSettings:
    """Reads and changes settings through control."""

    def __init__(
        self, inference: Inference, forwarded: Mapping[str, ColdMethod]
    ) -> None:
        """Ask ``forwarded``, control's methods by name.

        Args:
            inference: Knows which models there are.
            forwarded: Methods by full name.
        """
        self._inference = inference
        self._forwarded = forwarded

    def log_get(self, call: RestCall) -> HttpReply:
        """Answer with the log settings."""
        del call
        return self._log(pb.LogSettingsRequest())

    def log_update(self, call: RestCall) -> HttpReply:
        """Change the log settings that the body names, and answer with all."""
        return self._log(read_log_request(call.body))

    def trace_get(self, call: RestCall) -> HttpReply:
        """Answer with the trace settings of a model, or of all."""
        self._check_model(call.model)
        return self._trace(pb.TraceSettingRequest(model_name=call.model))

    def trace_update(self, call: RestCall) -> HttpReply:
        """Change the trace settings that the body names, and answer with all."""
        self._check_model(call.model)
        return self._trace(read_trace_request(call.model, call.body))

    def _check_model(self, model: str) -> None:
        """Refuse an unknown model before anything is said about the body."""
        if model and not self._inference.is_model_ready(model, ""):
            raise InvalidRequestError(f"Request for unknown model : {model}")

    def _log(self, request: pb.LogSettingsRequest) -> HttpReply:
        answer = self._forwarded[f"{SERVICE}LogSettings"](request.SerializeToString())
        settings = pb.LogSettingsResponse.FromString(answer).settings
        return rest_documents.document(
            {
                name: getattr(
                    settings[name],
                    settings[name].WhichOneof("parameter_choice") or "string_param",
                )
                for name in _LOG_ORDER
            }
        )

    def _trace(self, request: pb.TraceSettingRequest) -> HttpReply:
        try:
            answer = self._forwarded[f"{SERVICE}TraceSetting"](
                request.SerializeToString()
            )
        except InvalidRequestError as error:
            text = str(error).replace(_GRPC_COUNT, _GRPC_COUNT.rstrip())
            raise InvalidRequestError(text) from error
        settings = pb.TraceSettingResponse.FromString(answer).settings
        known = [name for name in _TRACE_ORDER if name in settings]
        more = sorted(set(settings) - set(known))
        return rest_documents.document(
            {
                name: list(settings[name].value)
                if name == "trace_level"
                else "".join(settings[name].value)
                for name in (*known, *more)
            }
        )


def read_log_request(body: bytes) -> pb.LogSettingsRequest:
    """Read POST /v2/logging; null changes nothing.

    Raises:
        InternalError: not JSON, or a value of the wrong type.
        UnsupportedError: the file is named.
        OverloadedError: no such format; Triton answers 503.
    """
    request = pb.LogSettingsRequest()
    document = rest_json.parse(body)
    if rest_json.optional_member(document, "log_file") is not None:
        raise UnsupportedError(
            "log file location can not be updated through network protocol"
        )
    for name in _SWITCHES:
        switch = rest_json.optional_member(document, name)
        if switch is not None:
            if not isinstance(switch, bool):
                raise _mismatch("boolean")
            request.settings[name].bool_param = switch
    level = rest_json.optional_member(document, "log_verbose_level")
    if level is not None:
        if type(level) is not int or not 0 <= level <= _MAX_UINT32:
            raise _mismatch("unsigned-integer")
        request.settings["log_verbose_level"].uint32_param = level
    form = rest_json.optional_member(document, "log_format")
    if form is not None:
        if _string(form) not in _FORMATS:
            raise OverloadedError(f"invalid argument for --log_format, got: {form}")
        request.settings["log_format"].string_param = _string(form)
    return request


def read_trace_request(model: str, body: bytes) -> pb.TraceSettingRequest:
    """Read POST .../trace/setting; null clears a setting.

    Raises:
        InternalError: not JSON, or a value of the wrong type.
        UnsupportedError: the file is named.
    """
    request = pb.TraceSettingRequest(model_name=model)
    document = rest_json.parse(body)
    members = document if isinstance(document, dict) else {}
    if "trace_file" in members:
        raise UnsupportedError(
            "trace file location can not be updated through network protocol"
        )
    if "trace_level" in members:
        levels = _levels(members["trace_level"])
        # No level at all says nothing over REST.
        if levels is None or levels:
            request.settings["trace_level"].value.extend(levels or ())
    for name in _TRACE_NUMBERS:
        if name in members:
            value = members[name]
            number = () if value is None else (_string(value),)
            request.settings[name].value.extend(number)
    for setting in request.settings.values():
        setting.SetInParent()
    return request


def _levels(value: object) -> Sequence[str] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise _mismatch("array")
    return [_string(each) for each in value]


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise _mismatch("string")
    return rest_json.unicode_text(value)


def _mismatch(kind: str) -> InternalError:
    return InternalError(f"attempt to access JSON non-{kind} as {kind}")
