"""``python -m services.gateway OUT_DIR``: write what Envoy is started with."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from services.core.errors import ConfigError
from services.gateway.config import DEFAULT_BODY_LIMIT_BYTES, GatewaySettings
from services.gateway.files import DESCRIPTOR_NAME, write
from services.gateway.listeners import ListenerOptions, Tls


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files and print the configuration's path; return the exit status."""
    words = _parser().parse_args(argv)
    try:
        path = write(words.directory, _settings(words))
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m services.gateway")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--http-address", default="0.0.0.0")  # noqa: S104
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--metrics-address", default="0.0.0.0")  # noqa: S104
    parser.add_argument("--metrics-port", type=int, default=8002)
    parser.add_argument("--router", action="append", required=True)
    parser.add_argument("--control", required=True)
    parser.add_argument("--admin-socket", default="")
    parser.add_argument("--access-log", default="")
    parser.add_argument("--tls-certificate", default="")
    parser.add_argument("--tls-private-key", default="")
    parser.add_argument("--tls-client-ca", default="")
    parser.add_argument(
        "--http-max-input-size", type=int, default=DEFAULT_BODY_LIMIT_BYTES
    )
    return parser


def _settings(words: argparse.Namespace) -> GatewaySettings:
    """Read the flags.

    Raises:
        ConfigError: they contradict each other.
    """
    if bool(words.tls_certificate) != bool(words.tls_private_key):
        raise ConfigError("TLS needs a certificate and its private key")
    tls = Tls(
        certificate_path=words.tls_certificate,
        private_key_path=words.tls_private_key,
        client_ca_path=words.tls_client_ca,
    )
    return GatewaySettings(
        http_address=words.http_address,
        http_port=words.http_port,
        metrics_address=words.metrics_address,
        metrics_port=words.metrics_port,
        router_targets=tuple(words.router),
        control_target=words.control,
        descriptor_path=str(words.directory.resolve() / DESCRIPTOR_NAME),
        admin_socket=words.admin_socket,
        body_limit_bytes=words.http_max_input_size,
        listeners=ListenerOptions(
            tls=tls if words.tls_certificate else None, access_log=words.access_log
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
