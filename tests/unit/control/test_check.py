"""The command that checks a repository, on a real worker."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from services.control.check import describe, main
from services.control.model_registry import VersionKey, VersionSpec, Worker
from services.control.preparation import CompletionSettings
from services.control.repository import scan
from services.control.repository_check import CheckedModel, RepositoryCheck
from services.control.trial_fleet import WorkerEndedError
from tests.unit.control.control_process import CONFIG, found_add_sub, write_model
from tests.unit.worker.onnx_models import write_add_sub

pytestmark = pytest.mark.timeout(60)

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "A" data_type: TYPE_INT32 dims: 16 }
output { name: "B" data_type: TYPE_INT32 dims: 16 }
ensemble_scheduling { step {
  model_name: "m" model_version: -1
  input_map { key: "IN" value: "A" } output_map { key: "OUT" value: "B" }
} }
"""


class PuppetFleet:
    """Finds what it is told in every file; loads all but those it is told of."""

    def __init__(self, failures: dict[VersionKey, str] | None = None) -> None:
        self.failures = failures or {}
        self.tried: list[VersionKey] = []

    async def inspect(self, *, backend: str, directory: str, config: bytes) -> bytes:
        del backend, directory, config
        return found_add_sub().SerializeToString()

    async def known_workers(self) -> tuple[Worker, ...]:
        return (Worker(worker_id="w", backends=frozenset({"onnxruntime"})),)

    async def try_to_load(
        self, model: str, specs: Sequence[VersionSpec]
    ) -> dict[VersionKey, str]:
        self.tried += [spec.key for spec in specs]
        if self.failures.get((model, 0)):
            raise WorkerEndedError(self.failures[model, 0])
        return {k: v for k, v in self.failures.items() if k[0] == model}


async def check(
    root: Path, fleet: PuppetFleet, *, loads: bool = True
) -> dict[str, CheckedModel]:
    completion = CompletionSettings(auto_complete=True, max_batch_sizes={})
    checking = RepositoryCheck(
        found=scan([str(root)]), fleet=fleet, completion=completion, loads=loads
    )
    return {each.name: each async for each in checking.run()}


async def test_every_version_is_loaded_and_every_failure_told(tmp_path: Path) -> None:
    config = CONFIG + "version_policy { all {} }"
    write_model(tmp_path, "m", config=config, versions="1 2")
    found = await check(tmp_path, PuppetFleet({("m", 2): "Internal: broken"}))
    assert found["m"].versions == (1, 2)
    assert found["m"].errors == ("version 2: Internal: broken",)
    assert "max_batch_size: 8" in found["m"].config


async def test_a_model_that_ends_its_worker_does_not_end_the_check(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "deadly")
    write_model(tmp_path, "m")
    found = await check(tmp_path, PuppetFleet({("deadly", 0): "ended"}))
    assert found["deadly"].errors == ("ended",)
    assert found["m"].errors == ()


async def test_without_loading_only_texts_are_checked(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    write_model(tmp_path, "bad", config="max_batch_siz: 1")
    fleet = PuppetFleet()
    found = await check(tmp_path, fleet, loads=False)
    assert fleet.tried == []
    assert found["m"].errors == ()
    assert found["bad"].errors[0].startswith("config.pbtxt:1:1: ")


@pytest.mark.parametrize(
    ("config", "errors", "notes"),
    [
        (CONFIG.replace("onnxruntime", "nosuch"), ("no backend 'nosuch' is in",), ()),
        (CONFIG.replace("KIND_CPU", "KIND_GPU"), (), ("not loaded: instance group",)),
    ],
)
async def test_what_this_machine_lacks_is_told_apart(
    tmp_path: Path, config: str, errors: tuple[str, ...], notes: tuple[str, ...]
) -> None:
    write_model(tmp_path, "m", config=config)
    found = (await check(tmp_path, PuppetFleet()))["m"]
    for told, wanted in ((found.errors, errors), (found.notes, notes)):
        assert len(told) == len(wanted)
        assert all(map(str.startswith, told, wanted))


async def test_an_ensemble_is_compared_with_its_members(tmp_path: Path) -> None:
    write_model(tmp_path, "e", config=ENSEMBLE)
    assert (await check(tmp_path, PuppetFleet()))["e"].errors == (
        "its member 'm' cannot be served",
    )
    write_model(tmp_path, "m")
    assert (await check(tmp_path, PuppetFleet()))["e"].errors == ()
    smaller = CONFIG.replace("max_batch_size: 8", "max_batch_size: 4")
    (tmp_path / "m" / "config.pbtxt").write_text(smaller)
    (problem,) = (await check(tmp_path, PuppetFleet()))["e"].errors
    assert "which only allows maximum batch size to be 4" in problem


def test_a_model_is_described_with_its_errors_and_its_configuration() -> None:
    model = CheckedModel(name="m", config="a\nb\n", versions=(1, 3), errors=("x\ny\n",))
    assert describe(model, with_config=True) == (
        "m: ERROR (versions 1, 3)\n  error: x\n  y\n    a\n    b\n"
    )
    assert describe(CheckedModel(name="n"), with_config=False) == "n: ok\n"


def test_a_repository_is_checked_on_a_worker_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_add_sub(tmp_path / "good" / "1")
    assert main([str(tmp_path)]) == 0
    assert 'name: "SUM"' in capsys.readouterr().out
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "model.onnx").write_bytes(b"no model")
    assert main([str(tmp_path), "--quiet"]) == 1
    told = capsys.readouterr().out
    assert "bad: ERROR" in told
    assert "good" not in told
    assert told.endswith("2 models, 1 with errors\n")


def test_a_repository_that_is_not_there_is_no_error_of_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "no")]) == 2
    assert "failed to open model repository" in capsys.readouterr().err
