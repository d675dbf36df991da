"""How statistics lie in Redis. Pure: names and forms, no connection.

Each version has a hash: a counter for each field, and when the last inference was.
A set names the hashes. Each reporter (a router process) has the number of its last
report that was applied, so that one that comes again is not counted again.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from services.control.model_registry import VersionKey
from services.control.statistics_totals import Counted, Totals

# The number is the schema's: readers of another one see nothing.
SCHEMA: Final = "nereid:1"
INDEX_KEY: Final = f"{SCHEMA}:statistics:versions"
_VERSION_PREFIX: Final = f"{SCHEMA}:statistics:version"
_REPORTER_PREFIX: Final = f"{SCHEMA}:statistics:reporter"
# A router that lives is heard of far more often; one that is silent for so long
# does not repeat its last report.
REPORTER_EXPIRY_S: Final = 7 * 24 * 3600

_LAST_INFERENCE: Final = "last_inference_ms"

# KEYS: the reporter, the index, then the versions. ARGV: the report's number, the
# expiry, then for each version: its member in the index, its last inference, how
# many counters follow, and each counter's name and increment.
APPLY_SCRIPT: Final = f"""
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) <= last then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
local at = 3
for i = 3, #KEYS do
  redis.call('SADD', KEYS[2], ARGV[at])
  local latest = tonumber(redis.call('HGET', KEYS[i], '{_LAST_INFERENCE}') or '0')
  if tonumber(ARGV[at + 1]) > latest then
    redis.call('HSET', KEYS[i], '{_LAST_INFERENCE}', ARGV[at + 1])
  end
  local count = tonumber(ARGV[at + 2])
  at = at + 3
  for _ = 1, count do
    redis.call('HINCRBY', KEYS[i], ARGV[at], ARGV[at + 1])
    at = at + 2
  end
end
return 1
"""


def reporter_key(reporter: str) -> str:
    """Return where the number of the last report of a router lies."""
    return f"{_REPORTER_PREFIX}:{reporter}"


def member_of(version: VersionKey) -> str:
    """Return how the index names a version."""
    model, number = version
    return f"{number}:{model}"


def version_of(member: str) -> VersionKey:
    """Return the version that the index names so.

    Raises:
        ValueError: it names none.
    """
    number, _, model = member.partition(":")
    return model, int(number)


def hash_key(member: str) -> str:
    """Return where the counters of a version lie, by its name in the index."""
    return f"{_VERSION_PREFIX}:{member}"


def script_arguments(
    reporter: str, sequence: int, increments: Totals
) -> tuple[list[str], list[str]]:
    """Return the script's keys and arguments that apply one report."""
    members = {version: member_of(version) for version in increments}
    keys = [reporter_key(reporter), INDEX_KEY, *map(hash_key, members.values())]
    arguments = [str(sequence), str(REPORTER_EXPIRY_S)]
    for version, counted in increments.items():
        arguments += [
            members[version],
            str(counted.last_inference_ms),
            str(len(counted.counts)),
        ]
        for name, count in counted.counts.items():
            arguments += [name, str(count)]
    return keys, arguments


def totals_from(
    members: Iterable[str], hashes: Iterable[Mapping[str, str]]
) -> dict[VersionKey, Counted]:
    """Return the counters that were read, in the order of their names."""
    totals = {}
    for member, fields in zip(members, hashes, strict=True):
        numbers = {name: int(value) for name, value in fields.items()}
        last_inference_ms = numbers.pop(_LAST_INFERENCE, 0)
        totals[version_of(member)] = Counted(
            last_inference_ms=last_inference_ms, counts=numbers
        )
    return totals
