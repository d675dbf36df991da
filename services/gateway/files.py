"""The files that Envoy is started with."""

import json
from pathlib import Path
from typing import Final

from services.gateway.config import GatewaySettings, envoy_config
from services.gateway.descriptor import transcoder_descriptor

CONFIG_NAME: Final = "envoy.yaml"
DESCRIPTOR_NAME: Final = "rest.pb"


def write(directory: Path, settings: GatewaySettings) -> Path:
    """Write configuration and descriptor set; return the configuration's path."""
    directory.mkdir(parents=True, exist_ok=True)
    Path(settings.descriptor_path).write_bytes(transcoder_descriptor())
    path = directory / CONFIG_NAME
    path.write_text(json.dumps(envoy_config(settings), indent=1), encoding="utf-8")
    return path
