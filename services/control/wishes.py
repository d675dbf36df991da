"""What should be served, and how near what is served comes to it. Pure.

- A version that is no longer wanted serves until all that are wanted instead do; if
  one of these fails, it is wanted again.
- Versions that an earlier control process had placed are kept for the workers that
  may come back with them, until it is clear that they do not.
"""

import dataclasses
from collections.abc import Collection, Sequence

from services.control.events import ModelDesired, ModelDropped, ModelRefused
from services.control.generations import Generations
from services.control.model_registry import Generation, VersionKey, VersionSpec
from services.core.lifecycle import ModelEvent, ModelState


class Wishes:
    """The versions that somebody wants.

    Attributes:
        desired: As they should be served.
        problems: Models that should be served and have no usable configuration: why.
        awaited: Restored versions no worker has come back with; True: desired again.
    """

    def __init__(self, generations: Generations) -> None:
        """Begin with none; ``generations`` are begun and ended as wishes change."""
        self.desired: dict[VersionKey, VersionSpec] = {}
        self.problems: dict[str, str] = {}
        self.awaited: dict[VersionKey, bool] = {}
        self._departing: dict[VersionKey, VersionSpec] = {}
        self._generations = generations
        self._registry = generations.registry

    def models(self) -> set[str]:
        """Return the models that should be served, restored ones included."""
        return {model for model, _ in self.desired} | self.problems.keys()

    def directories_in_use(self) -> set[str]:
        """Return the folders of versions that workers read or may have to read."""
        placed = {
            generation.spec.directory
            for generation in self._registry
            if generation.placed or (generation.former and not generation.is_unloaded)
        }
        return placed | {spec.directory for spec in self.desired.values()}

    def matching(self, key: VersionKey) -> Generation | None:
        """Return the generation that is, or becomes, what is desired."""
        spec = self.desired[key]
        found = [
            each
            for each in self._registry.of(key)
            if each.spec == spec
            and each.state is not ModelState.UNLOADING
            and not each.is_unloaded
        ]
        return found[-1] if found else None

    def is_pending(self, model: str) -> bool:
        """Whether a desired version of ``model`` is on its way to READY."""
        return any(self._is_pending(key) for key in self.desired if key[0] == model)

    def are_fulfilled(self) -> bool:
        """Whether all that should be served is, or is being replaced while it is."""
        return all(map(self._is_served, self.problems)) and all(
            self._registry.serving(key)
            # Another version answers meanwhile.
            or (self._is_pending(key) and self._is_served(key[0]))
            for key in self.desired
        )

    def apply(self, event: ModelDesired | ModelDropped | ModelRefused) -> None:
        """Take in a wish."""
        match event:
            case ModelDesired(model=model, specs=specs):
                self.problems.pop(model, None)
                self._replace(model, keep=[spec.key for spec in specs])
                for spec in specs:
                    self._desire(spec)
            case ModelDropped(model=model):
                self.problems.pop(model, None)
                for key in self._versions_of(model):
                    self._drop(key)
            case ModelRefused(model=model, reason=reason):
                self.problems[model] = reason

    def let_depart(self) -> set[VersionKey]:
        """Let go of versions that others of their model have taken over from.

        Returns:
            Those that are wanted again, because another one failed.
        """
        kept = set()
        for key in sorted(self._departing):
            if self.is_pending(key[0]):
                continue
            others = [each for each in self.desired if each[0] == key[0]]
            if all(map(self._registry.serving, others)):
                self._drop(key)
            else:
                self.desired[key] = self._departing.pop(key)
                kept.add(key)
        return kept

    def restore(self, generations: Sequence[Generation]) -> bool:
        """Take in what an earlier process had placed; whether there was anything."""
        for generation in generations:
            self._generations.restore(generation)
            self.desired[generation.spec.key] = generation.spec
            if not generation.spec.members:
                self.awaited[generation.spec.key] = False
        return bool(generations)

    def forget_unwanted(self) -> None:
        """Wait no longer: what is not desired again is forgotten."""
        self.awaited.clear()
        for key in tuple(self.desired):
            restored = self._registry.of(key)
            if restored and all(each.is_restored for each in restored):
                del self.desired[key]
                for generation in restored:
                    self._registry.remove(generation.number)

    def _desire(self, spec: VersionSpec) -> None:
        self._departing.pop(spec.key, None)
        for generation in self._registry.of(spec.key):
            if generation.spec.is_loaded_like(spec):
                renewed = dataclasses.replace(generation, spec=spec, is_restored=False)
                self._registry.put(renewed)
        if spec.key in self.awaited:
            self.awaited[spec.key] = True
            if not self.desired[spec.key].is_loaded_like(spec):
                del self.awaited[spec.key]
        self.desired[spec.key] = spec
        for generation in self._registry.of(spec.key):
            if generation.is_failed:
                self._registry.remove(generation.number)
            elif generation.state is ModelState.LOADING and generation.spec != spec:
                self._registry.advance(generation, ModelEvent.UNLOAD)

    def _replace(self, model: str, *, keep: Collection[VersionKey]) -> None:
        """Drop the versions that do not stay, those that serve in due course."""
        for key in self._versions_of(model):
            if key in keep:
                continue
            serving = self._registry.serving(key)
            if serving is None:
                self._drop(key)
            else:
                self.desired.pop(key, None)
                self._departing[key] = serving.spec

    def _drop(self, key: VersionKey) -> None:
        self.desired.pop(key, None)
        self.awaited.pop(key, None)
        self._departing.pop(key, None)
        self._generations.drop_version(key)

    def _versions_of(self, model: str) -> list[VersionKey]:
        known = {*self.desired, *self._registry.versions()}
        return sorted(key for key in known if key[0] == model)

    def _is_pending(self, key: VersionKey) -> bool:
        if key in self.awaited:
            return self.awaited[key]
        generation = self.matching(key)
        return generation is not None and not (
            generation.state is ModelState.READY or generation.is_failed
        )

    def _is_served(self, model: str) -> bool:
        return any(map(self._registry.serving, self._versions_of(model)))
