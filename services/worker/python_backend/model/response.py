"""What a model answers."""

import json
from collections.abc import Sequence

from services.worker.python_backend.model.errors import (
    TritonError,
    TritonModelException,
)
from services.worker.python_backend.model.tensor import Tensor


class InferenceResponse:
    """The answer to one request: tensors, or an error."""

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | str | None = None,
        parameters: dict[str, object] | None = None,
    ) -> None:
        """Make an answer.

        Args:
            output_tensors: Ignored if there is an error.
            error: Why the request fails.
            parameters: For the client: strings, whole numbers, floats and bools.

        Raises:
            TritonModelException: something in it is of the wrong type.
        """
        for tensor in output_tensors:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(
                    "output_tensors must hold pb_utils.Tensor, not"
                    f" {type(tensor).__name__}"
                )
        for key, value in (parameters or {}).items():
            if not isinstance(value, (str, int, float, bool)):
                raise TritonModelException(
                    "Expect parameters keys to have type str and values to have type"
                    f" str/int/float/bool, found {key!r}: {type(value).__name__}"
                )
        self._tensors = list(output_tensors)
        self._error = TritonError(error) if isinstance(error, str) else error
        self._parameters = dict(parameters or {})

    def output_tensors(self) -> list[Tensor]:
        """Return the tensors."""
        return self._tensors

    def has_error(self) -> bool:
        """Return whether the request has failed."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return why, if it has."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters as a JSON object."""
        return json.dumps(self._parameters)

    def parameter_values(self) -> dict[str, object]:
        """Return the parameters themselves."""
        return self._parameters
