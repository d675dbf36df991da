"""Valid requests, and how they are damaged."""

import copy
import gzip
import json
import os
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

# How many malformed inputs all tests of this folder try together. What CI runs
# takes some twenty seconds; NEREID_FUZZ_INPUTS=25000 a few minutes.
INPUTS: Final = int(os.environ.get("NEREID_FUZZ_INPUTS", "4000"))

FIRST: Final = np.arange(16, dtype=np.int32)
SECOND: Final = np.ones(16, dtype=np.int32)
_RAW: Final = FIRST.tobytes() + SECOND.tobytes()
HEADER_LENGTH: Final = "inference-header-content-length"


def examples(share: float) -> int:
    """Return how many of the malformed inputs a test tries."""
    return max(int(INPUTS * share), 10)


def json_document(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return a valid document for the adder."""
    inputs = [
        {"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "data": data}
        for i, data in enumerate((FIRST.tolist(), [SECOND.tolist()]))
    ]
    return {"id": "7", "inputs": inputs, **fields}


def binary_document() -> bytes:
    """Return the same with its tensors behind the JSON."""
    inputs = [
        {
            "name": f"INPUT{i}",
            "datatype": "INT32",
            "shape": [1, 16],
            "parameters": {"binary_data_size": 64},
        }
        for i in (0, 1)
    ]
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    return json.dumps({"inputs": inputs, "outputs": outputs}).encode()


def _rest_seeds() -> list[tuple[bytes, dict[str, str]]]:
    plain = json.dumps(json_document()).encode()
    full = json_document(
        parameters={"priority": 1, "custom": "x", "binary_data_output": True},
        outputs=[
            {"name": "OUTPUT0", "parameters": {"classification": 2}},
            {"name": "OUTPUT1", "parameters": {"binary_data": False}},
        ],
    )
    binary = binary_document()
    length = {HEADER_LENGTH: str(len(binary))}
    zipped = gzip.compress(plain, mtime=0)
    return [
        (plain, {}),
        (json.dumps(full).encode(), {}),
        (binary + _RAW, length),
        (zipped, {"content-encoding": "gzip"}),
        (binary + _RAW, {**length, "accept-encoding": "gzip"}),
    ]


REST_SEEDS: Final = _rest_seeds()
# Values that break what only ever saw sensible ones.
ODD_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    1.5,
    2**31,
    2**63,
    2**64,
    10**400,
    1e308,
    "",
    "x" * 300,
    "\ud800",
    "é\0\n",
    [],
    [[]],
    [[[[[1]]]]],
    {},
    {"data": []},
    [None] * 16,
    [1] * 15,
    ["a"] * 16,
    [1.5] * 16,
)
ODD_HEADERS: Final = (
    "",
    "0",
    "1",
    "-1",
    "64",
    "1e3",
    "0x10",
    "99999999999999999999",
    "é",
)
ODD_TEXTS: Final = (
    b"NaN",
    b"[" * 200,
    b'{"a":' * 120,
    b"\xff\xfe",
    b"\0",
    b"'",
    b"\\u",
)


@st.composite
def damaged_bytes(draw: st.DrawFn, seed: bytes) -> bytes:
    """Return ``seed`` with some of its bytes changed, added or taken away."""
    body = bytearray(seed)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(body)))
        how = draw(st.integers(0, 4))
        if how == 0:
            body[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
        elif how == 1:
            del body[place : place + draw(st.integers(1, 40))]
        elif how == 2:
            body[place:place] = draw(st.binary(min_size=1, max_size=8))
        elif how == 3:
            body[place:place] = draw(st.sampled_from(ODD_TEXTS))
        else:
            del body[place:]
    return bytes(body)


@st.composite
def damaged_json(draw: st.DrawFn) -> bytes:
    """Return a document of which some values are odd, doubled or gone."""
    document: Any = json_document(
        parameters={"timeout": 5},
        outputs=[{"name": "OUTPUT0", "parameters": {"classification": 1}}],
    )
    for _ in range(draw(st.integers(1, 2))):
        holder: Any = document
        while True:
            keys = (
                list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            )
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            child = holder[key]
            if isinstance(child, dict | list) and child and draw(st.booleans()):
                holder = child
                continue
            if draw(st.booleans()):
                holder[key] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
            elif isinstance(holder, dict):
                del holder[key]
            else:
                holder.append(copy.deepcopy(child))
            break
    return json.dumps(document).encode(errors="surrogatepass")


@st.composite
def rest_requests(draw: st.DrawFn) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a request that is most likely malformed."""
    if draw(st.booleans()):
        return draw(damaged_json()), {}
    body, headers = draw(st.sampled_from(REST_SEEDS))
    headers = dict(headers)
    how = draw(st.integers(0, 3))
    if how:
        body = draw(damaged_bytes(body))
    if how != 1:
        name = draw(st.sampled_from((HEADER_LENGTH, "content-encoding")))
        values = (*ODD_HEADERS, "gzip", "deflate", "br", str(len(body)))
        headers[name] = draw(st.sampled_from(values))
    return body, headers
