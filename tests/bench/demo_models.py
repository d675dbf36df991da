"""What the larger demo models cost: MiniLM beside a bare loop, texts, photos.

    .venv/bin/python -m tests.bench.demo_models [--model NAME ...] [--concurrency N ...]

For MiniLM, Nereid takes turns with a loop of ONNX Runtime that does nothing but execute
batches, of as many rows as Nereid's have on average: one with all cores for each
operator, as ONNX Runtime does by itself, and one on each core, as the demo does.
"""

# ruff: noqa: T201  a command prints

import argparse
import base64
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime

from demo import minilm
from demo.models import MODELS as DEMO_MODELS
from demo.models import instances
from demo.packages import Packages
from tests.bench import machine, perf_analyzer, servers, window
from tests.bench.errors import BenchError
from tests.bench.perf_analyzer import ClientFigures, Load, PerfAnalyzer
from tests.bench.run import VENV
from tests.bench.sampler import Sampler
from tests.bench.servers import RunningServer
from tests.bench.window import ServerFigures

ROOT: Final = Path(__file__).resolve().parents[2]
MODELS: Final = ROOT / ".nereid" / "demo-models"
# MiniLM whose clients send the mask: perf_analyzer wants to know all inputs that the
# configuration has, and those that the server makes are no client's business.
MASKED: Final = "minilm_masked"
NAMES: Final = (MASKED, "text_embedding", "image_label")
MEMBERS: Final = {
    MASKED: ("minilm",),
    "text_embedding": ("minilm",),
    "image_label": ("image_preprocess", "mobilenet"),
}
PHOTOS: Final = "scikit-image==0.26.0"
PHOTO: Final = "skimage/data/rocket.jpg"
TOKENS: Final = 32
TEXT: Final = "The quick brown fox jumps over the lazy dog and runs into the forest."
SHOWN_ROLES: Final = frozenset({"router", "worker", "model"})
HEADER: Final = (
    f"{'model':15}{'clients':>8}{'req/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'batch':>7}"
    "  CPU us a request"
)


def bare_loop(rows: int, seconds: float, *, side_by_side: int = 1) -> float:
    """Execute batches and do nothing else; return the rows a second.

    Args:
        rows: In each batch.
        seconds: How long.
        side_by_side: So many loops, each on one thread; 1: a session as ONNX Runtime
            makes it, all cores for each operator.
    """
    options = onnxruntime.SessionOptions()
    if side_by_side > 1:
        options.intra_op_num_threads = 1
    model = MODELS / "minilm" / "1" / "model.onnx"
    session = onnxruntime.InferenceSession(model, options)
    inputs = {
        "input_ids": np.tile(token_ids(), (rows, 1)),
        "attention_mask": np.ones((rows, TOKENS), np.int64),
    }

    def run(_: int) -> float:
        session.run(None, inputs)
        began, count = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            session.run(None, inputs)
            count += rows
        return count / (time.monotonic() - began)

    with ThreadPoolExecutor(side_by_side) as pool:
        return sum(pool.map(run, range(side_by_side)))


def masked_minilm(folder: Path) -> Path:
    """Write a repository with ``MASKED``, and return its folder."""
    repository = folder / "models"
    version = repository / MASKED / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").symlink_to(MODELS / "minilm" / "1" / "model.onnx")
    text = minilm.config(instances()).replace('"minilm"', f'"{MASKED}"')
    text = text.replace('"nereid_padding"', '"no_padding"')
    (repository / MASKED / "config.pbtxt").write_text(text)
    return repository


def token_ids() -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return one row of tokens, always the same."""
    return np.random.default_rng(1).integers(1000, 30000, (1, TOKENS), np.int64)


def input_data(model: str) -> dict[str, object]:
    """Return what perf_analyzer sends: one row, always the same.

    Raises:
        subprocess.CalledProcessError: the photo could not be fetched.
    """
    if model == MASKED:
        content = {"input_ids": token_ids()[0].tolist(), "attention_mask": [1] * TOKENS}
        return {k: {"content": v, "shape": [TOKENS]} for k, v in content.items()}
    if model == "text_embedding":
        return {"text": [TEXT]}
    packages = Packages(ROOT / ".nereid" / "bench-packages")
    photo = (packages.fetch(PHOTOS) / PHOTO).read_bytes()
    element = len(photo).to_bytes(4, "little") + photo
    return {"encoded": {"b64": base64.b64encode(element).decode()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One running Nereid, and what puts load on it.

    Attributes:
        analyzer: Installed.
        server: Serves all models.
        folder: For the input data.
        seconds: For each measurement.
    """

    analyzer: PerfAnalyzer
    server: RunningServer
    folder: Path
    seconds: float

    def run(self, model: str, concurrency: int) -> tuple[ClientFigures, ServerFigures]:
        """Put one load on Nereid, and print what came of it.

        Raises:
            BenchError: perf_analyzer failed, or the load was too short.
        """
        file = self.folder / f"{model}.json"
        file.write_text(json.dumps({"data": [input_data(model)]}))
        address = self.server.addresses["grpc"]
        load = Load(
            address=address,
            protocol="grpc",
            model=model,
            concurrency=concurrency,
            seconds=self.seconds,
            asynchronous=True,
            input_data=file,
        )
        with Sampler(address, model, self.server.roles) as sampler:
            seen = self.analyzer.run(load)
        figures = window.figures(*window.loaded(sampler.samples))
        spent = ", ".join(
            f"{role} {us:.0f}"
            for role, us in figures.cpu_us_per_request.items()
            if role in SHOWN_ROLES
        )
        print(
            f"{model:15}{concurrency:8}{seen.requests_per_second:9.1f}"
            f"{seen.p50_us / 1000:9.1f}{seen.p99_us / 1000:9.1f}"
            f"{figures.mean_batch:7.1f}  {spent}",
            flush=True,
        )
        return seen, figures

    def run_beside_loop(self, concurrency: int, rounds: int) -> None:
        """Have Nereid and the bare loop take turns; print the median of their ratios.

        Raises:
            BenchError: perf_analyzer failed, or the load was too short.
        """
        ratios: dict[str, list[float]] = {"bare loop": [], "bare loops": []}
        for _ in range(rounds):
            seen, figures = self.run(MASKED, concurrency)
            rows = max(1, round(figures.mean_batch))
            for (name, found), loops in zip(
                ratios.items(), (1, instances()), strict=True
            ):
                bare = bare_loop(rows, self.seconds / 2, side_by_side=loops)
                found.append(seen.requests_per_second / bare)
                print(f"  {name:13}{loops:8}{bare:9.1f}{rows:25}", flush=True)
        for name, found in ratios.items():
            middle = statistics.median(found)
            print(f"  {concurrency} clients: {middle:.3f} of the {name}", flush=True)


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--concurrency", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    needed = [n for m in options.model for n in (m, *MEMBERS[m]) if n in DEMO_MODELS]
    build = [sys.executable, "-m", "demo.build", str(MODELS)]
    for name in dict.fromkeys(needed):
        build += ["--only", name]
    subprocess.run(build, cwd=ROOT, check=True)
    described = machine.describe(ROOT)
    print(
        f"{described.cores} cores, {described.cpu_model}, commit {described.commit},"
        f" load average {described.load_average:.2f}"
    )
    print(HEADER)
    try:
        analyzer = perf_analyzer.install(VENV)
        with (
            tempfile.TemporaryDirectory() as folder,
            servers.nereid(
                masked_minilm(Path(folder)),
                options.model[0],
                [f"--model-repository={MODELS}"],
            ) as server,
        ):
            bench = Bench(
                analyzer=analyzer,
                server=server,
                folder=Path(folder),
                seconds=options.seconds,
            )
            for model in options.model:
                for concurrency in options.concurrency:
                    if model == MASKED:
                        bench.run_beside_loop(concurrency, options.rounds)
                    else:
                        bench.run(model, concurrency)
    except BenchError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
