"""Whether a model, or the server, would execute inferences: what ModelReady answers.

Most models are ready when an instance of theirs is here. Python models know better:
their process may be gone, or their ``is_ready`` says no. They are asked each time, by
way of control; while control cannot be reached they are believed to be ready.

Source: Triton's TRITONBACKEND_ModelInstanceReady and its Python backend.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from services.core.errors import ServingError
from services.core.model_config import ModelConfig
from services.router.inference import Inference
from services.router.route_table import Route

# Backends whose instances have nothing to tell.
_SILENT: Final = frozenset({"onnxruntime", "pytorch", "tensorrt"})

Ask: TypeAlias = Callable[[Sequence[int], bool], frozenset[int]]


class Readiness:
    """Answers for what is routed here."""

    def __init__(self, inference: Inference, ask: Ask) -> None:
        """Prepare.

        Args:
            inference: Knows the routes.
            ask: Returns which generations are not ready; the second argument says
                whether it is the server that is asked about.
        """
        self._inference = inference
        self._ask = ask

    def is_model_ready(self, model: str, version: str) -> bool:
        """Return whether an inference on that version would be executed; may block."""
        try:
            route = self._inference.table.find(model, version)
        except ServingError:
            return False
        if not self._inference.is_model_ready(model, version):
            return False
        return not (tells(route.config) and self._ask((route.generation,), False))  # noqa: FBT003 - about the model

    def is_server_ready(self) -> bool:
        """Return whether inferences would be executed; may block."""
        if not self._inference.is_ready():
            return False
        told = [each for each in self._inference.table.routes() if _is_asked(each)]
        return not (told and self._ask([each.generation for each in told], True))  # noqa: FBT003 - about the server


def tells(config: ModelConfig) -> bool:
    """Return whether instances of a model may know better than the route table."""
    return config.ensemble is None and config.backend not in _SILENT


def _is_asked(route: Route) -> bool:
    return route.is_ready and tells(route.config)
