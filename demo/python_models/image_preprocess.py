"""An encoded image in, what ``mobilenet`` wants out: 224 x 224, normalised."""

import io
import sys
from pathlib import Path

import numpy as np

# Beside this folder, since the worker's environment need not have it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packages"))

import triton_python_backend_utils as pb_utils
from PIL import Image, UnidentifiedImageError

SHORT_SIDE = 256
SIDE = 224
# Of ImageNet's training images.
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


class TritonPythonModel:
    """One instance."""

    def execute(self, requests):
        """Answer each request by itself: a broken image fails only its own."""
        return [answer(request) for request in requests]


def answer(request):
    """Return the images of one request."""
    encoded = pb_utils.get_input_tensor_by_name(request, "encoded").as_numpy()
    try:
        images = [prepared(data) for data in encoded.reshape(-1)]
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        text = f"an image cannot be decoded: {error}"
        refused = pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG)
        return pb_utils.InferenceResponse(error=refused)
    return pb_utils.InferenceResponse([pb_utils.Tensor("image", np.stack(images))])


def prepared(data):
    """Return one image: the middle of it, channels first."""
    image = Image.open(io.BytesIO(data))
    # A JPEG can be decoded at half the size or less, which saves most of the work.
    image.draft("RGB", (SHORT_SIDE, SHORT_SIDE))
    image = image.convert("RGB")
    factor = SHORT_SIDE / min(image.size)
    wide, high = (round(side * factor) for side in image.size)
    left, top = (wide - SIDE) // 2, (high - SIDE) // 2
    box = tuple(x / factor for x in (left, top, left + SIDE, top + SIDE))
    # Only what is kept of it is made small.
    square = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
    pixels = np.asarray(square, np.float32) / 255
    return ((pixels - MEAN) / DEVIATION).transpose(2, 0, 1)
