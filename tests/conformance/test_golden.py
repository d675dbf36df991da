"""What the real Triton answered to hundreds of requests, and what we answer.

The recordings lie beside the checkout; without them there is nothing to compare.
"""

import json
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
# As the recordings' launch.txt has them. Today's Triton shares memory only on demand,
# the recorded one always did.
FLAGS: Final = {
    "base": ("--allow-client-shm=true", "--exit-on-error=false"),
    "explicit": (
        "--allow-client-shm=true",
        "--model-control-mode=explicit",
        "--load-model=id_fp32",
        "--exit-on-error=false",
        "--cache-config=local,size=1048576",
        "--trace-config=triton,file={DIR}/explicit/trace.json",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        "--metrics-config=summary_latencies=true",
    ),
}
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


def write_cases(folder: Path) -> None:
    """Write the cases without what we always tell and Triton seldom does."""
    for case in GOLDEN.glob("*/*.json"):
        content = json.loads(case.read_text())
        if "model_stats" in json.dumps(content["response"]):
            volatile = "$.model_stats[*].memory_usage | ignore"
            content["volatile"] = [*content.get("volatile", ()), volatile]
        copy = folder / case.relative_to(GOLDEN)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(json.dumps(content))


def run(stack: Stack, name: str, accepted: Path) -> Replay:
    command = [sys.executable, str(GOLDEN / "replay.py"), f"--set={name}", "--verbose"]
    command += [f"--http=127.0.0.1:{stack.http}", f"--grpc=127.0.0.1:{stack.grpc}"]
    command += [f"--metrics=127.0.0.1:{stack.metrics}", f"--accept={accepted}"]
    command += [f"--cases={accepted.with_name('cases')}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    outcomes = {name: outcome for outcome, name in OUTCOME.findall(done.stdout)}
    return Replay(outcomes=outcomes, report=done.stdout + done.stderr)


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    """Replay both sets once, each against a stack of its own."""
    folder = tmp_path_factory.mktemp("golden")
    make = [sys.executable, str(GOLDEN / "make_models.py"), str(folder)]
    subprocess.run(make, check=True, capture_output=True)
    write_cases(folder / "cases")
    accepted = folder / "accepted"
    accepted.write_text("".join(f"{name}  listed\n" for name in accepted_cases()))
    found = []
    for name, flags in FLAGS.items():
        given = [flag.format(DIR=folder) for flag in flags]
        with running_stack(folder / name / "models", *given) as stack:
            found.append(run(stack, name, accepted))
    base, explicit = found
    return Replay(
        outcomes={**base.outcomes, **explicit.outcomes},
        report=base.report + explicit.report,
    )


def named(replay: Replay, outcome: str) -> set[str]:
    return {name for name, found in replay.outcomes.items() if found == outcome}


def test_nothing_differs_but_what_is_listed(replay: Replay) -> None:
    assert len(replay.outcomes) > 600, replay.report
    assert not named(replay, "FAIL"), replay.report


def test_what_is_listed_still_differs(replay: Replay) -> None:
    assert named(replay, "accepted") == set(accepted_cases())


def test_nothing_is_listed_twice() -> None:
    cases = accepted_cases()
    assert sorted(cases) == sorted(set(cases))
