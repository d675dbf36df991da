"""A file as the model ``magika`` wants to see it. Pure."""

from typing import Final

BLOCK_BYTES: Final = 4096
HALF_LENGTH: Final = 1024
PADDING: Final = 256


def features(content: bytes) -> list[int]:
    """Return the 2048 numbers that stand for one file.

    The first half is the beginning of the file, the second half its end, each
    without the white space at its outer side. A value is a byte, or 256 where the
    file is too short.

    Source:
        ``config.min.json`` of the package magika 1.0.3, and its documentation of
        the input features.
    """
    begin = content[:BLOCK_BYTES].lstrip()[:HALF_LENGTH]
    end = content[-BLOCK_BYTES:].rstrip()[-HALF_LENGTH:]
    return [
        *begin,
        *[PADDING] * (HALF_LENGTH - len(begin)),
        *[PADDING] * (HALF_LENGTH - len(end)),
        *end,
    ]
