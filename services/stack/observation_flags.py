"""The flags about traces and the log file, in the spelling that control reads. Pure."""

from collections.abc import Mapping
from typing import Final

from services.stack.command_line import Value

# Triton's deprecated flags, and what became of each.
_FORMER: Final = {
    "trace-file": "triton,file",
    "trace-level": "level",
    "trace-rate": "rate",
    "trace-count": "count",
    "trace-log-frequency": "triton,log-frequency",
}


def observation_flags(values: Mapping[str, tuple[Value, ...]]) -> tuple[str, ...]:
    """Return control's flags; where old and new flags differ, the new ones hold.

    Args:
        values: By flag name, as the user gave them.
    """
    former = [
        f"--trace-config={setting}={value}"
        for name, setting in _FORMER.items()
        for value in values.get(name, ())
    ]
    present = [f"--trace-config={value}" for value in values.get("trace-config", ())]
    log_file = [f"--log-file={value}" for value in values.get("log-file", ())[-1:]]
    return (*former, *present, *log_file)
