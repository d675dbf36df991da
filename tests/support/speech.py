"""Spoken text, made by eSpeak NG from its PyPI package.

Imports neither protos nor services, so that tests with tritonclient may use it.
"""

import ctypes
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from demo.packages import Packages

PACKAGE: Final = "espeakng-loader==0.2.4"
RATE_HZ: Final = 16_000
# Of speak_lib.h.
_SYNCHRONOUS: Final = 2
_FROM_CHARACTERS: Final = 1
_UTF8: Final = 1


def spoken(text: str, packages: Packages) -> NDArray[np.float32]:
    """Return ``text`` as it is spoken: samples from -1 to 1, at ``RATE_HZ``.

    Raises:
        RuntimeError: the library cannot speak.
        subprocess.CalledProcessError: pip could not fetch it.
    """
    folder = packages.fetch(PACKAGE) / "espeakng_loader"
    samples, rate_hz = _synthesized(folder, text.encode() + b"\0")
    times = np.arange(len(samples) * RATE_HZ // rate_hz) * rate_hz / RATE_HZ
    resampled = np.interp(times, np.arange(len(samples)), samples)
    return (resampled / (1 << 15)).astype(np.float32)


def _synthesized(folder: Path, text: bytes) -> tuple[NDArray[np.int16], int]:
    library = ctypes.CDLL(str(folder / "libespeak-ng.so"))
    parts: list[NDArray[np.int16]] = []
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
    )

    def take(samples: Any, count: int, _: object) -> int:  # noqa: ANN401 - a C pointer
        if samples and count > 0:
            parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    callback = kind(take)
    rate_hz = int(library.espeak_Initialize(_SYNCHRONOUS, 0, str(folder).encode(), 0))
    if rate_hz <= 0:
        raise RuntimeError("eSpeak NG does not find its data")
    library.espeak_SetSynthCallback(callback)
    library.espeak_SetVoiceByName(b"en")
    size = ctypes.c_size_t(len(text))
    library.espeak_Synth(text, size, 0, _FROM_CHARACTERS, 0, _UTF8, None, None)
    library.espeak_Synchronize()
    library.espeak_Terminate()
    return np.concatenate(parts), rate_hz
