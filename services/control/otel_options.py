"""The options of ``--trace-config opentelemetry,...``. Pure.

Source: Triton's OpenTelemetry mode; the bsp options are those of the batch span
processor.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

DEFAULT_URL: Final = "http://localhost:4318/v1/traces"
SERVICE_NAME: Final = "service.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelOptions:
    """Where spans go, and how.

    Attributes:
        url: Of the collector's OTLP over HTTP.
        resource: Attributes of the resource.
        max_queue_size: Spans that wait for export; more are dropped.
        schedule_delay_ms: How long they wait at most.
        max_export_batch_size: Spans in one request.
    """

    url: str = DEFAULT_URL
    resource: dict[str, str] = field(default_factory=lambda: {SERVICE_NAME: "nereid"})
    max_queue_size: int = 2048
    schedule_delay_ms: int = 5000
    max_export_batch_size: int = 512


_NUMBERS: Final = {
    "bsp_max_queue_size": "max_queue_size",
    "bsp_schedule_delay": "schedule_delay_ms",
    "bsp_max_export_batch_size": "max_export_batch_size",
}


def read_options(pairs: Iterable[tuple[str, str]]) -> OtelOptions:
    """Return what the options say together.

    Raises:
        ValueError: one makes no sense; the message names it.
    """
    options = OtelOptions()
    for name, value in pairs:
        if name == "url":
            options = replace(options, url=value)
        elif name == "resource":
            key, equals, text = value.partition("=")
            if not (key and equals):
                raise ValueError(
                    "--trace-config: opentelemetry,resource wants"
                    f" <key>=<value>, not '{value}'"
                )
            options = replace(options, resource={**options.resource, key: text})
        elif name in _NUMBERS:
            if not value.isdecimal() or not int(value):
                raise ValueError(
                    f"--trace-config: opentelemetry,{name} wants a number above 0,"
                    f" not '{value}'"
                )
            options = replace(options, **{_NUMBERS[name]: int(value)})  # type: ignore[arg-type]  # by field
        else:
            raise ValueError(
                f"--trace-config: mode opentelemetry has no setting '{name}'"
            )
    if options.max_export_batch_size > options.max_queue_size:
        raise ValueError(
            "--trace-config: bsp_max_export_batch_size must not exceed"
            " bsp_max_queue_size"
        )
    return options
