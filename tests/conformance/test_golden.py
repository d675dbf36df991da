"""What the real Triton answered to hundreds of requests, and what we answer.

The recordings lie beside the checkout; without them there is nothing to compare.
"""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.stack import ROOT, Stack, running_stack

GOLDEN: Final = ROOT.parent / "shared" / "golden"
ACCEPTED_FILE: Final = Path(__file__).with_name("accepted_differences.md")
# A list item that begins with a case's name; its reason is its text or its heading's.
ACCEPTED_CASE: Final = re.compile(r"^- `(\w+)`", re.MULTILINE)
OUTCOME: Final = re.compile(r"^ +(ok|accepted|FAIL) (\w+)$", re.MULTILINE)

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not GOLDEN.is_dir(), reason="the recordings are not beside the checkout"
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One run of all cases.

    Attributes:
        outcomes: ok, accepted or FAIL, by case.
        report: What was printed.
    """

    outcomes: Mapping[str, str]
    report: str


def accepted_cases() -> list[str]:
    return ACCEPTED_CASE.findall(ACCEPTED_FILE.read_text())


def run(stack: Stack, accepted: Path) -> Replay:
    command = [sys.executable, str(GOLDEN / "replay.py"), "--set=base", "--verbose"]
    command += [f"--http=127.0.0.1:{stack.http}", f"--grpc=127.0.0.1:{stack.grpc}"]
    command += [f"--metrics=127.0.0.1:{stack.metrics}", f"--accept={accepted}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    outcomes = {name: outcome for outcome, name in OUTCOME.findall(done.stdout)}
    return Replay(outcomes=outcomes, report=done.stdout + done.stderr)


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    """Replay the base set once, against a stack of its own."""
    folder = tmp_path_factory.mktemp("golden")
    make = [sys.executable, str(GOLDEN / "make_models.py"), str(folder)]
    subprocess.run(make, check=True, capture_output=True)
    accepted = folder / "accepted"
    accepted.write_text("".join(f"{name}  listed\n" for name in accepted_cases()))
    models = folder / "base" / "models"
    # Today's Triton shares memory only on demand, the recorded one always did.
    flags = ("--allow-client-shm=true", "--exit-on-error=false")
    with running_stack(models, *flags) as stack:
        return run(stack, accepted)


def named(replay: Replay, outcome: str) -> set[str]:
    return {name for name, found in replay.outcomes.items() if found == outcome}


def test_nothing_differs_but_what_is_listed(replay: Replay) -> None:
    assert len(replay.outcomes) > 400, replay.report
    assert not named(replay, "FAIL"), replay.report


def test_what_is_listed_still_differs(replay: Replay) -> None:
    assert named(replay, "accepted") == set(accepted_cases())


def test_nothing_is_listed_twice() -> None:
    cases = accepted_cases()
    assert sorted(cases) == sorted(set(cases))
