"""Every flag of ``tritonserver``, and what ``nereid serve`` does with it.

Source: the option table of the ``tritonserver`` command, release 2.51.
"""

import enum
from dataclasses import dataclass
from typing import Final


class Kind(enum.Enum):
    """What follows a flag's name; the value is what the help shows."""

    SWITCH = ""
    BOOL = "BOOL"
    INTEGER = "N"
    NUMBER = "X"
    TEXT = "TEXT"


class Effect(enum.Enum):
    """What ``nereid serve`` does with a flag."""

    HONOURED = "honoured"
    IGNORED = "accepted and ignored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One command-line flag.

    Attributes:
        name: Without its dashes.
        kind: What its value looks like.
        effect: Whether it does anything.
        repeated: Whether it may be given several times, each adding a value.
        alias_of: The flag that a deprecated name stands for; empty if none.
        text: The help line; for an ignored flag, why nothing comes of it.
    """

    name: str
    kind: Kind
    effect: Effect
    repeated: bool = False
    alias_of: str = ""
    text: str = ""


def _honoured(name: str, kind: Kind, text: str, *, repeated: bool = False) -> Flag:
    return Flag(
        name=name, kind=kind, effect=Effect.HONOURED, repeated=repeated, text=text
    )


def _ignored(name: str, kind: Kind, text: str, *, repeated: bool = False) -> Flag:
    return Flag(
        name=name, kind=kind, effect=Effect.IGNORED, repeated=repeated, text=text
    )


def _alias(name: str, of: str, kind: Kind, *, repeated: bool = False) -> Flag:
    return Flag(
        name=name,
        kind=kind,
        effect=Effect.HONOURED,
        repeated=repeated,
        alias_of=of,
        text=f"deprecated; use --{of}",
    )


def _old_trace(name: str, kind: Kind, *, repeated: bool = False) -> Flag:
    text = "deprecated; use --trace-config"
    return _honoured(name, kind, text, repeated=repeated)


_SWITCH, _BOOL, _INTEGER, _NUMBER, _TEXT = Kind

# Reasons that several ignored flags share.
_NOT_YET = "Nereid has no such feature yet"
_ENVOY = "Envoy, not Nereid, owns these connections"
_C_CORE = "gRPC's own default holds"
_PLATFORM = "made for a hosting platform's container"
_MEMORY = "Nereid lets each runtime manage its memory"

TRITON_FLAGS: Final[tuple[Flag, ...]] = (
    _honoured("help", _SWITCH, "print this help and end"),
    _ignored("id", _TEXT, _NOT_YET),
    _honoured("exit-timeout-secs", _INTEGER, "how long a stop waits for requests"),
    _alias("model-store", "model-repository", _TEXT, repeated=True),
    _honoured("model-repository", _TEXT, "a folder of models", repeated=True),
    _honoured("exit-on-error", _BOOL, "end if a model fails to load at the start"),
    _honoured("disable-auto-complete-config", _SWITCH, "take config.pbtxt as it is"),
    _honoured("strict-readiness", _BOOL, "ready only once all models are"),
    _honoured("model-control-mode", _TEXT, "none, explicit, poll or on-demand"),
    _honoured("repository-poll-secs", _INTEGER, "how often poll mode looks"),
    _honoured("load-model", _TEXT, "load at the start", repeated=True),
    _honoured("model-config-name", _TEXT, "use configs/TEXT.pbtxt where it is"),
    _honoured("model-load-thread-count", _INTEGER, "models a worker loads at once"),
    _honoured("model-load-retry-count", _INTEGER, "try a failed load again"),
    _ignored("model-namespacing", _BOOL, "a name may stand in one repository only"),
    _ignored("enable-peer-access", _BOOL, "each worker process has one device"),
    _honoured("allow-http", _BOOL, "serve REST"),
    _honoured("http-address", _TEXT, "where REST listens"),
    _honoured("http-port", _INTEGER, "the port of REST"),
    _ignored("reuse-http-port", _BOOL, _ENVOY),
    _honoured("http-header-forward-pattern", _TEXT, "headers that models see"),
    _ignored("http-thread-count", _INTEGER, _ENVOY),
    _honoured("http-max-input-size", _INTEGER, "the largest REST body, in bytes"),
    _honoured("http-restricted-api", _TEXT, "API,...:HEADER=VALUE", repeated=True),
    _honoured("allow-grpc", _BOOL, "serve gRPC"),
    _honoured("grpc-address", _TEXT, "where gRPC listens"),
    _honoured("grpc-port", _INTEGER, "the port of gRPC"),
    _ignored("reuse-grpc-port", _BOOL, _NOT_YET),
    _honoured("grpc-header-forward-pattern", _TEXT, "headers that models see"),
    _ignored("grpc-infer-thread-count", _INTEGER, "one thread serves inference"),
    _ignored("grpc-infer-allocation-pool-size", _INTEGER, _MEMORY),
    _ignored("grpc-max-response-pool-size", _INTEGER, _MEMORY),
    _ignored("grpc-use-ssl", _BOOL, _NOT_YET),
    _ignored("grpc-use-ssl-mutual", _BOOL, _NOT_YET),
    _ignored("grpc-server-cert", _TEXT, _NOT_YET),
    _ignored("grpc-server-key", _TEXT, _NOT_YET),
    _ignored("grpc-root-cert", _TEXT, _NOT_YET),
    _ignored("grpc-infer-response-compression-level", _TEXT, _NOT_YET),
    _ignored("grpc-keepalive-time", _INTEGER, _C_CORE),
    _ignored("grpc-keepalive-timeout", _INTEGER, _C_CORE),
    _ignored("grpc-keepalive-permit-without-calls", _BOOL, _C_CORE),
    _ignored("grpc-http2-max-pings-without-data", _INTEGER, _C_CORE),
    _ignored("grpc-http2-min-recv-ping-interval-without-data", _INTEGER, _C_CORE),
    _ignored("grpc-http2-max-ping-strikes", _INTEGER, _C_CORE),
    _ignored("grpc-max-connection-age", _INTEGER, _C_CORE),
    _ignored("grpc-max-connection-age-grace", _INTEGER, _C_CORE),
    _honoured("grpc-restricted-protocol", _TEXT, "API,...:HEADER=VALUE", repeated=True),
    _honoured("log-verbose", _INTEGER, "verbosity; 0 is off"),
    _honoured("log-info", _BOOL, "write informational lines"),
    _honoured("log-warning", _BOOL, "write warnings"),
    _honoured("log-error", _BOOL, "write errors"),
    _honoured("log-format", _TEXT, "default or ISO8601"),
    _honoured("log-file", _TEXT, "append the log to this file, not to stderr"),
    _ignored("allow-sagemaker", _BOOL, _PLATFORM),
    _ignored("sagemaker-port", _INTEGER, _PLATFORM),
    _ignored("sagemaker-safe-port-range", _TEXT, _PLATFORM),
    _ignored("sagemaker-thread-count", _INTEGER, _PLATFORM),
    _ignored("allow-vertex-ai", _BOOL, _PLATFORM),
    _ignored("vertex-ai-port", _INTEGER, _PLATFORM),
    _ignored("vertex-ai-thread-count", _INTEGER, _PLATFORM),
    _ignored("vertex-ai-default-model", _TEXT, _PLATFORM),
    _honoured("allow-metrics", _BOOL, "serve metrics"),
    _honoured("allow-gpu-metrics", _BOOL, "show the load of GPUs"),
    _honoured("allow-cpu-metrics", _BOOL, "show the load of the CPU"),
    _honoured("metrics-address", _TEXT, "where metrics listen"),
    _honoured("metrics-port", _INTEGER, "the port of metrics"),
    _honoured("metrics-interval-ms", _NUMBER, "how often CPU and GPU are looked at"),
    _honoured("metrics-config", _TEXT, "SETTING=VALUE", repeated=True),
    _honoured(
        "trace-config", _TEXT, "[MODE,]SETTING=VALUE: what is traced", repeated=True
    ),
    _honoured("cache-config", _TEXT, "local,size=BYTES or redis,...", repeated=True),
    _ignored("cache-directory", _TEXT, _NOT_YET),
    _honoured("rate-limit", _TEXT, "off or execution_count"),
    _honoured("rate-limit-resource", _TEXT, "NAME:COUNT[:DEVICE]", repeated=True),
    _ignored("pinned-memory-pool-byte-size", _INTEGER, _MEMORY),
    _ignored("cuda-memory-pool-byte-size", _TEXT, _MEMORY, repeated=True),
    _ignored("cuda-virtual-address-size", _TEXT, _MEMORY, repeated=True),
    _ignored("min-supported-compute-capability", _NUMBER, "the runtime decides"),
    _ignored("buffer-manager-thread-count", _INTEGER, _MEMORY),
    _ignored("host-policy", _TEXT, _NOT_YET, repeated=True),
    _ignored("model-load-gpu-limit", _TEXT, _NOT_YET, repeated=True),
    _honoured("allow-client-shm", _BOOL, "let clients share memory with workers"),
    _ignored("backend-directory", _TEXT, "backends are part of the package"),
    _honoured("backend-config", _TEXT, "BACKEND,KEY=VALUE", repeated=True),
    _ignored("repoagent-directory", _TEXT, _NOT_YET),
    _alias("strict-model-config", "disable-auto-complete-config", _BOOL),
    _honoured("response-cache-byte-size", _INTEGER, "deprecated; use --cache-config"),
    _old_trace("trace-file", _TEXT),
    _old_trace("trace-level", _TEXT, repeated=True),
    _old_trace("trace-rate", _INTEGER),
    _old_trace("trace-count", _INTEGER),
    _old_trace("trace-log-frequency", _INTEGER),
)

OWN_FLAGS: Final[tuple[Flag, ...]] = (
    _honoured("model-memory-budget", _TEXT, "what on-demand mode may load: 2GiB, 512M"),
    _honoured("no-worker-timeout", _NUMBER, "seconds to wait for a lost worker"),
    _honoured("max-queue-bytes", _INTEGER, "requests of a model that wait together"),
    _honoured("device", _TEXT, "start a worker for cpu or cuda:N", repeated=True),
    _honoured("state-dir", _TEXT, "where the embedded store keeps its data"),
    _honoured("allow-statistics", _BOOL, "count what becomes of requests"),
    _honoured("quickstart", _SWITCH, "once ready, send the demo's first inferences"),
)

FLAGS: Final[tuple[Flag, ...]] = TRITON_FLAGS + OWN_FLAGS
