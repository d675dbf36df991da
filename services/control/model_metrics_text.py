"""How the metrics of models lie in the store: a text for each source. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from services.control.model_metrics import (
    Families,
    ModelMetrics,
    ShownMetrics,
    Source,
    merged,
)
from services.control.model_registry import VersionKey
from services.control.prometheus import Family, Sample

_SOURCE: Final = "source"
_ENDED: Final = "ended"


def source_name(source: Source) -> str:
    """Return under which name a source is stored."""
    return json.dumps([_SOURCE, *source])


def ended_name(version: VersionKey) -> str:
    """Return under which name it is stored what the ended sources of a version had."""
    return json.dumps([_ENDED, *version])


def to_text(version: VersionKey, families: Families) -> str:
    """Return what is stored of a source, or of those that have ended."""
    return json.dumps([*version, [asdict(family) for family in families]])


def add_stored(metrics: ModelMetrics, stored: Mapping[str, str]) -> None:
    """Add what an earlier process stored, by name, to what has come since.

    A source that has shown itself meanwhile is known better than it is stored.

    Raises:
        ValueError: something was not written by ``to_text``; nothing is added.
    """
    sources: dict[Source, ShownMetrics] = {}
    ended: dict[VersionKey, Families] = {}
    try:
        for name, text in stored.items():
            kind, *key = json.loads(name)
            model, number, families = json.loads(text)
            version = str(model), int(number)
            if kind == _SOURCE:
                process, source = key
                sources[process, int(source)] = ShownMetrics(
                    version=version, families=_families(families), is_lost=True
                )
            else:
                ended[version] = _families(families)
    except (TypeError, KeyError) as error:
        raise ValueError(f"these are no metrics of models: {error}") from error
    metrics.sources = {**sources, **metrics.sources}
    for version, families in ended.items():
        both = (families, metrics.ended.get(version, ()))
        metrics.ended[version] = tuple(merged(both, frozenset()))


def _families(stored: list[dict[str, Any]]) -> Families:
    return tuple(
        Family(
            name=family["name"],
            text=family["text"],
            kind=family["kind"],
            samples=tuple(Sample(**sample) for sample in family["samples"]),
        )
        for family in stored
    )
