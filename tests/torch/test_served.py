"""PyTorch models behind the whole stack, as a client sees them."""

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from tests.support.stack import NEREID, Stack, running_stack
from tests.torch.torch_models import (
    AddSub,
    Nested,
    batched,
    nested_arguments,
    rows,
    save_exported,
    save_script,
)

pytestmark = pytest.mark.timeout(180)

CYCLES = 30
SETTLED = 10


class Shout(torch.nn.Module):
    def forward(self, x: list[str]) -> list[str]:
        return [one + "!" for one in x]


class Total(torch.nn.Module):
    def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
        return x["A"] + x["B"]


class TooLarge(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(1 << 50) if x.shape[0] > 1 else x


def tensor(kind: str, name: str, datatype: str = "FP32", dims: str = "4") -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}\n'


def write_config(model: Path, *lines: str) -> None:
    text = "max_batch_size: 8\ndynamic_batching {}\n" + "\n".join(lines)
    (model / "config.pbtxt").write_text(text)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Path:
    root = tmp_path_factory.mktemp("models")
    save_script(root / "script" / "1", AddSub())
    numbered = [
        tensor(kind.lower(), f"{kind}__{i}")
        for kind in ("INPUT", "OUTPUT")
        for i in (0, 1)
    ]
    parameter = (
        'parameters { key: "INFERENCE_MODE" value { string_value: "false" } }'
        'parameters { key: "INTRA_OP_THREAD_COUNT" value { string_value: "1" } }'
    )
    write_config(root / "script", 'platform: "pytorch_libtorch"', *numbered, parameter)
    save_script(root / "shout" / "1", Shout())
    flat = " reshape { shape: [] } }"
    write_config(
        root / "shout",
        'backend: "pytorch"',
        tensor("input", "x", "STRING", "1").replace(" }", flat),
        tensor("output", "Y", "STRING", "1").replace(" }", flat),
    )
    save_script(root / "total" / "1", Total())
    a, b = tensor("input", "A"), tensor("input", "B")
    write_config(root / "total", 'backend: "pytorch"', a, b, tensor("output", "SUM"))
    save_script(root / "large" / "1", TooLarge())
    x, y = tensor("input", "x"), tensor("output", "Y")
    write_config(root / "large", 'backend: "pytorch"', x, y)

    save_exported(root / "exported" / "1", Nested(), **nested_arguments())
    (root / "compiled" / "1").mkdir(parents=True)
    shutil.copy(compiled / "model.pt2", root / "compiled" / "1")
    names = ("ARGS[0]", "ARGS[2][a]", "ARGS[2][b]", "KWARGS[last]")
    results = ("RESULT[sum]", "RESULT[pair][0]")
    write_config(
        root / "compiled",
        'platform: "torch_aoti"',
        *(tensor("input", name) for name in names),
        *(tensor("output", name) for name in results),
    )
    return root


@pytest.fixture(scope="module")
def stack(repository: Path) -> Iterator[Stack]:
    flags = ("--model-control-mode=explicit", "--load-model=*")
    with running_stack(repository, *flags) as running:
        yield running


@pytest.fixture
def client(stack: Stack) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.http}") as connected:
        yield connected


def infer(
    client: triton.InferenceServerClient,
    model: str,
    arrays: Mapping[str, NDArray[Any]],
    datatype: str = "FP32",
) -> Any:  # noqa: ANN401 - tritonclient has no types
    inputs = []
    for name, array in arrays.items():
        one = triton.InferInput(name, list(array.shape), datatype)
        one.set_data_from_numpy(array)
        inputs.append(one)
    return client.infer(model, inputs)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_script_answers_as_its_module(
    client: triton.InferenceServerClient, count: int
) -> None:
    left, right = rows(count), rows(count, 50.0)
    given = {"INPUT__0": left.numpy(), "INPUT__1": right.numpy()}
    found = infer(client, "script", given)
    for i, expected in enumerate(AddSub()(left, right)):
        assert np.array_equal(found.as_numpy(f"OUTPUT__{i}"), expected.detach().numpy())


def test_a_script_takes_and_gives_strings(client: triton.InferenceServerClient) -> None:
    x = np.array([["é"], [""]], object)
    found = infer(client, "shout", {"x": x}, "BYTES").as_numpy("Y")
    assert [one.decode() for one in found.reshape(-1)] == ["é!", "!"]


def test_a_script_takes_a_dict(client: triton.InferenceServerClient) -> None:
    a, b = rows(2).numpy(), rows(2, 7.0).numpy()
    assert np.array_equal(
        infer(client, "total", {"B": b, "A": a}).as_numpy("SUM"), a + b
    )


def test_requests_that_share_a_batch_get_their_own_rows(stack: Stack) -> None:
    def ask(number: int) -> bool:
        left, right = rows(1, float(number)), rows(1, 2.0 * number)
        given = {"INPUT__0": left.numpy(), "INPUT__1": right.numpy()}
        with triton.InferenceServerClient(f"127.0.0.1:{stack.http}") as own:
            found = infer(own, "script", given).as_numpy("OUTPUT__0")
        return np.array_equal(found, AddSub()(left, right)[0].detach().numpy())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(64)))


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("model", ["exported", "compiled"])
def test_a_pt2_file_answers_as_its_module(
    client: triton.InferenceServerClient, model: str, count: int
) -> None:
    x, a, b, last = (rows(count, 10.0 * i) for i in range(4))
    names = (
        ["x", "options[a]", "options[b]", "last"]
        if model == "exported"
        else ["ARGS[0]", "ARGS[2][a]", "ARGS[2][b]", "KWARGS[last]"]
    )
    values = [one.numpy() for one in (x, a, b, last)]
    found = infer(client, model, dict(zip(names, values, strict=True)))
    expected = Nested()(x, 2.0, {"a": a, "b": b}, last=last)
    total, first = (
        ("sum", "pair[0]")
        if model == "exported"
        else ("RESULT[sum]", "RESULT[pair][0]")
    )
    assert np.array_equal(found.as_numpy(total), expected["sum"].numpy())
    assert np.array_equal(found.as_numpy(first), expected["pair"][0].numpy())


def test_an_exported_program_needs_no_configuration(
    client: triton.InferenceServerClient,
) -> None:
    config = client.get_model_config("exported")
    assert (config["backend"], config["platform"]) == ("pytorch", "torch_aoti")
    assert config["max_batch_size"] == 16
    assert "dynamic_batching" in config
    inputs = [(one["name"], one["data_type"], one["dims"]) for one in config["input"]]
    names = ("x", "options[a]", "options[b]", "last")
    assert inputs == [(name, "TYPE_FP32", [4]) for name in names]
    assert [one["name"] for one in config["output"]] == ["sum", "pair[0]", "pair[1]"]


def test_a_batch_that_needs_too_much_memory_is_run_in_smaller_ones(
    client: triton.InferenceServerClient,
) -> None:
    with pytest.raises(InferenceServerException, match="can't allocate memory"):
        infer(client, "large", {"x": rows(2).numpy()})
    x = rows(1).numpy()
    assert np.array_equal(infer(client, "large", {"x": x}).as_numpy("Y"), x)


def resident_bytes(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096


def test_unloading_gives_back_what_a_model_held(
    stack: Stack, client: triton.InferenceServerClient
) -> None:
    worker = stack.process_of("worker")
    sizes = []
    for _ in range(CYCLES):
        for model in ("script", "exported", "compiled"):
            client.unload_model(model)
            client.load_model(model)
        sizes.append(resident_bytes(worker))
    assert sizes[-1] < 1.1 * sizes[SETTLED]


def test_check_completes_what_it_can_and_names_what_is_wrong(
    repository: Path, tmp_path: Path
) -> None:
    shutil.copytree(repository / "exported", tmp_path / "right")
    for name in ("untold", "contradicting"):
        shutil.copytree(repository / "script", tmp_path / name)
    (tmp_path / "untold" / "config.pbtxt").unlink()
    config = tmp_path / "contradicting" / "config.pbtxt"
    config.write_text(config.read_text().replace("INPUT__1", "INPUT__7"))
    batch = batched("left", "right")
    arguments = (rows(2), rows(2, 1.0))
    folder = tmp_path / "wide" / "1"
    save_exported(folder, AddSub(), arguments, dynamic_shapes=batch)
    text = tensor("input", "left", dims="5") + tensor("input", "right")
    (tmp_path / "wide" / "config.pbtxt").write_text("max_batch_size: 2\n" + text)
    checked = subprocess.run(
        [NEREID, "check", tmp_path], capture_output=True, text=True, check=False
    )
    said = checked.stdout + checked.stderr
    assert checked.returncode == 1
    assert "options[a]" in said
    assert "configuration expects 0 inputs, model provides 2: model.pt does not" in said
    assert "input INPUT__7 in the model configuration refers to an input index" in said
    assert "tensor 'left': the model expects 2 dimensions (shape [-1,4]) but" in said


def test_the_index_names_what_a_model_lacks(
    stack: Stack, repository: Path, client: triton.InferenceServerClient
) -> None:
    folder = repository / "broken" / "1"
    folder.mkdir(parents=True)
    (folder / "model.pt").write_bytes(b"garbage!")
    write_config(
        folder.parent, tensor("input", "x"), tensor("output", "Y"), 'backend: "pytorch"'
    )
    with pytest.raises(InferenceServerException):
        client.load_model("broken")
    request = urllib.request.Request(
        f"http://127.0.0.1:{stack.http}/v2/repository/index", data=b"", method="POST"
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310 - ours
        index = json.load(response)
    (broken,) = [one for one in index if one["name"] == "broken"]
    assert "failed to load model 'broken': File is not a zip file" in broken["reason"]
