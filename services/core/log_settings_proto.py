"""Log settings on their way from control to every other process."""

from protos import control_pb2
from services.core import logs
from services.core.logs import LogSettings


def to_proto(settings: LogSettings) -> control_pb2.LogSettings:
    """Return ``settings`` as a message."""
    return control_pb2.LogSettings(
        verbose=settings.verbose,
        info=settings.info,
        warning=settings.warning,
        error=settings.error,
        iso8601=settings.iso8601,
    )


def obey(message: control_pb2.LogSettings) -> None:
    """Write this process's log as ``message`` says from now on."""
    logs.configure(
        settings=LogSettings(
            verbose=message.verbose,
            info=message.info,
            warning=message.warning,
            error=message.error,
            iso8601=message.iso8601,
        )
    )
