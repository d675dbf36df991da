"""Compressed bodies: bounded on the way in, negotiated on the way out. Pure.

Source: RFC 9110 (Content-Encoding, Accept-Encoding); "deflate" is the zlib format,
or, from many clients, the bare one. Triton knows gzip and deflate.
"""

import zlib
from typing import Final

from services.core.errors import InvalidRequestError, UnsupportedError

GZIP: Final = "gzip"
DEFLATE: Final = "deflate"
IDENTITY: Final = "identity"
# What a client is told that used another.
KNOWN_ENCODINGS: Final = f"{GZIP}, {DEFLATE}"

_GZIP_WINDOW: Final = 31
_ZLIB_WINDOW: Final = 15
_BARE_WINDOW: Final = -15
_FASTEST: Final = 1


class UnknownEncodingError(UnsupportedError):
    """A Content-Encoding that we do not know."""


class DamagedBodyError(InvalidRequestError):
    """A compressed body that cannot be read to its end."""


def decompressed(body: bytes, content_encoding: str, max_bytes: int) -> bytes:
    """Return what ``body`` was before the client compressed it.

    Args:
        body: As it arrived.
        content_encoding: Of the request; "" if it has none.
        max_bytes: The most that may come out; no more is ever held.

    Raises:
        UnknownEncodingError: another encoding.
        DamagedBodyError: damaged or cut off.
        InvalidRequestError: too much came out.
    """
    encoding = content_encoding.strip().lower()
    if encoding in ("", IDENTITY):
        return body
    if encoding == GZIP:
        return _gunzipped(body, max_bytes)
    if encoding == DEFLATE:
        window = _ZLIB_WINDOW if _is_zlib(body) else _BARE_WINDOW
        out, rest = _inflated(body, window, max_bytes)
        _check_size(len(out), max_bytes)
        if rest:
            raise _damaged()
        return out
    raise UnknownEncodingError("Unsupported compression type")


def _gunzipped(body: bytes, max_bytes: int) -> bytes:
    """Return the members of a gzip file, joined."""
    parts: list[bytes] = []
    size, rest = 0, body
    while True:
        out, rest = _inflated(rest, _GZIP_WINDOW, max_bytes - size)
        parts.append(out)
        size += len(out)
        _check_size(size, max_bytes)
        if not rest:
            return b"".join(parts)


def _inflated(body: bytes, window: int, max_bytes: int) -> tuple[bytes, bytes]:
    """Return one stream's content and what follows the stream.

    Of a content that is too long, the first ``max_bytes`` + 1 are returned.
    """
    stream = zlib.decompressobj(window)
    try:
        out = stream.decompress(body, max_bytes + 1)
    except zlib.error:
        raise _damaged() from None
    if not stream.eof and len(out) <= max_bytes:
        raise _damaged()
    return out, stream.unused_data


def _check_size(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        message = (
            f"the decompressed request body has more than the {max_bytes} bytes that "
            "--http-max-input-size allows"
        )
        raise InvalidRequestError(message)


def _is_zlib(body: bytes) -> bool:
    """Tell a zlib header: method 8, and a multiple of 31 as its check wants."""
    header = int.from_bytes(body[:2], "big")
    return len(body) > 1 and body[0] & 0x0F == 8 and header % 31 == 0  # noqa: PLR2004


def _damaged() -> DamagedBodyError:
    return DamagedBodyError("failed to decompress the request body")


def chosen_encoding(accept_encoding: str) -> str:
    """Return gzip, deflate, or "" for none: the client's favourite.

    Equal weights prefer gzip; nothing is compressed that was not asked for.
    """
    weights = {GZIP: 0.0, DEFLATE: 0.0, IDENTITY: 0.0}
    for item in accept_encoding.lower().split(","):
        name, _, parameters = item.partition(";")
        name = GZIP if name.strip() == "*" else name.strip()
        if name in weights:
            weights[name] = _weight(parameters)
    best = GZIP if weights[GZIP] >= weights[DEFLATE] else DEFLATE
    return best if weights[best] > weights[IDENTITY] else ""


def _weight(parameters: str) -> float:
    name, _, value = parameters.partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def compressed(body: bytes, encoding: str) -> bytes:
    """Return ``body`` compressed as ``chosen_encoding`` says."""
    window = _GZIP_WINDOW if encoding == GZIP else _ZLIB_WINDOW
    stream = zlib.compressobj(level=_FASTEST, wbits=window)
    return stream.compress(body) + stream.flush()
