"""The names of the counters of one model version: in reports, in the store. Pure.

A counter only grows, and equal names add up, over routers and over restarts. So a
router may count something new without control or the store knowing of it.

Source: the fields are those of Triton's statistics extension.
"""

import enum
from typing import Final


class Phase(enum.Enum):
    """What is counted with a duration for each request."""

    SUCCESS = "success"
    FAIL = "fail"
    QUEUE = "queue"
    COMPUTE_INPUT = "compute_input"
    COMPUTE_INFER = "compute_infer"
    COMPUTE_OUTPUT = "compute_output"
    CACHE_HIT = "cache_hit"
    CACHE_MISS = "cache_miss"


class FailureReason(enum.Enum):
    """Why a request failed, in the words of Triton's metrics.

    REJECTED: the queue's policy did not let it wait, or not any longer.
    CANCELED: its client left before the answer came.
    BACKEND: the model, or the runtime below it, refused it.
    OTHER: anything else, for example a server that stops.
    """

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class ShadowOutcome(enum.Enum):
    """What became of a copy of a request, made for the version that is counted.

    MATCHED: it was answered as the request was.
    DIFFERED: it was answered otherwise.
    FAILED: it was refused, or failed.
    DROPPED: it was not sent; the version is too slow, or it cannot be copied.
    """

    MATCHED = "matched"
    DIFFERED = "differed"
    FAILED = "failed"
    DROPPED = "dropped"


class ResponsePhase(enum.Enum):
    """What is counted with a duration for each response of a decoupled model."""

    COMPUTE_INFER = "compute_infer"
    COMPUTE_OUTPUT = "compute_output"
    SUCCESS = "success"
    FAIL = "fail"
    EMPTY_RESPONSE = "empty_response"
    CANCEL = "cancel"


INFERENCE_COUNT: Final = "inference_count"
EXECUTION_COUNT: Final = "execution_count"
RETRIES: Final = "retries"
# Batches whose worker was lost, and requests that were found guilty of it.
LOST_EXECUTIONS: Final = "lost_executions"
QUARANTINED: Final = "quarantined"
# Of the stack, whatever the model.
WORKER_LOSSES: Final = "worker_losses"
WORKER_RESTARTS: Final = "worker_restarts"
COMPUTE: Final = (Phase.COMPUTE_INPUT, Phase.COMPUTE_INFER, Phase.COMPUTE_OUTPUT)

FIRST_RESPONSE_FAMILY: Final = "nv_inference_first_response_histogram_ms"
# Its default buckets.
FIRST_RESPONSE_BOUNDS_MS: Final = (100.0, 500.0, 2000.0, 5000.0)

_BATCH: Final = "batch"
_RESPONSE: Final = "response"
_FIRST_RESPONSE: Final = "first_response"


def count_field(phase: Phase) -> str:
    """Return the name of how often ``phase`` was counted."""
    return f"{phase.value}.count"


def ns_field(phase: Phase) -> str:
    """Return the name of how long ``phase`` took in all."""
    return f"{phase.value}.ns"


def failure_field(reason: FailureReason) -> str:
    """Return the name of how many requests failed for ``reason``."""
    return f"fail.{reason.value}"


def shadow_field(outcome: ShadowOutcome) -> str:
    """Return the name of how many copies of requests ended so."""
    return f"shadow.{outcome.value}"


def batch_count_field(rows: int) -> str:
    """Return the name of how many executions had ``rows`` rows."""
    return f"{_BATCH}.{rows}.count"


def batch_ns_field(rows: int, phase: Phase) -> str:
    """Return the name of how long ``phase`` of these executions took in all."""
    return f"{_BATCH}.{rows}.{phase.value}.ns"


def batch_size_of(name: str) -> int | None:
    """Return the rows whose executions ``name`` counts; None for other fields."""
    parts = name.split(".")
    if len(parts) == 3 and (parts[0], parts[2]) == (_BATCH, "count"):  # noqa: PLR2004
        return int(parts[1])
    return None


def response_field(index: int, phase: ResponsePhase, what: str) -> str:
    """Return the name of the ``what`` ("count", "ns") of the ``index``-th responses."""
    return f"{_RESPONSE}.{index}.{phase.value}.{what}"


def response_index_of(name: str) -> int | None:
    """Return the index of the responses that ``name`` counts; None for others."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == _RESPONSE else None


def first_response_field(bound_ms: float) -> str:
    """Return the name of how many first responses took at most ``bound_ms``.

    Each is counted once, at the smallest bound that holds it; ``inf`` is the last.
    """
    return f"{_FIRST_RESPONSE}.le.{bound_ms:g}"


FIRST_RESPONSE_SUM_FIELD: Final = f"{_FIRST_RESPONSE}.us"
