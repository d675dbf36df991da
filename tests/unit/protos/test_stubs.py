import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_stubs_are_what_the_schemas_say() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "scripts" / "protos", "--check"],
        stderr=subprocess.PIPE,
        check=False,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
