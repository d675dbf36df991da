"""Loads models that are only a configuration."""

from collections.abc import Callable, Sequence

from services.core.errors import ConfigError
from services.worker.backend import AnyBackend, FoundModel, InstancePlace, ModelSource


class QaRuntime:
    """Loads the models of one test backend."""

    def __init__(
        self,
        name: str,
        prepare: Callable[[ModelSource], None],
        make: Callable[[ModelSource, InstancePlace, int], AnyBackend],
    ) -> None:
        """Know the backend.

        Args:
            name: As configurations have it.
            prepare: Called once for each model version; raises ConfigError if the
                backend cannot serve it.
            make: Makes the n-th of the instances loaded together, n from 0.
        """
        self._name = name
        self._prepare = prepare
        self._make = make

    def load(
        self, source: ModelSource, places: Sequence[InstancePlace]
    ) -> tuple[AnyBackend, ...]:
        """Load one model version; see Runtime."""
        self._prepare(source)
        return tuple(
            self._make(source, place, number) for number, place in enumerate(places)
        )

    def inspect(self, source: ModelSource) -> FoundModel:
        """Refuse: there is no file; see Runtime."""
        message = (
            f"model '{source.config.name}' of backend '{self._name}' must say its"
            " inputs and outputs in config.pbtxt"
        )
        raise ConfigError(message)
