"""The first thing that runs in a model's process, given to its Python by path.

usage: start.py WORK_FD EVENTS_FD NAME

The interpreter may belong to an environment that has no Nereid, so this package is
found by where this file lies; and the name ``services`` is given back afterwards,
since a model may have a package of that name itself.
"""

import io
import os
import sys
import types
from pathlib import Path


def main() -> None:
    """Serve one instance until the worker hangs up."""
    here = Path(__file__).resolve().parent
    services = types.ModuleType("services")
    services.__path__ = [str(here.parents[1])]
    sys.modules["services"] = services
    sys.path[0] = str(here / "site")
    from services.core import parent_death  # noqa: PLC0415 - findable only now
    from services.worker.python_backend.model import (  # noqa: PLC0415
        process,
        title,
    )

    __import__("triton_python_backend_utils")
    work, events, name = sys.argv[1:4]
    parent_death.obey(os.environ)
    title.show(f"nereid model {name}")
    sys.argv[1:] = []
    # What a model prints is seen at once, as on a terminal.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    for module in [one for one in sys.modules if one.split(".")[0] == "services"]:
        del sys.modules[module]
    process.serve(int(work), int(events))


if __name__ == "__main__":
    main()
