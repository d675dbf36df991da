"""Has the gateway's configuration written, in the stack's own words."""

from pathlib import Path

from services.gateway.config import DEFAULT_BODY_LIMIT_BYTES, GatewaySettings
from services.gateway.files import DESCRIPTOR_NAME, write
from services.stack.plan import Places
from services.stack.settings import Door, StackSettings

# The gateway leaves out a door with this port.
_NO_DOOR = Door(name="", flag="", host="", port=0)


def write_config(settings: StackSettings, places: Places) -> str:
    """Write what Envoy is started with, and return the configuration's path."""
    directory = Path(places.run_directory) / "envoy"
    rest = settings.rest or _NO_DOOR
    metrics = settings.metrics or _NO_DOOR
    limit = settings.http_max_input_bytes
    gateway = GatewaySettings(
        http_address=rest.host,
        http_port=rest.port,
        metrics_address=metrics.host,
        metrics_port=metrics.port,
        router_targets=(places.router_target,),
        control_target=places.control_target,
        descriptor_path=str(directory / DESCRIPTOR_NAME),
        body_limit_bytes=DEFAULT_BODY_LIMIT_BYTES if limit is None else limit,
    )
    return str(write(directory, gateway))
