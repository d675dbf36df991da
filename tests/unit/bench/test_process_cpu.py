"""Roles and CPU times from /proc."""

import os
import time

import pytest

from tests.bench import process_cpu
from tests.bench.process_cpu import TICK_NS, ProcessStat, parse_stat, role_of

STAT = (
    "4242 (py (x) thon) S 4200 4242 4200 0 -1 4194304 900 1 2 3 "
    "150 25 7 8 20 0 3 0 5000 90000 800 18446744073709551615"
)


def stat(pid: int, parent: int) -> ProcessStat:
    return ProcessStat(pid=pid, parent=parent, cpu_ns=0)


def test_a_stat_line_gives_parent_and_user_plus_system_time() -> None:
    assert parse_stat(STAT) == ProcessStat(pid=4242, parent=4200, cpu_ns=175 * TICK_NS)


def test_our_own_cpu_time_grows_as_we_work() -> None:
    roles = {"me": (os.getpid(),)}
    before = process_cpu.cpu_ns(roles)["me"]
    until_ns = time.process_time_ns() + 3 * TICK_NS
    while time.process_time_ns() < until_ns:
        pass
    grown_ns = process_cpu.cpu_ns(roles)["me"] - before
    assert 2 * TICK_NS <= grown_ns <= 2_000_000_000


def test_the_times_of_one_role_s_processes_are_added() -> None:
    pid = os.getpid()
    once = process_cpu.cpu_ns({"me": (pid,)})["me"]
    twice = process_cpu.cpu_ns({"me": (pid, pid)})["me"]
    assert twice >= 2 * once > 0


def test_descendants_are_found_at_any_depth_and_the_root_is_none_of_them() -> None:
    stats = [stat(2, 1), stat(3, 2), stat(4, 3), stat(5, 1), stat(6, 5)]
    assert process_cpu.descendants(2, stats) == {3, 4}


def test_a_process_without_children_has_no_descendants() -> None:
    assert process_cpu.descendants(3, [stat(2, 1), stat(3, 2)]) == frozenset()


@pytest.mark.parametrize(
    ("command_line", "role"),
    [
        (["/venv/bin/python", "/venv/bin/nereid", "router", "--grpc-port=1"], "router"),
        (["/usr/bin/python3", "-m", "services.cli", "worker"], "worker"),
        (["nereid redis", "--port", "0"], "redis"),
        (["/usr/bin/perf_analyzer", "-m", "router"], ""),
        (["/venv/bin/nereid"], ""),
        ([], ""),
    ],
)
def test_a_role_is_the_word_after_nereid(command_line: list[str], role: str) -> None:
    assert role_of(command_line) == role
