"""A child dies with its parent, whatever program it becomes."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.core import parent_death

OBEY = "import os; from services.core import parent_death as p; p.obey(os.environ)"
CAT = "p.execute(['nereid cat', '/bin/cat'])"
PARENT = f"""
import subprocess, sys, time
from services.core import parent_death
child = subprocess.Popen(
    [sys.executable, "-c", {f"{OBEY}; {CAT}"!r}],
    env=parent_death.environment_for_child(), stdin=subprocess.PIPE,
    stdout=subprocess.PIPE, start_new_session=True,
)
child.stdin.write(b"x\\n"); child.stdin.flush(); child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_killed_parent_takes_its_child_along() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        shown = Path(f"/proc/{child}/cmdline").read_bytes()
        handle = os.pidfd_open(child)
        parent.send_signal(signal.SIGKILL)
        # A pidfd becomes readable when its process ends.
        ended, _, _ = select.select([handle], [], [], 10)
        os.close(handle)
    assert shown == b"nereid cat\0"
    assert ended


def test_a_parent_that_is_already_gone_ends_the_child() -> None:
    environment = {**os.environ, parent_death.PARENT_VARIABLE: "1"}
    done = subprocess.run(
        [sys.executable, "-c", f"{OBEY}; print('alive')"],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_without_the_variable_nothing_happens() -> None:
    parent_death.obey({})


@pytest.mark.parametrize("argv", [["nereid x", "/no/such/program"]])
def test_a_missing_program_is_an_error(argv: list[str]) -> None:
    with pytest.raises(FileNotFoundError):
        parent_death.execute(argv)
