"""``python -m services.gateway OUT_DIR``: write what Envoy is started with."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from services.gateway.config import GatewaySettings
from services.gateway.files import DESCRIPTOR_NAME, write


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files and print the configuration's path."""
    parser = argparse.ArgumentParser(prog="python -m services.gateway")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--http-address", default="0.0.0.0")  # noqa: S104
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--metrics-address", default="0.0.0.0")  # noqa: S104
    parser.add_argument("--metrics-port", type=int, default=8002)
    parser.add_argument("--router", action="append", required=True)
    parser.add_argument("--control", required=True)
    parser.add_argument("--admin-socket", default="")
    words = parser.parse_args(argv)
    settings = GatewaySettings(
        http_address=words.http_address,
        http_port=words.http_port,
        metrics_address=words.metrics_address,
        metrics_port=words.metrics_port,
        router_targets=tuple(words.router),
        control_target=words.control,
        descriptor_path=str(words.directory.resolve() / DESCRIPTOR_NAME),
        admin_socket=words.admin_socket,
    )
    sys.stdout.write(f"{write(words.directory, settings)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
