"""What is said of a backend that no worker has."""

from collections.abc import Mapping
from typing import Final

# Of backends that come with Nereid: what a worker needs for them.
_NEEDS: Final[Mapping[str, str]] = {
    "onnxruntime": "nereid with the extra 'cpu' or 'gpu'",
    "pytorch": "nereid with the extra 'torch'",
    "tensorrt": "a GPU, and nereid with the extra 'tensorrt'",
}


def no_backend(backend: str) -> str:
    """Return Triton's words, and what to do if the backend is one of ours."""
    text = (
        f"unable to find backend library for backend '{backend}', try specifying "
        "runtime on the model configuration."
    )
    needs = _NEEDS.get(backend)
    return f"{text} No worker has it: it takes {needs}." if needs else text
