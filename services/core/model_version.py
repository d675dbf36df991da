"""A version as clients write it. Pure."""

from typing import Final

from services.core.errors import InvalidRequestError

_HIGHEST: Final = 2**63 - 1
_MOST_DIGITS: Final = len(str(_HIGHEST))


def parse_version(version: str) -> int | None:
    """Return the number in ``version``; None for the empty string.

    Raises:
        InvalidRequestError: it is not a decimal number that fits int64.
    """
    if not version:
        return None
    is_number = version.isascii() and version.isdigit()
    # Python refuses to read more than 4300 digits, with an error of another kind.
    digits = version.lstrip("0")[: _MOST_DIGITS + 1] or "0"
    if is_number and int(digits) <= _HIGHEST:
        return int(digits)
    message = (
        "failed to get model version from specified version string "
        f"'{version}' (details: stol), version should be an integral value > 0"
    )
    raise InvalidRequestError(message)
