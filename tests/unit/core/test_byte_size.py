import pytest

from services.core.byte_size import parse_byte_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("1B", 1),
        ("512M", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("2GB", 2 * 10**9),
        (" 3 kb ", 3000),
        ("1T", 1 << 40),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_byte_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1X", "GB", "1.5.2M", "0.1B", "²"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no size|less than a byte"):
        parse_byte_size(text)
