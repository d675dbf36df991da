"""Which version answers a request: the routes control sent, looked up.

Source: the errors are the words of Triton's model life cycle.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.core.errors import ModelNotFoundError, ModelNotReadyError
from services.core.lifecycle import ModelState
from services.core.model_config import ModelConfig
from services.core.model_version import parse_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One version of a model, as it stands.

    Attributes:
        model: Name of the model.
        version: Its number, > 0.
        state: Triton's state of it.
        reason: Why it is unavailable, else empty.
        generation: The loading of it that serves now; 0 for none.
        config: The complete configuration.
        config_message: The same, a serialized ``inference.ModelConfig``.
    """

    model: str
    version: int
    state: ModelState
    reason: str = ""
    generation: int = 0
    config: ModelConfig
    config_message: bytes = b""

    @property
    def is_ready(self) -> bool:
        """Whether requests may be sent to it."""
        return self.state is ModelState.READY

    @property
    def version_text(self) -> str:
        """The version as the protocol writes it."""
        return str(self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSplit:
    """How requests that name no version are shared out.

    Attributes:
        weights: By version.
        sticky_parameter: Requests with the same value of it go to the same version;
            "": each goes its own way.
        sticky_header: The same for a header, in lower case.
        shadow_version: Gets a copy of each; 0: none does.
        shadow_tolerance: How far floating-point outputs of copies may be off.
    """

    weights: Mapping[int, int]
    sticky_parameter: str = ""
    sticky_header: str = ""
    shadow_version: int = 0
    shadow_tolerance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTable:
    """All models a client may name, at one revision.

    Attributes:
        revision: Grows with every change; 0 is the empty table.
        ready: Whether start-up loading is over and what should be ready is.
        models: By name, then by version.
        splits: By model, where the newest version does not get everything.
        loadable: Models that are loaded when somebody asks for them.
        is_known: Whether control sent it: before, no model can be said to be unknown.
    """

    revision: int = 0
    ready: bool = False
    is_known: bool = False
    models: Mapping[str, Mapping[int, Route]] = field(default_factory=dict)
    splits: Mapping[str, TrafficSplit] = field(default_factory=dict)
    loadable: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        routes: Iterable[Route],
        *,
        names: Iterable[str] = (),
        revision: int = 0,
        ready: bool = True,
        splits: Mapping[str, TrafficSplit] | None = None,
        loadable: Iterable[str] = (),
    ) -> "RouteTable":
        """Return the table of ``routes``; ``names`` may name models without any."""
        models: dict[str, dict[int, Route]] = {name: {} for name in names}
        for route in routes:
            models.setdefault(route.model, {})[route.version] = route
        return cls(
            revision=revision,
            ready=ready,
            is_known=True,
            models=models,
            splits=splits or {},
            loadable=frozenset(loadable),
        )

    def routes(self) -> Iterable[Route]:
        """Yield every version of every model."""
        for versions in self.models.values():
            yield from versions.values()

    def find(self, model: str, version: str) -> Route:
        """Return the ready route for ``model`` and ``version`` ("": the newest).

        Raises:
            InvalidRequestError: ``version`` is no number.
            ModelNotFoundError: no such model or version, or none is ready.
            ModelNotReadyError: that version is known but not ready, or the router
                has just started and was not told its models yet.
        """
        number = parse_version(version)
        if not self.is_known:
            message = f"Request for model '{model}': the models are not known yet"
            raise ModelNotReadyError(message)
        versions = self.models.get(model)
        if versions is None:
            message = f"Request for unknown model: '{model}' is not found"
            raise ModelNotFoundError(message)
        if number is None:
            ready = [number for number, route in versions.items() if route.is_ready]
            if not ready:
                message = (
                    f"Request for unknown model: '{model}' has no available versions"
                )
                raise ModelNotFoundError(message)
            return versions[max(ready)]
        route = versions.get(number)
        if route is None:
            message = (
                f"Request for unknown model: '{model}' version {number} is not found"
            )
            raise ModelNotFoundError(message)
        if not route.is_ready:
            message = (
                f"Request for unknown model: '{model}' version {number} "
                "is not at ready state"
            )
            raise ModelNotReadyError(message)
        return route

    def must_load(self, model: str) -> bool:
        """Whether requests for ``model`` have to wait until it is loaded."""
        return model in self.loadable and not self.ready_versions(model)

    def ready_versions(self, model: str) -> list[str]:
        """Return the versions of ``model`` that are ready, ascending."""
        versions = self.models.get(model, {})
        return [
            str(number) for number, route in sorted(versions.items()) if route.is_ready
        ]
