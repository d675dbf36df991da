"""What outlives a control process: the generations that workers may still serve."""

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.control.model_registry import (
    Generation,
    Member,
    PlacedInstance,
    VersionSpec,
)
from services.core.lifecycle import ModelState


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state worth keeping.

    Attributes:
        generations: What workers have, or are about to have.
        router_endpoints: Where workers reach the routers.
    """

    generations: tuple[Generation, ...] = ()
    router_endpoints: tuple[str, ...] = ()


def snapshot_of(
    generations: Iterable[Generation], router_endpoints: Sequence[str]
) -> Snapshot:
    """Return what is worth keeping of ``generations``."""
    kept = tuple(
        each
        for each in generations
        if each.is_wanted_on_workers
        and (each.placed or each.former or each.spec.members)
    )
    return Snapshot(generations=kept, router_endpoints=tuple(router_endpoints))


def to_fields(snapshot: Snapshot) -> dict[str, str]:
    """Return a snapshot as the fields of one hash: a field for each generation."""
    fields = {
        str(each.number): json.dumps(_generation_to_json(each))
        for each in snapshot.generations
    }
    fields["routers"] = json.dumps(snapshot.router_endpoints)
    return fields


def from_fields(fields: dict[str, str]) -> Snapshot:
    """Return the snapshot that ``to_fields`` wrote; no fields are an empty one.

    Raises:
        ValueError: the fields are not what ``to_fields`` writes.
    """
    try:
        routers = json.loads(fields.get("routers", "[]"))
        generations = tuple(
            _generation_from_json(int(number), json.loads(text))
            for number, text in sorted(fields.items())
            if number != "routers"
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a snapshot: {error!r}") from error
    return Snapshot(generations=generations, router_endpoints=tuple(routers))


def _generation_to_json(generation: Generation) -> dict[str, object]:
    spec = generation.spec
    return {
        "state": generation.state.value,
        "model": spec.model,
        "version": spec.version,
        "config": base64.b64encode(spec.config).decode(),
        "backend": spec.backend,
        "directory": spec.directory,
        "fingerprint": spec.fingerprint,
        "content": spec.content,
        "members": spec.members,
        "placed": {
            worker_id: [[each.name, each.group] for each in instances]
            for worker_id, instances in {
                **generation.former,
                **generation.placed,
            }.items()
        },
    }


def _generation_from_json(number: int, fields: dict[str, object]) -> Generation:
    placed = fields["placed"]
    if not isinstance(placed, dict):
        raise TypeError("placed")
    return Generation(
        number=number,
        spec=VersionSpec(
            model=str(fields["model"]),
            version=int(str(fields["version"])),
            config=base64.b64decode(str(fields["config"])),
            backend=str(fields["backend"]),
            directory=str(fields["directory"]),
            fingerprint=str(fields["fingerprint"]),
            content=str(fields.get("content", "")),
            members=_members_from_json(fields.get("members", [])),
        ),
        state=ModelState(fields["state"]),
        former={
            worker_id: tuple(
                PlacedInstance(name=name, group=group) for name, group in instances
            )
            for worker_id, instances in placed.items()
        },
    )


def _members_from_json(members: object) -> tuple[Member, ...]:
    if not isinstance(members, list):
        raise TypeError("members")
    return tuple((str(model), version) for model, version in members)
