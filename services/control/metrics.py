"""Control's part of the Prometheus page.

Source: Prometheus' text exposition format, version 0.0.4; ``nv_`` names are Triton's.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from services.control.model_registry import VersionKey
from services.control.route_table import VersionRoute
from services.core.lifecycle import ModelState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the page shows.

    Attributes:
        routes: All versions.
        worker_count: Attached workers.
        router_count: Attached routers.
        load_durations_s: Of each version's last load.
    """

    routes: tuple[VersionRoute, ...]
    worker_count: int
    router_count: int
    load_durations_s: Mapping[VersionKey, float]


def render(measured: Measured) -> str:
    """Return the page."""
    states = Counter(route.state for route in measured.routes)
    families = (
        _gauge(
            "nereid_models",
            "Number of model versions in each state",
            (({"state": state.value}, states[state]) for state in ModelState),
        ),
        _gauge(
            "nereid_workers",
            "Number of attached workers",
            [({}, measured.worker_count)],
        ),
        _gauge(
            "nereid_routers",
            "Number of attached routers",
            [({}, measured.router_count)],
        ),
        _gauge(
            "nv_model_load_duration_secs",
            "Model load time in seconds",
            (
                ({"model": model, "version": str(version)}, seconds)
                for (model, version), seconds in sorted(
                    measured.load_durations_s.items()
                )
            ),
        ),
    )
    return "".join(f"{line}\n" for family in families for line in family)


def _gauge(
    name: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        pairs = ",".join(f'{key}="{_escape(each)}"' for key, each in labels.items())
        yield f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
