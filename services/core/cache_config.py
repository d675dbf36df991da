"""The flag --cache-config, as Triton writes it. Pure."""

from collections.abc import Iterable
from typing import Final

_LOCAL: Final = "local"
_SIZE: Final = "size"


def cache_size_bytes(settings: Iterable[str]) -> int:
    """Return how large the response cache may grow; 0 if there is to be none.

    Args:
        settings: Each ``CACHE,KEY=VALUE``; of one key the last counts.

    Raises:
        ValueError: another cache than the local one, another key than its size, or
            a size that is none.
    """
    size = 0
    for setting in settings:
        cache, comma, pair = setting.partition(",")
        key, equals, value = pair.partition("=")
        if not (comma and equals):
            raise ValueError(f"'{setting}' is not of the form CACHE,KEY=VALUE")
        if cache != _LOCAL:
            raise ValueError(f"there is no cache '{cache}', only '{_LOCAL}'")
        if key != _SIZE:
            raise ValueError(f"the cache '{_LOCAL}' has no setting '{key}'")
        if not (value.isascii() and value.isdigit() and int(value)):
            raise ValueError(f"the size of the cache is a number > 0, not '{value}'")
        size = int(value)
    return size
