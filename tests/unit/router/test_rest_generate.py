"""Requests and answers in the model's own words."""

from typing import Any

import numpy as np
import orjson
import pytest

from protos import inference_pb2 as pb
from services.core.datatype import DataType
from services.core.errors import InternalError, InvalidRequestError, ServingError
from services.core.model_config import ModelConfig, ModelInput, ModelOutput
from services.router.rest_generate import (
    encode_event,
    encode_generate,
    fitting_shape,
    parse_generate,
)
from tests.unit.router.rest_models import adder, view


def generator(*extra: ModelInput, max_batch_size: int = 0) -> ModelConfig:
    """Return a model of a text and a number."""
    return ModelConfig(
        name="textgen",
        backend="python",
        max_batch_size=max_batch_size,
        inputs=(
            ModelInput(name="text", datatype=DataType.BYTES, dims=(1,)),
            ModelInput(name="n", datatype=DataType.INT32, dims=(1,), optional=True),
            *extra,
        ),
        outputs=(ModelOutput(name="out", datatype=DataType.BYTES, dims=(1,)),),
    )


def parsed(
    document: object, config: ModelConfig | None = None, limit: int = 1 << 20
) -> pb.ModelInferRequest:
    body = document if isinstance(document, bytes) else orjson.dumps(document)
    found = parse_generate(body, view(config or generator()), max_input_bytes=limit)
    return pb.ModelInferRequest.FromString(found.request)


def test_keys_that_are_inputs_are_inputs() -> None:
    request = parsed({"text": "hi", "n": 3})
    assert [(t.name, t.datatype, list(t.shape)) for t in request.inputs] == [
        ("text", "BYTES", [1]),
        ("n", "INT32", [1]),
    ]
    assert list(request.raw_input_contents) == [b"\x02\0\0\0hi", b"\x03\0\0\0"]
    assert request.model_name == "textgen"


def test_all_other_keys_are_parameters_also_nested_ones() -> None:
    request = parsed(
        {
            "id": "q1",
            "text": "hi",
            "temperature": 0.5,
            "stream": False,
            "parameters": {"top_k": 7, "stop": "x", "n": 2},
        }
    )
    assert request.id == "q1"
    found = {
        key: getattr(value, value.WhichOneof("parameter_choice") or "")
        for key, value in request.parameters.items()
    }
    assert found == {"temperature": 0.5, "stream": False, "top_k": 7, "stop": "x"}
    assert [tensor.name for tensor in request.inputs] == ["text", "n"]


def test_an_array_fills_the_shape_of_a_batching_model() -> None:
    found = parse_generate(
        orjson.dumps({"INPUT0": list(range(32))}), adder(), max_input_bytes=1 << 20
    )
    request = pb.ModelInferRequest.FromString(found.request)
    assert list(request.inputs[0].shape) == [2, 16]
    assert request.raw_input_contents[0] == np.arange(32, dtype=np.int32).tobytes()


@pytest.mark.parametrize(
    ("dims", "count", "shape"),
    [
        ((1,), 1, [1]),
        ((-1,), 7, [7]),
        ((-1, 1), 1, [1, 1]),
        ((-1, -1), 6, [1, 6]),
        ((-1, 2, -1), 6, [1, 2, 3]),
        ((-1, 16), 32, [2, 16]),
        ((-1,), 0, [0]),
        ((), 1, []),
    ],
)
def test_the_innermost_variable_dimension_takes_what_is_left(
    dims: tuple[int, ...], count: int, shape: list[int]
) -> None:
    assert fitting_shape(dims, count, "x") == shape


@pytest.mark.parametrize(
    ("dims", "count"), [((2,), 3), ((2,), 4), ((-1, 4), 6), ((), 2)]
)
def test_what_fits_into_no_shape_is_refused(dims: tuple[int, ...], count: int) -> None:
    with pytest.raises(InvalidRequestError, match="can not convert input 'x'"):
        fitting_shape(dims, count, "x")


def test_an_empty_body_is_a_request_without_inputs() -> None:
    assert not parsed(b"").inputs


def test_an_input_must_not_be_called_parameters() -> None:
    config = generator(
        ModelInput(name="parameters", datatype=DataType.INT32, dims=(1,))
    )
    with pytest.raises(InvalidRequestError, match="for nested schema also given"):
        parsed({"parameters": {}}, config)


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (b"{x", InternalError),
        (b"[]", InternalError),
        ({"parameters": 3}, InternalError),
        ({"id": 3}, InternalError),
        ({"text": 3}, InternalError),
        ({"n": "three"}, InternalError),
        ({"n": 2**31}, InvalidRequestError),
        ({"n": [1, 2]}, InvalidRequestError),
        ({"n": [[1]]}, None),
        ({"odd": {"a": 1}}, InvalidRequestError),
        ({"triton_x": 1}, InvalidRequestError),
    ],
)
def test_what_is_no_request_is_refused(
    document: object, error: type[ServingError] | None
) -> None:
    if error is None:
        assert list(parsed(document).inputs[0].shape) == [1]
        return
    with pytest.raises(error):
        parsed(document)


def test_all_inputs_together_are_bounded() -> None:
    with pytest.raises(InvalidRequestError, match="--http-max-input-size"):
        parsed({"text": "x" * 10, "n": 1}, limit=17)
    parsed({"text": "x" * 10, "n": 1}, limit=18)


def response(**outputs: tuple[DataType, tuple[int, ...], bytes]) -> bytes:
    message = pb.ModelInferResponse(model_name="m", model_version="2")
    message.parameters["cost"].int64_param = 9
    message.parameters["model_name"].string_param = "another"
    for name, (datatype, shape, raw) in outputs.items():
        message.outputs.add(name=name, datatype=datatype.value, shape=shape)
        message.raw_output_contents.append(raw)
    return message.SerializeToString()


def document_of(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(body)
    return found


def test_one_element_is_no_array() -> None:
    nan = np.array([np.inf], np.float32).tobytes()
    reply = encode_generate(
        response(
            text=(DataType.BYTES, (1, 1), b"\x02\0\0\0hi"),
            many=(DataType.INT32, (2,), b"\1\0\0\0\2\0\0\0"),
            none=(DataType.INT32, (0,), b""),
        )
    )
    assert reply.content_type == "application/json"
    assert document_of(reply.body) == {
        "model_name": "m",
        "model_version": "2",
        "cost": 9,
        "text": "hi",
        "many": [1, 2],
        "none": [],
    }
    infinite = encode_generate(response(x=(DataType.FP32, (1,), nan))).body
    assert b'"x":Infinity' in infinite


def test_an_event_is_a_line_of_data() -> None:
    reply = encode_event(response(text=(DataType.BYTES, (1,), b"\x02\0\0\0a\n")))
    assert reply.content_type == "text/event-stream; charset=utf-8"
    assert reply.body.startswith(b"data: {")
    assert reply.body.endswith(b"}\n\n")
    assert reply.body.count(b"\n") == 2
    assert document_of(reply.body[6:-2])["text"] == "a\n"


def test_an_output_that_json_cannot_carry_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="FP16 data via JSON"):
        encode_generate(response(x=(DataType.FP16, (1,), b"\0\0")))
