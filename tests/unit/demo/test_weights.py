"""Weights are read without the libraries that wrote them, and without risk."""

import io
import json
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo.weights import read_safetensors, read_torch

MAGIC = 0x1950A86A20F9469CFC6C


class Named:
    """Pickles as something of a module that need not exist."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Storage:
    def __init__(self, key: str, values: np.ndarray[Any, Any], kind: str) -> None:
        self.key, self.values, self.kind = key, values, kind


class View:
    """A tensor of a storage, as torch pickles it."""

    def __init__(
        self, storage: Storage, offset: int, shape: tuple[int, ...], *strides: int
    ) -> None:
        hooks: OrderedDict[str, object] = OrderedDict()
        self.arguments = (storage, offset, shape, strides, False, hooks)


PicklerInPython: Any = pickle._Pickler  # the other one cannot be taught


class Writer(PicklerInPython):  # type: ignore[misc]
    """Writes names as if they were of another module."""

    def persistent_id(self, thing: object) -> object:
        if not isinstance(thing, Storage):
            return None
        kind = Named("torch", thing.kind)
        return ("storage", kind, thing.key, "cpu", len(thing.values), None)

    def save(self, thing: Any, *rest: Any, **more: Any) -> None:  # noqa: ANN401
        if isinstance(thing, Named):
            self.write(b"c" + f"{thing.module}\n{thing.name}\n".encode())
        elif isinstance(thing, View):
            self.save(Named("torch._utils", "_rebuild_tensor_v2"))
            self.save(thing.arguments)
            self.write(b"R")
        else:
            super().save(thing, *rest, **more)


def written(thing: object) -> bytes:
    stream = io.BytesIO()
    Writer(stream, 2).dump(thing)
    return stream.getvalue()


def torch_file(path: Path, tensors: object, *storages: Storage) -> Path:
    parts = [written(one) for one in (MAGIC, 1001, {}, tensors)]
    parts.append(written([storage.key for storage in storages]))
    for storage in storages:
        parts += (struct.pack("<Q", len(storage.values)), storage.values.tobytes())
    path.write_bytes(b"".join(parts))
    return path


def test_tensors_of_safetensors_come_back(tmp_path: Path) -> None:
    one = np.arange(6, dtype=np.float32).reshape(2, 3)
    two = np.array([7, 8], np.int64)
    header = {
        "__metadata__": {"format": "pt"},
        "one": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "two": {"dtype": "I64", "shape": [2], "data_offsets": [24, 40]},
    }
    text = json.dumps(header).encode()
    file = tmp_path / "w.safetensors"
    file.write_bytes(
        struct.pack("<Q", len(text)) + text + one.tobytes() + two.tobytes()
    )
    found = read_safetensors(file)
    assert set(found) == {"one", "two"}
    np.testing.assert_array_equal(found["one"], one)
    np.testing.assert_array_equal(found["two"], two)


def test_tensors_of_torch_come_back_views_of_their_storages(tmp_path: Path) -> None:
    floats = Storage("a", np.arange(8, dtype=np.float32), "FloatStorage")
    longs = Storage("b", np.array([5], np.int64), "LongStorage")
    tensors = OrderedDict(
        whole=View(floats, 0, (2, 4), 4, 1),
        turned=View(floats, 1, (3, 2), 1, 4),
        number=View(longs, 0, ()),
    )
    found = read_torch(torch_file(tmp_path / "w.pth", tensors, floats, longs))
    np.testing.assert_array_equal(found["whole"], [[0, 1, 2, 3], [4, 5, 6, 7]])
    np.testing.assert_array_equal(found["turned"], [[1, 5], [2, 6], [3, 7]])
    assert found["number"] == 5


def test_a_pickle_that_wants_to_do_something_is_refused(tmp_path: Path) -> None:
    file = torch_file(tmp_path / "w.pth", {"a": Named("os", "system")})
    with pytest.raises(pickle.UnpicklingError, match=r"os\.system is not a tensor"):
        read_torch(file)


def test_another_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.pth"
    file.write_bytes(pickle.dumps(3))
    with pytest.raises(ValueError, match="not in PyTorch's first format"):
        read_torch(file)
