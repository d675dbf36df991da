"""A version as clients write it. Pure."""

from typing import Final

from services.core.errors import InvalidRequestError

_HIGHEST: Final = 2**63 - 1


def parse_version(version: str) -> int | None:
    """Return the number in ``version``; None for the empty string.

    Raises:
        InvalidRequestError: it is not a decimal number that fits int64.
    """
    if not version:
        return None
    if version.isascii() and version.isdigit() and int(version) <= _HIGHEST:
        return int(version)
    message = (
        "failed to get model version from specified version string "
        f"'{version}' (details: stol), version should be an integral value > 0"
    )
    raise InvalidRequestError(message)
