"""Ensembles follow their members: READY as long as all of them can be called.

No worker has an ensemble, so nothing is placed; what it lacks is a member. Pure.

Source: the reasons are those that Triton gives when it walks the graph of a model
repository.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from services.control.generations import Generations
from services.control.model_registry import (
    UNLOADED,
    Generation,
    Member,
    ModelRegistry,
    VersionKey,
    VersionSpec,
)
from services.core.lifecycle import ModelEvent, ModelState


class CheckMembers(Protocol):
    """Whether an ensemble fits the configurations of its members."""

    def __call__(self, spec: VersionSpec, members: Mapping[Member, VersionSpec]) -> str:
        """Return what does not fit, in words for the client; "" if all does.

        Args:
            spec: The ensemble.
            members: What its steps call, each of ``spec.members``.
        """
        ...


def fits_always(spec: VersionSpec, members: Mapping[Member, VersionSpec]) -> str:
    """Find no fault with any ensemble."""
    del spec, members
    return ""


@dataclass(frozen=True, slots=True)
class Lack:
    """Why an ensemble cannot be READY.

    Attributes:
        reason: For the client.
        is_passing: A member is on its way: it is too early to give up.
    """

    reason: str
    is_passing: bool = False


def settle_ensembles(
    desired: Mapping[VersionKey, VersionSpec],
    generations: Generations,
    check: CheckMembers,
    is_pending: Callable[[str], bool],
) -> None:
    """Bring every desired ensemble to the state that its members allow.

    Args:
        desired: All versions that should be served.
        generations: Changed in place.
        check: Compares an ensemble with its members.
        is_pending: Whether a model that is no ensemble is on its way to READY.
    """
    keys = sorted(key for key, spec in desired.items() if spec.members)
    world = _World(desired, generations.registry, check, is_pending)
    # An ensemble may be a member: a change may let others change.
    for _ in keys:
        changes = [
            world.settle(generation, generations)
            for key in keys
            for generation in _alive(generations.registry.of(key))
        ]
        if not any(changes):
            return


@dataclass(frozen=True, slots=True)
class _World:
    desired: Mapping[VersionKey, VersionSpec]
    registry: ModelRegistry
    check: CheckMembers
    is_pending: Callable[[str], bool]

    def settle(self, generation: Generation, generations: Generations) -> bool:
        """Bring one ensemble to its state; whether anything changed."""
        lack = self._lack_of(generation.spec)
        if lack is None:
            if generation.state is ModelState.READY:
                return False
            if generation.state is ModelState.UNAVAILABLE:
                generation = self.registry.advance(generation, ModelEvent.LOAD)
            generations.make_ready(generation)
            return True
        match generation.state:
            case ModelState.READY:
                self.registry.advance(
                    generation,
                    ModelEvent.WORKER_LOST,
                    reason=lack.reason,
                    is_failed=not lack.is_passing,
                )
            case ModelState.LOADING if not lack.is_passing:
                generations.fail(generation, lack.reason)
            case ModelState.UNAVAILABLE if lack.is_passing:
                self.registry.advance(generation, ModelEvent.LOAD)
            case ModelState.UNAVAILABLE:
                renewed = dataclasses.replace(
                    generation, reason=lack.reason, is_failed=True
                )
                self.registry.put(renewed)
                return renewed != generation
            case _:
                return False
        return True

    def _lack_of(self, spec: VersionSpec) -> Lack | None:
        circle = _circle(spec, self.desired.values())
        if circle:
            path = "' depends on '".join(circle)
            return Lack(f"circular dependency between ensembles: '{path}'")
        unknown = [model for model, _ in spec.members if not self._is_known(model)]
        if unknown:
            names = ", ".join(dict.fromkeys(unknown))
            reason = (
                f"ensemble {spec.model} contains models that are not available or "
                f"ambiguous: {names}"
            )
            return Lack(reason)
        members = {}
        for member in spec.members:
            called = self._called(member)
            if called is None:
                return self._absence(spec.model, member)
            members[member] = called
        problem = self.check(spec, members)
        return Lack(problem) if problem else None

    def _absence(self, ensemble: str, member: Member) -> Lack:
        model, version = member
        lacking = (
            f"'{model}' which has no loaded version"
            if version is None
            else f"'{model}' whose required version {version} is not loaded"
        )
        reason = f"ensemble '{ensemble}' depends on {lacking}"
        return Lack(reason, is_passing=self._is_on_its_way(model))

    def _is_known(self, model: str) -> bool:
        return any(key[0] == model for key in self.desired) or any(
            key[0] == model for key in self.registry.versions()
        )

    def _called(self, member: Member) -> VersionSpec | None:
        """Return what a request to ``member`` reaches, if anything.

        What is loaded again after its workers were lost counts: routers keep
        requests for it.
        """
        model, version = member
        callable_ = [
            generation.spec
            for key in self.registry.versions()
            if key[0] == model and version in (None, key[1])
            for generation in self.registry.of(key)
            if generation.state is ModelState.READY or generation.is_returning
        ]
        return max(callable_, key=lambda spec: spec.version, default=None)

    def _is_on_its_way(self, model: str) -> bool:
        ensembles = [
            key
            for key, spec in self.desired.items()
            if key[0] == model and spec.members
        ]
        if not ensembles:
            return self.is_pending(model)
        return any(
            generation.state is ModelState.LOADING
            for key in ensembles
            for generation in self.registry.of(key)
        )


def _alive(generations: Collection[Generation]) -> list[Generation]:
    return [
        each
        for each in generations
        if each.state is not ModelState.UNLOADING
        and each.reason != UNLOADED
        and each.spec.members
    ]


def _circle(spec: VersionSpec, desired: Iterable[VersionSpec]) -> tuple[str, ...]:
    """Return the models from ``spec`` back to itself; () if there is no such way."""
    members: dict[str, set[str]] = {}
    for each in desired:
        if each.members:
            models = {model for model, _ in each.members}
            members.setdefault(each.model, set()).update(models)
    seen: set[str] = set()

    def ways(model: str, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for member in sorted(members.get(model, ())):
            if member == spec.model:
                yield (*path, member)
            elif member not in seen:
                seen.add(member)
                yield from ways(member, (*path, member))

    return next(ways(spec.model, (spec.model,)), ())
