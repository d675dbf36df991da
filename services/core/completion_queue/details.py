"""The text of a status, as long as a header may be. Pure."""

from typing import Final

_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {ord("%")}
_ESCAPED_BYTES: Final = 3


def fitting(details: str, most_bytes: int) -> bytes:
    """Return as much of ``details``, in UTF-8, as a header of that length carries.

    HTTP/2 has it percent-encoded: three bytes for each that is no printable ASCII.
    """
    encoded = details[:most_bytes].encode(errors="replace")
    if _ESCAPED_BYTES * len(encoded) <= most_bytes:
        return encoded
    room = most_bytes
    for index, byte in enumerate(encoded):
        room -= 1 if byte in _PLAIN else _ESCAPED_BYTES
        if room < 0:
            return encoded[:index].decode(errors="ignore").encode()
    return encoded
