"""Build the demo model repository: ``python -m demo.build [--only simple] DIR``.

``simple`` adds and subtracts, and is written here. ``magika`` tells the type of a
file; its weights come with the PyPI package of that name. What exists is kept.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from demo.onnx_model import add_sub_model

MODELS: Final = ("simple", "magika")
SIMPLE_WIDTH: Final = 16
MAGIKA_PACKAGE: Final = "magika==1.0.3"

SIMPLE_CONFIG: Final = f"""\
name: "simple"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ {SIMPLE_WIDTH} ] }},
  {{ name: "INPUT1" data_type: TYPE_INT32 dims: [ {SIMPLE_WIDTH} ] }}
]
output [
  {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ {SIMPLE_WIDTH} ] }},
  {{ name: "OUTPUT1" data_type: TYPE_INT32 dims: [ {SIMPLE_WIDTH} ] }}
]
dynamic_batching {{ }}
"""

MAGIKA_CONFIG: Final = """\
name: "magika"
platform: "onnxruntime_onnx"
max_batch_size: 32
input [ {{ name: "bytes" data_type: TYPE_INT32 dims: [ {length} ] }} ]
output [
  {{
    name: "target_label"
    data_type: TYPE_FP32
    dims: [ {label_count} ]
    label_filename: "labels.txt"
  }}
]
dynamic_batching {{ }}
"""


def main() -> int:
    """Build what is missing; return the process's exit status."""
    parser = argparse.ArgumentParser(description="Build the demo model repository.")
    parser.add_argument("directory", type=Path, help="the repository's folder")
    parser.add_argument(
        "--only", choices=MODELS, help="build this model (default: all)"
    )
    options = parser.parse_args()
    for name in (options.only,) if options.only else MODELS:
        if (options.directory / name / "config.pbtxt").exists():
            continue
        print(f"building the demo model {name}", flush=True)
        try:
            build(name, options.directory)
        except subprocess.CalledProcessError as error:
            print(f"without {name}: {error}", file=sys.stderr)
            return 1
    return 0


def build(name: str, repository: Path) -> None:
    """Build one model beside its final place, then move it there in one step.

    Raises:
        subprocess.CalledProcessError: pip could not fetch the package.
    """
    repository.mkdir(parents=True, exist_ok=True)
    # Not inside the repository: a server that polls it would see half a model.
    with tempfile.TemporaryDirectory(dir=repository.parent, prefix="demo-") as work:
        model = Path(work) / name
        (model / "1").mkdir(parents=True)
        if name == "simple":
            write_simple(model)
        else:
            write_magika(model, Path(work) / "packages")
        shutil.rmtree(repository / name, ignore_errors=True)
        model.rename(repository / name)


def write_simple(model: Path) -> None:
    """Write the model that adds and subtracts."""
    (model / "1" / "model.onnx").write_bytes(add_sub_model(width=SIMPLE_WIDTH))
    (model / "config.pbtxt").write_text(SIMPLE_CONFIG)


def write_magika(model: Path, packages: Path) -> None:
    """Write the model that tells the type of a file, from its PyPI package.

    Raises:
        subprocess.CalledProcessError: pip could not fetch the package.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--target", str(packages)]
    subprocess.run([*command, MAGIKA_PACKAGE], check=True)
    weights = next(packages.glob("magika/models/*/model.onnx"))
    settings = json.loads(weights.with_name("config.min.json").read_text())
    labels = settings["target_labels_space"]
    sizes = (settings["beg_size"], settings["mid_size"], settings["end_size"])
    shutil.copyfile(weights, model / "1" / "model.onnx")
    (model / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
    (model / "config.pbtxt").write_text(
        MAGIKA_CONFIG.format(length=sum(sizes), label_count=len(labels))
    )


if __name__ == "__main__":
    sys.exit(main())
