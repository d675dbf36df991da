"""Requests that a model runs on every instance before it counts as ready.

Source: model_warmup in Triton's model configuration. As there, a sample of batch size
n is n requests of one row each, executed together, and 0 switches it off. They never
pass a router, so nobody counts them.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import structlog

from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import BackendError, ConfigError
from services.core.model_config import ModelConfig
from services.core.model_config_warmup import Warmup, WarmupData, WarmupInput
from services.worker import wire
from services.worker.backend import ModelSource
from services.worker.outlet import Outlet
from services.worker.runs import AnyRun, StatefulRun, StreamedRun
from services.worker.sequence_states import SequenceStates

FOLDER: Final = "warmup"

# How long a decoupled model may take to end its answers.
_STREAM_TIMEOUT_S: Final = 60.0
_RANDOM_TEXT_BYTES: Final = 8

NamedRun: TypeAlias = tuple[str, AnyRun]
"""An instance's name and what answers its batches."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One warm-up sample, ready to be executed.

    Attributes:
        name: For messages.
        message: A BatchRequest.
        count: Times to execute it.
    """

    name: str
    message: bytes
    count: int


def warm_up(source: ModelSource, runs: Sequence[NamedRun]) -> None:
    """Execute every sample of a model on every instance, the instances side by side.

    Raises:
        ConfigError: a sample's file is missing or has another size.
        BackendError: an instance cannot execute a sample.
    """
    made = tuple(samples(source))
    if not made:
        return
    with ThreadPoolExecutor(len(runs), "warm-up") as threads:
        warming = [
            threads.submit(_warm_instance, source.config.name, named, made)
            for named in runs
        ]
    for each in warming:
        each.result()


def samples(source: ModelSource) -> Iterator[Sample]:
    """Yield the samples of a model that are not switched off.

    Raises:
        ConfigError: a sample's file is missing or has another size.
    """
    config = source.config
    folder = Path(source.directory).parent / FOLDER
    for warmup in config.warmups:
        if warmup.batch_size:
            request = _request(config, warmup, folder)
            message = wire.batch_request([request] * warmup.batch_size)
            yield Sample(name=warmup.name, message=message, count=warmup.count)


def _request(config: ModelConfig, warmup: Warmup, folder: Path) -> bytes:
    rows = max(config.max_batch_size, 1)
    if warmup.batch_size > rows:
        raise ConfigError(
            f"warmup sample '{warmup.name}' has batch size {warmup.batch_size}, the"
            f" model takes {rows} at most"
        )
    batch_dims = (1,) if config.max_batch_size > 0 else ()
    tensors = {
        name: (each.datatype.value, (*batch_dims, *each.dims))
        for name, each in warmup.inputs.items()
    }
    contents = [
        _contents(_Subject(config.name, warmup.name, name), each, folder)
        for name, each in warmup.inputs.items()
    ]
    is_sequence = config.sequence_batching is not None
    return wire.infer_request(config.name, tensors, contents, is_sequence=is_sequence)


class _Subject(NamedTuple):
    model: str
    sample: str
    input: str

    def __str__(self) -> str:
        return f"warmup sample '{self.sample}', input '{self.input}'"


def _contents(subject: _Subject, tensor: WarmupInput, folder: Path) -> bytes:
    count = math.prod(tensor.dims)
    if tensor.data is WarmupData.FILE:
        return _file_contents(subject, tensor, count, folder)
    if tensor.datatype is DataType.BYTES:
        is_random = tensor.data is WarmupData.RANDOM
        texts = [_random_text() if is_random else b"" for _ in range(count)]
        return byte_tensor.encode(texts)
    if tensor.data is WarmupData.ZERO:
        return bytes(count * (tensor.datatype.byte_size or 0))
    return _random(tensor.datatype, count)


def _file_contents(
    subject: _Subject, tensor: WarmupInput, count: int, folder: Path
) -> bytes:
    path = (folder / tensor.data_file).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ConfigError(
            f"{subject}: '{tensor.data_file}' is not in the folder {FOLDER}"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{subject}: cannot read {path}: {error.strerror}") from error
    size = tensor.datatype.byte_size
    if size is None:
        byte_tensor.validate(
            data, count, tensor_name=subject.input, model_name=subject.model
        )
    elif len(data) != count * size:
        raise ConfigError(
            f"{subject} expects {count * size} bytes, the file has {len(data)} bytes"
        )
    return data


def _random(datatype: DataType, count: int) -> bytes:
    generator = np.random.default_rng()
    if datatype is DataType.BOOL:
        return generator.integers(0, 2, count, np.uint8).tobytes()
    if datatype is DataType.BF16:
        # The upper half of a float's bits.
        values = generator.random(count, np.float32).view(np.uint32) >> 16
        return values.astype(np.uint16).tobytes()
    if datatype in (DataType.FP16, DataType.FP32, DataType.FP64):
        return generator.random(count).astype(datatype.numpy_dtype).tobytes()
    return generator.bytes(count * (datatype.byte_size or 0))


def _random_text() -> bytes:
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
    return np.random.default_rng().choice(letters, _RANDOM_TEXT_BYTES).tobytes()


def _warm_instance(model: str, named: NamedRun, made: Sequence[Sample]) -> None:
    instance, run = named
    for sample in made:
        _log.info(
            f"model '{model}' instance {instance} is running warmup sample"
            f" '{sample.name}'"
        )
        for _ in range(sample.count):
            for problem in _execute(run, sample.message):
                raise BackendError(
                    f"failed to run warmup sample '{sample.name}': {problem}"
                )


def _execute(run: AnyRun, message: bytes) -> Iterator[str]:
    """Execute a batch; yield what went wrong."""
    if isinstance(run, StatefulRun):
        yield from wire.problems_of(run.run(message, SequenceStates()))
        return
    if not isinstance(run, StreamedRun):
        yield from wire.problems_of(run(message))
        return
    answers: list[bytes] = []
    is_over = threading.Event()
    outlet = Outlet(
        0, send=lambda message, _: answers.append(message), close=is_over.set
    )
    answers.append(run.run(message, outlet))
    if not is_over.wait(_STREAM_TIMEOUT_S):
        yield "its answers do not end"
    for answer in answers:
        yield from wire.problems_of(answer)
