"""The patterns that choose headers by their names. Pure.

Source: RE2's syntax as Triton uses it: case does not matter unless the pattern begins
with ``(?-i)``.
"""

import re
from typing import Final

_CASE_MATTERS: Final = "(?-i)"


def header_pattern(text: str) -> re.Pattern[str]:
    """Return the compiled pattern.

    Raises:
        ValueError: it is none.
    """
    flags = re.IGNORECASE
    if text.startswith(_CASE_MATTERS):
        text, flags = text.removeprefix(_CASE_MATTERS), re.NOFLAG
    try:
        return re.compile(text, flags)
    except re.error as error:
        raise ValueError(f"'{text}' is no regular expression: {error}") from None
