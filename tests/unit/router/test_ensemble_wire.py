"""Messages of ensembles, cut and joined."""

import pytest

from protos import inference_pb2 as pb
from services.core.shared_memory_region import REGION_PARAMETER
from services.router.ensemble_wire import (
    ensemble_response,
    read_request,
    read_response,
    step_request,
)

Request, Response = pb.ModelInferRequest, pb.ModelInferResponse


def request(**fields: object) -> pb.ModelInferRequest:
    return Request(
        model_name="ens",
        inputs=[
            Request.InferInputTensor(name="A", datatype="INT32", shape=[2, 300]),
            Request.InferInputTensor(name="B", datatype="BYTES", shape=[1]),
        ],
        raw_input_contents=[bytes(range(200)) * 12, b"\x01\0\0\0x"],
        **fields,  # type: ignore[arg-type]
    )


def sent(whole: pb.ModelInferRequest) -> pb.ModelInferRequest:
    """Return the request for a step that reads both tensors the other way round."""
    read = read_request(whole.SerializeToString())
    body = step_request(
        model="m",
        version="7",
        request=read,
        inputs=[("X", read.tensors["B"]), ("Y", read.tensors["A"])],
        outputs=[("O", b"")],
    )
    return Request.FromString(body)


def test_a_step_gets_the_clients_tensors_under_its_own_names() -> None:
    whole = request(id="seven")
    step = sent(whole)
    assert (step.model_name, step.model_version, step.id) == ("m", "7", "seven")
    assert [(t.name, t.datatype, list(t.shape)) for t in step.inputs] == [
        ("X", "BYTES", [1]),
        ("Y", "INT32", [2, 300]),
    ]
    assert list(step.raw_input_contents) == list(reversed(whole.raw_input_contents))
    assert [output.name for output in step.outputs] == ["O"]


def test_a_step_gets_the_parameters_of_the_request() -> None:
    whole = request()
    whole.parameters["priority"].int64_param = 2
    whole.parameters["custom"].string_param = "x"
    assert sent(whole).parameters == whole.parameters
    assert len(sent(request()).parameters) == 0


def test_a_requested_output_keeps_its_parameters() -> None:
    whole = request()
    wanted = whole.outputs.add(name="Z")
    wanted.parameters["classification"].int64_param = 3
    whole.outputs.add(name="Y")
    read = read_request(whole.SerializeToString())
    assert list(read.outputs) == ["Z", "Y"]
    body = step_request(
        model="m",
        version="",
        request=read,
        inputs=[],
        outputs=[("O", read.outputs["Z"])],
    )
    (output,) = Request.FromString(body).outputs
    assert output.parameters == wanted.parameters


def test_a_tensor_in_shared_memory_has_no_raw_contents() -> None:
    whole = request()
    whole.inputs[0].parameters[REGION_PARAMETER].string_param = "0:8:key"
    del whole.raw_input_contents[0]
    step = sent(whole)
    assert step.inputs[1].parameters[REGION_PARAMETER].string_param == "0:8:key"
    assert list(step.raw_input_contents) == list(whole.raw_input_contents)


def response() -> pb.ModelInferResponse:
    message = Response(
        model_name="m",
        model_version="7",
        id="seven",
        outputs=[
            Response.InferOutputTensor(name="O", datatype="FP32", shape=[1, 2]),
            Response.InferOutputTensor(name="P", datatype="BYTES", shape=[1]),
        ],
        raw_output_contents=[b"12345678", b"\x01\0\0\0x"],
    )
    message.outputs[1].parameters["own"].bool_param = True
    message.parameters["of the model"].string_param = "x"
    return message


def test_what_a_model_returned_can_be_sent_to_the_next() -> None:
    tensors = read_response(response().SerializeToString())
    read = read_request(request().SerializeToString())
    body = step_request(
        model="m",
        version="",
        request=read,
        inputs=[("I", tensors["P"]), ("J", tensors["O"])],
        outputs=[],
    )
    step = Request.FromString(body)
    assert [(t.name, t.datatype, list(t.shape)) for t in step.inputs] == [
        ("I", "BYTES", [1]),
        ("J", "FP32", [1, 2]),
    ]
    assert not step.inputs[0].parameters
    assert list(step.raw_input_contents) == [b"\x01\0\0\0x", b"12345678"]


def answered(whole: pb.ModelInferRequest) -> pb.ModelInferResponse:
    tensors = read_response(response().SerializeToString())
    message = ensemble_response(
        model="ens",
        version="1",
        request=read_request(whole.SerializeToString()),
        outputs=[("Z", tensors["O"]), ("Y", tensors["P"])],
    )
    return Response.FromString(message)


def test_the_answer_has_the_ensembles_names_and_the_requests_id() -> None:
    answer = answered(request(id="seven"))
    assert (answer.model_name, answer.model_version, answer.id) == (
        "ens",
        "1",
        "seven",
    )
    assert [(t.name, t.datatype, list(t.shape)) for t in answer.outputs] == [
        ("Z", "FP32", [1, 2]),
        ("Y", "BYTES", [1]),
    ]
    assert answer.outputs[1].parameters["own"].bool_param
    assert list(answer.raw_output_contents) == [b"12345678", b"\x01\0\0\0x"]


def test_the_answer_tells_of_the_sequence_even_if_there_is_none() -> None:
    parameters = answered(request()).parameters
    assert set(parameters) == {"sequence_id", "sequence_start", "sequence_end"}
    assert parameters["sequence_id"].WhichOneof("parameter_choice") == "int64_param"
    assert parameters["sequence_start"].WhichOneof("parameter_choice") == "bool_param"


@pytest.mark.parametrize("identity", [5, "five"])
def test_the_answer_tells_of_the_sequence_of_the_request(identity: int | str) -> None:
    whole = request()
    if isinstance(identity, str):
        whole.parameters["sequence_id"].string_param = identity
    else:
        whole.parameters["sequence_id"].int64_param = identity
    whole.parameters["sequence_start"].bool_param = True
    parameters = answered(whole).parameters
    assert parameters["sequence_id"] == whole.parameters["sequence_id"]
    assert parameters["sequence_start"].bool_param
    assert not parameters["sequence_end"].bool_param
