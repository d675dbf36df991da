"""The version of Nereid, as it was installed."""

from importlib import metadata
from typing import Final

VERSION: Final = metadata.version("nereid")
