"""The larger demo models: texts, photos and speech, as clients send them."""

import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from demo.packages import Packages
from tests.support.speech import spoken
from tests.support.stack import ROOT, Stack, build_demo, running_stack

pytestmark = pytest.mark.timeout(300)

PHOTOS = "scikit-image==0.26.0"
FOOD, BREAD, BABY = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
)
# Samples at 16 kHz: what silero_vad takes, and what it takes of the chunk before.
CHUNK, CONTEXT = 512, 64


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return Packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def photos(fetched: Packages) -> Path:
    return fetched.fetch(PHOTOS) / "skimage" / "data"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = tmp_path_factory.mktemp("demo") / "models"
    with running_stack(build_demo(repository, "--all")) as running:
        yield running


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as connected:
        yield connected


def tensor(name: str, array: NDArray[Any], datatype: str) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def elements(name: str, *values: bytes) -> triton.InferInput:
    return tensor(name, np.array([[value] for value in values], np.object_), "BYTES")


def embeddings(
    client: triton.InferenceServerClient, *texts: str
) -> NDArray[np.float32]:
    given = elements("text", *(text.encode() for text in texts))
    result = client.infer("text_embedding", [given])
    found: NDArray[np.float32] = result.as_numpy("embedding")
    return found


def test_texts_of_one_meaning_are_near_each_other(
    client: triton.InferenceServerClient,
) -> None:
    food, bread, baby = embeddings(client, FOOD, BREAD, BABY)
    assert np.linalg.norm([food, bread, baby], axis=1) == pytest.approx(1, abs=1e-5)
    # What the authors of the model publish for these sentences.
    assert food @ bread == pytest.approx(0.7553, abs=2e-4)
    assert food @ baby == pytest.approx(-0.1050, abs=2e-4)


def test_a_text_has_one_embedding_whoever_shares_its_batch(stack: Stack) -> None:
    texts = [FOOD, BABY, "x", "word " * 100, "", "Ünïcödé — 漢字"]
    start = threading.Barrier(len(texts))

    def ask(text: str) -> NDArray[np.float32]:
        with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as own:
            start.wait(30)
            (found,) = embeddings(own, text)
            return np.asarray(found)

    with ThreadPoolExecutor(len(texts)) as pool:
        together = list(pool.map(ask, texts))
    with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as own:
        alone = [embeddings(own, text)[0] for text in texts]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_the_longest_texts_are_cut_and_what_is_no_text_is_refused(
    client: triton.InferenceServerClient,
) -> None:
    long, longer = embeddings(client, "word " * 600, "word " * 700)
    np.testing.assert_allclose(long, longer, atol=1e-5)
    with pytest.raises(InferenceServerException, match="a text is not UTF-8") as caught:
        client.infer("text_embedding", [elements("text", b"\xff")])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_clients_do_not_send_the_mask(client: triton.InferenceServerClient) -> None:
    metadata = client.get_model_metadata("minilm")
    assert [one.name for one in metadata.inputs] == ["input_ids"]


def labels(
    client: triton.InferenceServerClient, *images: bytes, count: int = 1
) -> list[list[str]]:
    """Return the names of the most probable classes of each image."""
    wanted = triton.InferRequestedOutput("probabilities", class_count=count)
    given = elements("encoded", *images)
    result = client.infer("image_label", [given], outputs=[wanted])
    found = result.as_numpy("probabilities").reshape(len(images), count)
    return [[one.decode().split(":")[2] for one in row] for row in found]


def test_photos_are_recognised(
    client: triton.InferenceServerClient, photos: Path
) -> None:
    coffee, cat, rocket = (
        (photos / name).read_bytes()
        for name in ("coffee.png", "chelsea.png", "rocket.jpg")
    )
    assert labels(client, coffee, rocket) == [["espresso"], ["space shuttle"]]
    ((*three,),) = labels(client, cat, count=3)
    assert set(three) <= {"tabby", "tiger cat", "Egyptian cat", "lynx"}


def test_a_photo_is_recognised_over_rest(stack: Stack, photos: Path) -> None:
    encoded = (photos / "coffee.png").read_bytes()
    head = {
        "inputs": [
            {
                "name": "encoded",
                "datatype": "BYTES",
                "shape": [1, 1],
                "parameters": {"binary_data_size": 4 + len(encoded)},
            }
        ],
        "outputs": [{"name": "probabilities", "parameters": {"classification": 1}}],
    }
    text = json.dumps(head).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{stack.http}/v2/models/image_label/infer",
        data=text + len(encoded).to_bytes(4, "little") + encoded,
        headers={"Inference-Header-Content-Length": str(len(text))},
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310 - ours
        (output,) = json.load(response)["outputs"]
    assert output["data"][0].endswith(":espresso")


def test_what_is_no_image_is_refused_and_others_are_not(
    client: triton.InferenceServerClient, photos: Path
) -> None:
    with pytest.raises(InferenceServerException, match="cannot be decoded") as caught:
        labels(client, b"not an image")
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    coffee = (photos / "coffee.png").read_bytes()
    with pytest.raises(InferenceServerException, match="cannot be decoded"):
        labels(client, coffee[: len(coffee) // 2])
    assert labels(client, coffee) == [["espresso"]]


def speech_probabilities(
    client: triton.InferenceServerClient, sound: NDArray[np.float32]
) -> list[float]:
    """Return how likely each chunk is speech; the caller carries the state."""
    state = np.zeros((2, 1, 128), np.float32)
    context = np.zeros(CONTEXT, np.float32)
    found = []
    for start in range(0, len(sound) - CHUNK + 1, CHUNK):
        chunk = sound[start : start + CHUNK]
        row = np.concatenate([context, chunk])[None]
        result = client.infer(
            "silero_vad", [tensor("input", row, "FP32"), tensor("state", state, "FP32")]
        )
        state, context = result.as_numpy("stateN"), chunk[-CONTEXT:]
        found.append(float(result.as_numpy("output")[0, 0]))
    return found


def test_speech_is_told_from_silence_and_noise(
    client: triton.InferenceServerClient, fetched: Packages
) -> None:
    speech = spoken("The quick brown fox jumps over the lazy dog.", fetched)
    assert np.mean(np.array(speech_probabilities(client, speech)) > 0.5) > 0.8
    second = np.zeros(16_000, np.float32)
    noise = np.random.default_rng(0).normal(0, 0.05, 16_000).astype(np.float32)
    for sound in (second, noise):
        assert max(speech_probabilities(client, sound)) < 0.2


def test_streams_of_sound_whose_state_the_server_keeps_do_not_mix(
    stack: Stack, fetched: Packages
) -> None:
    sounds = [
        spoken(text, fetched)[: 40 * CHUNK]
        for text in ("The quick brown fox jumps.", "Pack my box with five dozen jugs.")
    ]
    sounds.append(np.zeros(40 * CHUNK, np.float32))

    def ask(number: int) -> tuple[list[float], list[float]]:
        with triton.InferenceServerClient(f"127.0.0.1:{stack.grpc}") as own:
            kept = streamed_probabilities(own, sounds[number], f"stream {number}")
            return kept, speech_probabilities(own, sounds[number])

    with ThreadPoolExecutor(len(sounds)) as pool:
        found = list(pool.map(ask, range(len(sounds))))
    for kept, carried in found:
        assert kept == pytest.approx(carried, abs=1e-6)
    assert [np.mean(kept) > 0.5 for kept, _ in found] == [True, True, False]


def streamed_probabilities(
    client: triton.InferenceServerClient, sound: NDArray[np.float32], name: str
) -> list[float]:
    """Return how likely each chunk is speech; the server keeps the state."""
    context = np.zeros(CONTEXT, np.float32)
    found = []
    starts = range(0, len(sound) - CHUNK + 1, CHUNK)
    for start in starts:
        chunk = sound[start : start + CHUNK]
        row = tensor("input", np.concatenate([context, chunk])[None], "FP32")
        result = client.infer(
            "silero_vad_stream",
            [row],
            sequence_id=name,
            sequence_start=start == starts[0],
            sequence_end=start == starts[-1],
        )
        context = chunk[-CONTEXT:]
        found.append(float(result.as_numpy("output")[0, 0]))
    return found


def code_blocks(file: str, language: str) -> list[str]:
    text = (ROOT / file).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def at(stack: Stack, code: str) -> str:
    """Return code that asks this stack."""
    code = code.replace("localhost:8000", f"127.0.0.1:{stack.http}")
    return code.replace("localhost:8001", f"127.0.0.1:{stack.grpc}")


def output_of(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.mark.parametrize(
    ("file", "count"), [("README.md", 1), ("docs/demo_models.md", 2)]
)
def test_the_commands_for_text_that_are_shown_work(
    stack: Stack, file: str, count: int
) -> None:
    (block,) = (
        one for one in code_blocks(file, "console") if "models/text_embedding" in one
    )
    command = at(stack, block[block.index("curl") :])
    answer = json.loads(output_of(["bash", "-c", command]))
    assert answer["outputs"][0]["shape"] == [count, 384]


def test_the_programs_that_are_shown_work(stack: Stack, photos: Path) -> None:
    photo, *speech = code_blocks("docs/demo_models.md", "python")
    run = [sys.executable, "-c"]
    shown = output_of([*run, at(stack, photo), str(photos / "coffee.png")])
    assert len(shown.splitlines()) == 3
    assert shown.splitlines()[0].endswith(":espresso")
    carried, kept = (output_of([*run, at(stack, program)]) for program in speech)
    assert carried == kept
    assert len(kept.splitlines()) == 31
    assert all(float(line.split()[-1]) < 0.1 for line in kept.splitlines())
