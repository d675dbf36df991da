"""Load and memory of a Linux host, as its /proc tells them. Pure.

Source: proc(5), "/proc/stat" and "/proc/meminfo".
"""

from dataclasses import dataclass

from services.control.prometheus import Family, gauge

_IDLE, _IO_WAIT = 3, 4
# What follows in the line is counted in "user" and "nice" already.
_COLUMNS = 8
_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTicks:
    """What all CPUs together have spent since the host started."""

    busy: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of the host, in bytes."""

    total_bytes: int
    used_bytes: int


def parse_cpu(stat: str) -> CpuTicks:
    """Read the first line of /proc/stat.

    Raises:
        ValueError: it is of another form.
    """
    words = stat.partition("\n")[0].split()
    if len(words) <= _IO_WAIT + 1 or words[0] != "cpu":
        raise ValueError("/proc/stat does not begin with the CPU's times")
    ticks = [int(word) for word in words[1 : 1 + _COLUMNS]]
    total = sum(ticks)
    return CpuTicks(busy=total - ticks[_IDLE] - ticks[_IO_WAIT], total=total)


def utilization(before: CpuTicks, after: CpuTicks) -> float:
    """Return the share of the time that the CPUs worked, 0 to 1."""
    total = after.total - before.total
    if total <= 0:
        return 0.0
    return min(max((after.busy - before.busy) / total, 0.0), 1.0)


def parse_memory(meminfo: str) -> Memory:
    """Read /proc/meminfo.

    Raises:
        ValueError: it does not say what there is and what is left.
    """
    kibibytes = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            kibibytes[name] = int(words[0])
    try:
        total, available = kibibytes["MemTotal"], kibibytes["MemAvailable"]
    except KeyError as error:
        raise ValueError(f"/proc/meminfo does not tell {error}") from error
    return Memory(total_bytes=total * _KIB, used_bytes=(total - available) * _KIB)


def families(load: float, memory: Memory) -> tuple[Family, ...]:
    """Return the families of the host.

    Args:
        load: The share of the time that its CPUs worked.
        memory: What it has and uses.
    """
    return (
        gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", ({}, load)),
        gauge(
            "nv_cpu_memory_total_bytes",
            "CPU total memory (RAM), in bytes",
            ({}, memory.total_bytes),
        ),
        gauge(
            "nv_cpu_memory_used_bytes",
            "CPU used memory (RAM), in bytes",
            ({}, memory.used_bytes),
        ),
    )
