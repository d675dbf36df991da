"""Every datatype there and back, in each of the four ways that a tensor can travel."""

import gzip
import http.client
import json
import math
from collections.abc import Iterator
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(120)

HTTP, GRPC = tritonclient.http, tritonclient.grpc
CONFIG: Final = """
backend: "identity" max_batch_size: 0
input [ {{ name: "INPUT0" data_type: TYPE_{type} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_{type} dims: [ -1 ] }} ]
"""


def extremes(dtype: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - a numpy dtype
    info = np.iinfo(dtype)
    return np.array([info.min, 0, 1, info.max], dtype)


VALUES: Final[dict[str, np.ndarray[Any, Any]]] = {
    "BOOL": np.array([True, False, True], bool),
    **{
        f"{sign}INT{bits}": extremes(f"{sign.lower()}int{bits}")
        for sign in ("U", "")
        for bits in (8, 16, 32, 64)
    },
    "FP16": np.array([-65504, 0, 0.5, np.inf], np.float16),
    "FP32": np.array([-3.4e38, 0, 0.1, 1e-45], np.float32),
    "FP64": np.array([-1.7e308, 0, 0.1, 5e-324], np.float64),
    "BF16": np.array([-1.5, 0, 0.25, 1024], ml_dtypes.bfloat16),
    "BYTES": np.array([b"", b"text", "ü€".encode()], np.object_),
}
# The field of typed contents.
CONTENTS: Final = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
NO_JSON: Final = ("FP16", "BF16")


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("identity")
    for name in VALUES:
        (folder / name / "1").mkdir(parents=True)
        kind = "STRING" if name == "BYTES" else name
        (folder / name / "config.pbtxt").write_text(CONFIG.format(type=kind))
    with running_stack(folder) as running:
        yield running


def raw_of(datatype: str) -> bytes:
    values = VALUES[datatype]
    if datatype == "BYTES":
        return b"".join(len(one).to_bytes(4, "little") + one for one in values)
    return values.tobytes()


def post(
    stack: Stack, model: str, body: bytes, headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", stack.http)
    connection.request("POST", f"/v2/models/{model}/infer", body, headers or {})
    response = connection.getresponse()
    answer = response.status, response.headers, response.read()
    connection.close()
    return answer


def in_json(datatype: str, data: object, count: int) -> bytes:
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": [count], "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


def refusal(answer: tuple[int, http.client.HTTPMessage, bytes]) -> str:
    status, _, body = answer
    assert 400 <= status < 600
    return str(json.loads(body)["error"])


@pytest.mark.parametrize("module", [HTTP, GRPC])
@pytest.mark.parametrize("datatype", VALUES)
def test_binary_tensors_come_back_as_they_went(
    identity: Stack,
    module: Any,  # noqa: ANN401 - untyped clients
    datatype: str,
) -> None:
    port = identity.http if module is HTTP else identity.grpc
    values = VALUES[datatype]
    for sent in (values, values[:0]):
        tensor = module.InferInput("INPUT0", list(sent.shape), datatype)
        tensor.set_data_from_numpy(sent)
        with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
            found = client.infer(datatype, [tensor]).as_numpy("OUTPUT0")
        assert found.shape == sent.shape
        np.testing.assert_array_equal(found, sent)


@pytest.mark.parametrize("datatype", CONTENTS)
def test_typed_contents_are_the_same_as_raw_ones(
    identity: Stack, datatype: str
) -> None:
    values = VALUES[datatype]
    request = service_pb2.ModelInferRequest(model_name=datatype)
    tensor = request.inputs.add(name="INPUT0", datatype=datatype, shape=[len(values)])
    getattr(tensor.contents, CONTENTS[datatype]).extend(values.tolist())
    with GRPC.InferenceServerClient(f"127.0.0.1:{identity.grpc}") as client:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(client._channel)
        answer = stub.ModelInfer(request, timeout=20)
        assert list(answer.raw_output_contents) == [raw_of(datatype)]
        request.raw_input_contents.append(raw_of(datatype))
        with pytest.raises(GRPC.grpc.RpcError, match="contents field must not be"):
            stub.ModelInfer(request, timeout=20)


@pytest.mark.parametrize("datatype", sorted(set(VALUES) - set(NO_JSON)))
def test_json_says_the_same_as_bytes(identity: Stack, datatype: str) -> None:
    values = VALUES[datatype].tolist()
    data = [one.decode() for one in values] if datatype == "BYTES" else values
    status, _, body = post(identity, datatype, in_json(datatype, data, len(data)))
    assert status == 200
    (output,) = json.loads(body)["outputs"]
    assert (output["datatype"], output["shape"]) == (datatype, [len(data)])
    if datatype == "FP32":
        np.testing.assert_array_equal(np.float32(output["data"]), VALUES[datatype])
    else:
        assert output["data"] == data


@pytest.mark.parametrize("datatype", NO_JSON)
def test_half_precision_has_no_json_and_is_told_so(
    identity: Stack, datatype: str
) -> None:
    text = refusal(post(identity, datatype, in_json(datatype, [1.0], 1)))
    assert datatype in text
    assert "binary" in text


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        *(
            (name, value)
            for name, values in VALUES.items()
            if "INT" in name
            for value in (int(values[0]) - 1, int(values[-1]) + 1)
        ),
        ("FP32", 1e39),
        ("BOOL", 2),
        ("INT32", 0.5),
        ("INT32", "1"),
        ("BYTES", 1),
    ],
)
def test_what_a_datatype_cannot_hold_is_refused_not_wrapped(
    identity: Stack, datatype: str, value: object
) -> None:
    assert refusal(post(identity, datatype, in_json(datatype, [value], 1)))


def test_json_writes_and_reads_numbers_that_are_none(identity: Stack) -> None:
    data = [math.nan, math.inf, -math.inf]
    status, _, body = post(identity, "FP64", in_json("FP64", data, 3))
    assert status == 200
    found = json.loads(body)["outputs"][0]["data"]
    assert math.isnan(found[0])
    assert found[1:] == data[1:]


def test_json_may_be_nested_a_hundred_levels_and_no_deeper(identity: Stack) -> None:
    nested: object = [1]
    for _ in range(150):
        nested = [nested]
    text = refusal(post(identity, "INT32", in_json("INT32", nested, 1)))
    assert "100" in text


@pytest.mark.parametrize("datatype", ["UINT8", "INT64", "BF16"])
def test_a_body_without_json_is_the_only_tensor(identity: Stack, datatype: str) -> None:
    header = {"Inference-Header-Content-Length": "0"}
    status, headers, body = post(identity, datatype, raw_of(datatype), header)
    assert status == 200
    length = int(headers["Inference-Header-Content-Length"])
    assert body[length:] == raw_of(datatype)
    assert json.loads(body[:length])["outputs"][0]["shape"] == [len(VALUES[datatype])]


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "99999999", str(2**64)])
def test_a_header_length_that_is_none_is_refused(identity: Stack, length: str) -> None:
    header = {"Inference-Header-Content-Length": length}
    body = in_json("INT32", [1], 1)
    assert refusal(post(identity, "INT32", body, header))


def test_a_small_body_cannot_become_a_large_one(identity: Stack) -> None:
    """A gzip of 200 MiB in 200 KB meets the limit of 64 MiB."""
    bomb = gzip.compress(bytes(200 << 20))
    headers = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": "0"}
    text = refusal(post(identity, "UINT8", bomb, headers))
    assert str(64 << 20) in text


def test_a_tensor_of_the_wrong_datatype_is_refused(identity: Stack) -> None:
    tensor = GRPC.InferInput("INPUT0", [1], "INT64")
    tensor.set_data_from_numpy(np.zeros(1, np.int64))
    with (
        GRPC.InferenceServerClient(f"127.0.0.1:{identity.grpc}") as client,
        pytest.raises(InferenceServerException, match="INT64"),
    ):
        client.infer("INT32", [tensor])
