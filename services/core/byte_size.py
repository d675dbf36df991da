"""Sizes as people write them. Pure."""

import re
from typing import Final

_UNITS: Final = {
    "": 1,
    "b": 1,
    **{
        f"{prefix}{rest}": base**power
        for power, prefix in enumerate("kmgt", start=1)
        for rest, base in (("", 1024), ("ib", 1024), ("b", 1000))
    },
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


def parse_byte_size(text: str) -> int:
    """Return the bytes that ``text`` says: ``4096``, ``512M``, ``1.5GiB``, ``2GB``.

    K, M, G and T are powers of 1024, as are KiB and so on; KB and so on of 1000.

    Raises:
        ValueError: it is no such size, or less than a byte.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        message = f"'{text}' is no size: 4096, 512M, 1.5GiB and 2GB are some"
        raise ValueError(message)
    size = int(float(match[1]) * _UNITS[match[2]])
    if size < 1:
        message = f"'{text}' is less than a byte"
        raise ValueError(message)
    return size
