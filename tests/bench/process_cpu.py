"""CPU time of processes, and which process has which role, from /proc.

Source: proc_pid_stat(5). The times are those of all threads, also of ended ones.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Final

# Places after the command's closing parenthesis, which is field 2 of stat.
_PARENT: Final = 1
_USER_TICKS: Final = 11
_SYSTEM_TICKS: Final = 12

TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """One line of ``/proc/PID/stat``.

    Attributes:
        pid: The process.
        parent: The process that started it.
        cpu_ns: What all its threads have used, in user and kernel mode, to the
            kernel's clock tick (10 ms).
    """

    pid: int
    parent: int
    cpu_ns: int


def parse_stat(line: str) -> ProcessStat:
    """Read a line of ``/proc/PID/stat``.

    The command's name may hold spaces and parentheses: only the last closing one
    ends it.
    """
    pid, _, rest = line.partition(" (")
    fields = rest.rpartition(")")[2].split()
    ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    return ProcessStat(
        pid=int(pid), parent=int(fields[_PARENT]), cpu_ns=ticks * TICK_NS
    )


def descendants(root: int, stats: Iterable[ProcessStat]) -> frozenset[int]:
    """Return the processes that ``root`` started, directly or not."""
    children: dict[int, list[int]] = {}
    for stat in stats:
        children.setdefault(stat.parent, []).append(stat.pid)
    found: set[int] = set()
    open_ends = [root]
    while open_ends:
        new = set(children.get(open_ends.pop(), ())) - found
        found |= new
        open_ends.extend(new)
    return frozenset(found)


def role_of(command_line: Sequence[str]) -> str:
    """Return what follows ``nereid`` in a command line; "" if that is not in it.

    A program that Nereid renamed carries both words in its first argument.
    """
    if command_line and command_line[0].startswith("nereid "):
        return command_line[0].split()[1]
    for word, following in pairwise(command_line):
        if PurePath(word).name in {"nereid", "services.cli"}:
            return following
    return ""


def roles_below(root: int) -> dict[str, tuple[int, ...]]:
    """Return the processes that ``root`` started, by their Nereid role."""
    roles: dict[str, tuple[int, ...]] = {}
    for pid in sorted(descendants(root, all_stats())):
        role = role_of(_command_line(pid))
        if role:
            roles[role] = (*roles.get(role, ()), pid)
    return roles


def cpu_ns(roles: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return what the processes of each role have used since they started.

    Raises:
        FileNotFoundError: one of them has ended.
    """
    return {
        role: sum(parse_stat(_stat_of(pid)).cpu_ns for pid in pids)
        for role, pids in roles.items()
    }


def _stat_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")


def all_stats() -> list[ProcessStat]:
    """Return the processes that are alive."""
    stats = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stats.append(parse_stat(_stat_of(int(entry.name))))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
    return stats


def _command_line(pid: int) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [word.decode(errors="replace") for word in raw.split(b"\0")]
