"""Loads, unloads and inferences that cross each other; and what is left of them."""

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.support.adder import adder_bytes, write_adder
from tests.support.adder_traffic import ask
from tests.support.eventually import eventually
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(180)

MODELS: Final = ("a", "b", "c")
THREADS: Final = 10
STRESS_S: Final = 15.0
LONGEST_CALL_S: Final = 10.0
CYCLES: Final = 25
WARM_CYCLES: Final = 5
POOLED: Final = 4
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    for addend, name in enumerate(MODELS):
        write_adder(tmp_path / "models", addend, name=name)
    mode = "--model-control-mode=explicit"
    with running_stack(tmp_path / "models", mode) as stack:
        yield stack


class Caller:
    """One client that does this and that, and what came of it."""

    def __init__(self, port: int, seed: int, until_s: float) -> None:
        self.slowest_s = 0.0
        self.answers = 0
        self.wrong: list[str] = []
        self._port = port
        self._until_s = until_s
        self._random = random.Random(seed)  # noqa: S311 - no secret

    def run(self) -> None:
        with triton.InferenceServerClient(f"127.0.0.1:{self._port}") as client:
            while time.monotonic() < self._until_s:
                name = self._random.choice(MODELS)
                kind = self._random.choice(("load", "unload", *["infer"] * 6))
                began_s = time.monotonic()
                self._call(client, kind, name)
                took_s = time.monotonic() - began_s
                self.slowest_s = max(self.slowest_s, took_s)

    def _call(self, client: Any, kind: str, name: str) -> None:  # noqa: ANN401
        try:
            if kind == "load":
                client.load_model(name)
            elif kind == "unload":
                client.unload_model(name)
            elif ask(client, name) != MODELS.index(name):
                self.wrong.append(f"{name} answered for another model")
            else:
                self.answers += 1
        except InferenceServerException as error:
            # A model that is unloaded says so; nothing else may go wrong.
            is_told = kind == "infer" and "unknown model" in str(error)
            if not is_told:
                self.wrong.append(f"{kind} {name}: {error}")


def test_whatever_crosses_every_call_returns_and_the_last_word_counts(
    stack: Stack,
) -> None:
    until_s = time.monotonic() + STRESS_S
    callers = [Caller(stack.grpc, seed, until_s) for seed in range(THREADS)]
    threads = [threading.Thread(target=caller.run) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [wrong for caller in callers for wrong in caller.wrong] == []
    assert max(caller.slowest_s for caller in callers) < LONGEST_CALL_S
    assert sum(caller.answers for caller in callers) > 0
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:
        client.load_model("a")
        client.unload_model("b")
        client.load_model("c")

        def states() -> list[str]:
            index = client.get_model_repository_index().models
            return [each.state for each in index]

        eventually(lambda: states() == ["READY", "UNAVAILABLE", "READY"])
        assert (ask(client, "a"), ask(client, "c")) == (0, 2)


def test_loading_and_unloading_leaves_nothing_behind(stack: Stack) -> None:
    config = '{"backend": "onnxruntime", "max_batch_size": 8}'
    files = {"file:1/model.onnx": adder_bytes(5)}
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as client:

        def cycle() -> None:
            client.load_model("a")
            assert ask(client, "a") == 0
            client.load_model("a", config=config, files=files)
            assert ask(client, "a") == 5
            client.unload_model("a")

        for _ in range(WARM_CYCLES):
            cycle()
        before = Held(stack)
        for _ in range(CYCLES - WARM_CYCLES):
            cycle()
        for role in ("control", "router", "worker"):
            size = resident_bytes(stack.process_of(role))
            assert size < before.resident[role] * 1.1, role
        eventually(lambda: Held(stack).has_threads_of(before))
        eventually(lambda: Held(stack).files == [])
        assert len(stack.processes()) == before.processes


class Held:
    """What the processes of a stack hold now."""

    def __init__(self, stack: Stack) -> None:
        roles = {
            role: stack.process_of(role) for role in ("control", "router", "worker")
        }
        self.resident = {role: resident_bytes(pid) for role, pid in roles.items()}
        self.threads = {
            role: len(list(Path(f"/proc/{pid}/task").iterdir()))
            for role, pid in roles.items()
        }
        self.processes = len(stack.processes())
        state = next(
            Path(word.partition("=")[2])
            for word in stack.processes()[roles["control"]].split()
            if word.startswith("--override-directory=")
        )
        self.files = sorted(state.rglob("*")) if state.is_dir() else []

    def has_threads_of(self, before: "Held") -> bool:
        """Whether no threads were left; pools may have got their last ones."""
        return all(
            count <= before.threads[role] + POOLED
            for role, count in self.threads.items()
        )


def resident_bytes(process: int) -> int:
    fields = Path(f"/proc/{process}/statm").read_text().split()
    return int(fields[1]) * _PAGE_BYTES
