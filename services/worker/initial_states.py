"""The values that states have when their sequence begins.

Source: ``initial_state`` in Triton's sequence_batching: zeros, or a file in the
model's folder initial_state; zeros if none is given.
"""

import math
from pathlib import Path
from typing import Final

from services.core import byte_tensor
from services.core.datatype import DataType
from services.core.errors import ConfigError
from services.core.model_config_sequences import SequenceState
from services.worker.backend import ModelSource
from services.worker.sequence_states import State, States

FOLDER: Final = "initial_state"


def initial_states(source: ModelSource) -> States:
    """Return the first value of each state of a model, in the configuration's order.

    Raises:
        ConfigError: a file is missing, or too short.
    """
    folder = Path(source.directory).parent / FOLDER
    return tuple(_initial(state, folder) for state in source.config.states)


def _initial(state: SequenceState, folder: Path) -> State:
    shape = state.initial_dims
    name = next((each.data_file for each in state.initial_states), None)
    if name is not None:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise ConfigError(f"'{name}' is not in the folder {FOLDER}")
        return State(shape, _read(state, path, math.prod(shape)))
    return State(shape, _zeros(state.datatype, math.prod(shape)))


def _zeros(datatype: DataType, count: int) -> bytes:
    if datatype.byte_size is None:
        return byte_tensor.encode([b""] * count)
    return bytes(count * datatype.byte_size)


def _read(state: SequenceState, path: Path, count: int) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        text = (
            f"failed to read the initial state of state input '{state.input_name}': "
            f"{error}"
        )
        raise ConfigError(text) from error
    if state.datatype.byte_size is None:
        if len(byte_tensor.decode(data)) != count:
            text = (
                f"initial_state setting expects {count} elements, but the data "
                f"provided from {path.name} has others"
            )
            raise ConfigError(text)
        return data
    size = count * state.datatype.byte_size
    if len(data) < size:
        text = (
            f"initial_state setting expects {size} bytes, but the data provided from "
            f"{path.name} only has {len(data)} bytes."
        )
        raise ConfigError(text)
    return data[:size]
