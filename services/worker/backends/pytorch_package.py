"""What the source in an AOTInductor package says about the model's inputs.

The compiled code is not told shapes: it reads and writes as far as the ones it was
compiled for reach. It has checks, but they are off unless the environment asks for
them, and then they refuse a batch of one, which works: the compiler supposes at least
two wherever a size may vary. So the checks are read out of the source beside the code.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_FUNCTION: Final = re.compile(r"static void check_input_(\d+)\(")
_DATATYPE: Final = re.compile(r"_expected_dtype = aoti_torch_dtype_(\w+)\(\)")
_FIXED: Final = re.compile(r"if \((\d+)L? != \w+_size\[(\d+)\]\)")
_MOST: Final = re.compile(r"if \(\w+_size\[(\d+)\] > (\d+)L?\)")
_DIMENSION: Final = re.compile(r"\w+_(?:size|stride)\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledInput:
    """One tensor that the code was compiled for.

    Attributes:
        dtype: PyTorch's name of its datatype.
        shape: -1 where it may vary.
        most: By dimension, how long one that varies may be, if there is a bound.
    """

    dtype: str
    shape: tuple[int, ...]
    most: dict[int, int]

    def accepts(self, shape: Sequence[int]) -> bool:
        """Whether the code was compiled for a tensor of ``shape``."""
        return len(shape) == len(self.shape) and all(
            size == ours or (ours < 0 and size <= self.most.get(i, size))
            for i, (size, ours) in enumerate(zip(shape, self.shape, strict=True))
        )


def compiled_inputs(source: str) -> tuple[CompiledInput, ...]:
    """Return the inputs in the order of the code; () if the source does not tell.

    Args:
        source: Of the wrapper, in C++.
    """
    return tuple(_inputs(source))


def _inputs(source: str) -> Iterator[CompiledInput]:
    starts = [match.start() for match in _FUNCTION.finditer(source)]
    for start in starts:
        check = source[start : source.find("\n}\n", start)]
        dtype = _DATATYPE.search(check)
        if dtype is None:
            continue
        fixed = {int(i): int(size) for size, i in _FIXED.findall(check)}
        rank = max((int(i) + 1 for i in _DIMENSION.findall(check)), default=0)
        yield CompiledInput(
            dtype=dtype[1],
            shape=tuple(fixed.get(i, -1) for i in range(rank)),
            most={int(i): int(size) for i, size in _MOST.findall(check)},
        )
