"""How a process shows in the process list."""

import ctypes
from pathlib import Path
from typing import Final

# Of /proc/self/stat, counted behind the process's name: see proc(5).
_ARGUMENTS_START: Final = 45
_ARGUMENTS_END: Final = 46


def show(title: str) -> None:
    """Show ``title`` in place of the command line, cut to the room it has.

    argv[0] cannot be chosen when the process is started: an interpreter finds its
    environment by it.
    """
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    except OSError:  # no /proc: the command line stays
        return
    fields = stat.rpartition(")")[2].split()
    start, end = int(fields[_ARGUMENTS_START]), int(fields[_ARGUMENTS_END])
    room = end - start
    if start <= 0 or room <= 1:  # hidden from us
        return
    text = title.encode()[: room - 1]
    ctypes.memmove(start, text + bytes(room - len(text)), room)
