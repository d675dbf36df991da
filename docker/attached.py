"""Is this container's worker attached to control? ``attached.py PORT``.

A worker dials in and listens nowhere, so there is nobody to ask; but its connection
to control's port is in the kernel's table. Without imports of Nereid's own: it runs
every few seconds.
"""

import sys
from pathlib import Path
from typing import Final

ESTABLISHED: Final = "01"  # of include/net/tcp_states.h
TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def is_attached(table: str, port: int) -> bool:
    """Tell whether ``table`` has an established connection to ``port``.

    Args:
        table: The text of /proc/net/tcp: a heading, then a line for each socket
            with its number, local and remote ``ADDRESS:PORT`` and state, in hex.
        port: Of the other side.
    """
    wanted = f":{port:04X}"
    rows = (line.split() for line in table.splitlines()[1:])
    return any(row[2].endswith(wanted) and row[3] == ESTABLISHED for row in rows)


def main() -> int:
    """Return 0 if it is attached, else 1."""
    port = int(sys.argv[1])
    tables = (path.read_text() for path in TABLES if path.exists())
    if any(is_attached(table, port) for table in tables):
        return 0
    sys.stdout.write(f"no connection to port {port}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
