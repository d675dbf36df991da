"""Has the gateway's configuration written. Stand-in until services.gateway is there."""

from services.stack.plan import Places
from services.stack.settings import StackSettings


def write_config(settings: StackSettings, places: Places) -> None:
    """Write it."""
