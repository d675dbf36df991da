"""The command ``nereid``: finds the role and runs it, importing nothing else.

A router process never imports worker code, nor a worker the router's: each role's
module is imported only when the role is chosen.
"""

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping
from typing import Final

from services.core import parent_death, process_tuning

ROLES: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("services.stack.app:main", "the whole stack on this machine"),
    "router": ("services.router.app:main", "takes requests, batches, dispatches"),
    "worker": ("services.worker.app:main", "executes models on one device"),
    "control": ("services.control.app:main", "owns repository, placement, statistics"),
    "stats": ("services.stack.statistics_command:main", "what the models have done"),
    "check": ("services.control.check:main", "checks a model repository"),
    "trace": ("services.tracefile.app:main", "summarizes trace files"),
    "health": ("services.core.health_client:main", "asks a process if it can work"),
}
# Started by `nereid serve` only, hence not in the help.
INTERNAL_ROLES: Final[Mapping[str, str]] = {
    "execute": "services.core.parent_death:execute"
}


def usage() -> str:
    """Return the help text."""
    roles = "".join(f"  {name:<9} {text}\n" for name, (_, text) in ROLES.items())
    return (
        "usage: nereid ROLE [FLAG]...\n\n"
        "Serves models over the KServe V2 and Triton protocols.\n\n"
        f"roles:\n{roles}  version   prints Nereid's version\n\n"
        "`nereid serve --model-repository DIR` accepts tritonserver's flags.\n"
        "`nereid ROLE --help` lists the flags of a role.\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Run one role until it ends.

    Returns:
        The exit status: the role's own; 2 if there is no such role.
    """
    parent_death.obey(os.environ)
    process_tuning.prepare_grpc()
    arguments = sys.argv[1:] if argv is None else argv
    role, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if role in {"-h", "--help", "help"}:
        sys.stdout.write(usage())
        return 0
    if role in {"--version", "version"}:
        sys.stdout.write(f"nereid {importlib.metadata.version('nereid')}\n")
        return 0
    entry = INTERNAL_ROLES.get(role) or ROLES.get(role, ("", ""))[0]
    if not entry:
        sys.stderr.write(f"nereid: no such role: {role!r}\n\n" if role else "")
        sys.stderr.write(usage())
        return 2
    module, function = entry.split(":")
    status: int = getattr(importlib.import_module(module), function)(rest)
    return status


if __name__ == "__main__":
    sys.exit(main())
