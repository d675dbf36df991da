import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import InvalidRequestError, UnsupportedError
from services.router.rest_compression import (
    DamagedBodyError,
    chosen_encoding,
    compressed,
    decompressed,
)

TEXT = b"some text" * 100
BARE = zlib.compressobj(wbits=-15)
BARE_DEFLATE = BARE.compress(TEXT) + BARE.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("", TEXT),
        ("identity", TEXT),
        ("gzip", gzip.compress(TEXT, mtime=0)),
        ("GZIP", gzip.compress(TEXT, mtime=0)),
        (
            "gzip",
            gzip.compress(TEXT[:100], mtime=0) + gzip.compress(TEXT[100:], mtime=0),
        ),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", BARE_DEFLATE),
    ],
)
def test_every_known_encoding_is_undone(encoding: str, body: bytes) -> None:
    assert decompressed(body, encoding, len(TEXT)) == TEXT


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, deflate"])
def test_another_encoding_is_not_supported(encoding: str) -> None:
    with pytest.raises(UnsupportedError, match="Unsupported compression type"):
        decompressed(TEXT, encoding, 1 << 20)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"garbage"),
        ("gzip", b""),
        ("gzip", gzip.compress(TEXT, mtime=0)[:-1]),
        ("gzip", gzip.compress(TEXT, mtime=0) + b"garbage"),
        ("deflate", b"\xff\xff"),
        ("deflate", zlib.compress(TEXT)[:-1]),
        ("deflate", zlib.compress(TEXT) + b"more"),
    ],
)
def test_a_damaged_body_is_refused(encoding: str, body: bytes) -> None:
    with pytest.raises(DamagedBodyError):
        decompressed(body, encoding, 1 << 20)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(TEXT, mtime=0)),
        (
            "gzip",
            gzip.compress(TEXT[:899], mtime=0) + gzip.compress(TEXT[899:], mtime=0),
        ),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", BARE_DEFLATE),
    ],
)
def test_one_byte_more_than_allowed_is_refused(encoding: str, body: bytes) -> None:
    assert len(TEXT) == 900
    assert decompressed(body, encoding, 900) == TEXT
    with pytest.raises(InvalidRequestError, match="more than the 899 bytes"):
        decompressed(body, encoding, 899)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(1 << 24), mtime=0)
    with pytest.raises(InvalidRequestError, match="more than the 1000 bytes"):
        decompressed(bomb, "gzip", 1000)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("", ""),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("deflate, gzip;q=0.5", "deflate"),
        ("gzip;q=0.2, deflate;q=0.8", "deflate"),
        ("gzip;q=0", ""),
        ("gzip;q=nonsense", ""),
        ("*", "gzip"),
        ("br", ""),
        ("identity", ""),
        ("identity;q=1, gzip;q=0.5", ""),
        ("identity;q=0.5, gzip", "gzip"),
    ],
)
def test_the_client_gets_the_encoding_it_likes_best(accepted: str, chosen: str) -> None:
    assert chosen_encoding(accepted) == chosen


@given(st.binary(), st.sampled_from(["gzip", "deflate"]))
def test_what_was_compressed_comes_back(content: bytes, encoding: str) -> None:
    body = compressed(content, encoding)
    assert decompressed(body, encoding, len(content)) == content
