"""A child process that does not outlive its parent, even a killed one.

The parent names itself in an environment variable; the child, first thing, asks the
kernel for SIGKILL at the parent's death. The request survives ``exec``, so that
programs that know nothing of it are covered, too.
"""

import ctypes
import os
import signal
import sys
from collections.abc import MutableMapping
from typing import Final

PARENT_VARIABLE: Final = "NEREID_PARENT_PID"
PR_SET_PDEATHSIG: Final = 1  # from linux/prctl.h


def environment_for_child() -> dict[str, str]:
    """Return the variable that ties a child to this process."""
    return {PARENT_VARIABLE: str(os.getpid())}


def obey(environment: MutableMapping[str, str]) -> None:
    """Tie this process to the parent that ``environment`` names, if any.

    The name is removed, since it means this process and none that it starts. A
    parent that died before the request is seen by ``getppid``, which then no longer
    returns its number.

    Raises:
        OSError: the kernel refused.
    """
    parent = environment.pop(PARENT_VARIABLE, "")
    if not parent or not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != int(parent):
        sys.exit(1)


def execute(argv: list[str]) -> int:
    """Replace this process by a program: ``NAME BINARY [ARGUMENT]...``.

    Args:
        argv: The name that the process list shows, for example ``nereid redis``;
            the program's path; its arguments.
    """
    name, binary, *arguments = argv
    os.execve(binary, [name, *arguments], os.environ)  # noqa: S606  no shell is meant
