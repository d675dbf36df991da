"""What may run, what may not, and what the client is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from services.core.datatype import DataType
from services.core.errors import (
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    ServingError,
)
from services.core.model_config import ModelConfig, ModelInput
from services.core.model_config_padding import (
    GeneratedInput,
    LengthOf,
    PaddedInput,
    Padding,
)
from services.router.admission import Admission, admit_in_full
from services.router.input_checks import shape_key
from services.router.learned_headers import LearnedHeaders
from services.router.route_table import RouteTable
from tests.unit.router.routes import (
    Request,
    add_sub,
    add_sub_request,
    identity,
    route,
    tensor,
)

TABLE = RouteTable.of([route(add_sub())])
NO_ID = "[request id: <id_unknown>] "


def refusal(request: pb.ModelInferRequest, table: RouteTable = TABLE) -> ServingError:
    with pytest.raises(ServingError) as caught:
        admit_in_full(request.SerializeToString(), table)
    return caught.value


def test_a_valid_request_is_admitted_with_its_rows() -> None:
    body = add_sub_request(rows=3).SerializeToString()
    verdict, admitted = admit_in_full(body, TABLE)
    assert verdict.rows == 3
    assert verdict.route.model == "simple"
    assert admitted is body


def test_requests_of_one_shape_share_a_key_whatever_their_rows() -> None:
    table = RouteTable.of([route(identity(DataType.FP32))])

    def key(rows: int, length: int) -> object:
        request = Request(
            model_name="identity",
            inputs=[tensor("INPUT0", (rows, length), "FP32")],
            raw_input_contents=[bytes(4 * rows * length)],
        )
        return admit_in_full(request.SerializeToString(), table)[0].shape_key

    assert key(1, 5) == key(2, 5)
    assert key(1, 5) != key(1, 6)


def test_garbage_is_refused() -> None:
    with pytest.raises(InternalError, match="Unable to parse request"):
        admit_in_full(b"\xff\xff\xff", TABLE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"inputs": [], "raw_input_contents": []},
            NO_ID + "expected 2 inputs but got 0 inputs for model 'simple'. Got "
            "input(s) [], but missing required input(s) ['INPUT0','INPUT1']. "
            "Please provide all required input(s).",
        ),
        (
            {"inputs": [tensor("INPUT0", (1, 16))], "raw_input_contents": [bytes(64)]},
            NO_ID + "expected 2 inputs but got 1 inputs for model 'simple'. Got "
            "input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. Please "
            "provide all required input(s).",
        ),
        (
            {"inputs": [tensor("INPUTX", (1, 16)), tensor("INPUT1", (1, 16))]},
            "unexpected inference input 'INPUTX' for model 'simple'",
        ),
        (
            {"inputs": [tensor("INPUT0", (1, 16), "FP32"), tensor("INPUT1", (1, 16))]},
            NO_ID + "inference input 'INPUT0' data-type is 'FP32', but model 'simple' "
            "expects 'INT32'",
        ),
        (
            {"inputs": [tensor("INPUT0", (1, 16), "INT9"), tensor("INPUT1", (1, 16))]},
            NO_ID + "inference input 'INPUT0' data-type is '<invalid>', but model "
            "'simple' expects 'INT32'",
        ),
        (
            {"inputs": [tensor("INPUT0", (2, 16)), tensor("INPUT1", (1, 16))]},
            NO_ID + "input 'INPUT0' batch size does not match other inputs for "
            "'simple'",
        ),
        (
            {"inputs": [tensor("INPUT0", (9, 16)), tensor("INPUT1", (9, 16))]},
            NO_ID + "inference request batch-size must be <= 8 for 'simple'",
        ),
        (
            {"inputs": [tensor("INPUT0", ()), tensor("INPUT1", ())]},
            NO_ID + "input 'INPUT1' has no shape but model requires batch dimension "
            "for 'simple'",
        ),
        (
            {"raw_input_contents": [bytes(60), bytes(64)]},
            NO_ID + "input byte size mismatch for input 'INPUT0' for model 'simple'. "
            "Expected 64, got 60",
        ),
        (
            {
                "inputs": [tensor("INPUT0", (0, 16)), tensor("INPUT1", (0, 16))],
                "raw_input_contents": [b"", b""],
            },
            NO_ID + "input byte size mismatch for input 'INPUT1' for model 'simple'. "
            "Expected 64, got 0",
        ),
        (
            {"inputs": [tensor("INPUT0", (0, 16)), tensor("INPUT1", (0, 16))]},
            NO_ID + "inference request batch-size must be >= 1 for 'simple'",
        ),
        (
            {"inputs": [tensor("INPUT0", (1, 16)), tensor("INPUT1", (0, 16))]},
            NO_ID + "input 'INPUT0' batch size does not match other inputs for "
            "'simple'",
        ),
        (
            {"inputs": [tensor("INPUT0", (1, 16)), tensor("INPUT0", (1, 16))]},
            "input 'INPUT0' already exists in request",
        ),
        (
            {"raw_input_contents": [bytes(64)]},
            "unable to find data for input tensor 'INPUT1' for model 'simple' in "
            "request.",
        ),
        (
            {"raw_input_contents": [bytes(64)] * 3},
            "expected 2 raw_input_contents for model 'simple', one for each input, "
            "got 3",
        ),
        (
            {"raw_input_contents": []},
            "unable to find data for input tensor 'INPUT0' for model 'simple' in "
            "request.",
        ),
        (
            {"outputs": [Request.InferRequestedOutputTensor(name="NOPE")]},
            "unexpected inference output 'NOPE' for model 'simple'",
        ),
        (
            {"id": "7", "raw_input_contents": [bytes(60), bytes(64)]},
            "[request id: 7] input byte size mismatch for input 'INPUT0' for model "
            "'simple'. Expected 64, got 60",
        ),
        (
            {"parameters": {"timeout": pb.InferParameter(string_param="x")}},
            "invalid value type for 'timeout' parameter, expected int64_param.",
        ),
        (
            {"parameters": {"triton_x": pb.InferParameter(int64_param=1)}},
            "parameter keys starting with 'triton_' are reserved for Triton usage. "
            "Only the following keys starting with 'triton_' are allowed: "
            "triton_enable_empty_final_response",
        ),
    ],
)
def test_a_contradiction_is_refused_with_the_reason(
    fields: dict[str, object], message: str
) -> None:
    error = refusal(add_sub_request(1, **fields))
    assert isinstance(error, InvalidRequestError)
    assert str(error) == message


def test_a_wrong_shape_names_both_and_explains_the_batch_dimension() -> None:
    inputs = [tensor("INPUT0", (1, 15)), tensor("INPUT1", (1, 16))]
    message = str(refusal(add_sub_request(inputs=inputs)))
    assert "Expected [-1,16], got [1,15]. NOTE: Setting a non-zero" in message


def test_negative_dimensions_are_refused() -> None:
    inputs = [tensor("INPUT0", (1, -16)), tensor("INPUT1", (1, 16))]
    assert "got [1,-16]" in str(refusal(add_sub_request(inputs=inputs)))
    table = RouteTable.of([route(identity(DataType.FP32))])
    request = Request(
        model_name="identity",
        inputs=[tensor("INPUT0", (1, -1), "FP32")],
        raw_input_contents=[b""],
    )
    assert "got [1,-1]" in str(refusal(request, table))


def test_a_model_that_does_not_batch_takes_its_full_shape() -> None:
    table = RouteTable.of([route(add_sub(max_batch_size=0, dynamic_batching=None))])
    error = refusal(add_sub_request(), table)
    assert str(error) == (
        NO_ID + "unexpected shape for input 'INPUT1' for model 'simple'. Expected "
        "[16], got [1,16]. "
    )


def test_an_optional_input_may_be_left_out_but_not_a_required_one() -> None:
    first, second = add_sub().inputs
    optional = ModelInput(
        name=second.name, datatype=second.datatype, dims=second.dims, optional=True
    )
    table = RouteTable.of([route(add_sub(inputs=(first, optional)))])

    def only(name: str) -> bytes:
        request = add_sub_request(
            inputs=[tensor(name, (1, 16))], raw_input_contents=[bytes(64)]
        )
        return request.SerializeToString()

    assert admit_in_full(only("INPUT0"), table)[0].rows == 1
    with pytest.raises(InvalidRequestError, match=r"missing required input.*INPUT0"):
        admit_in_full(only("INPUT1"), table)


def test_an_unknown_model_is_not_found() -> None:
    error = refusal(add_sub_request(model_name="nope"))
    assert isinstance(error, ModelNotFoundError)
    assert str(error) == "Request for unknown model: 'nope' is not found"


@pytest.mark.parametrize(
    ("datatype", "field", "values", "raw"),
    [
        (DataType.BOOL, "bool_contents", [True, False], b"\x01\x00"),
        (DataType.INT8, "int_contents", [-128, 127], b"\x80\x7f"),
        (DataType.UINT16, "uint_contents", [0, 65535], b"\x00\x00\xff\xff"),
        (DataType.INT64, "int64_contents", [-1], b"\xff" * 8),
        (DataType.UINT64, "uint64_contents", [2**64 - 1], b"\xff" * 8),
        (DataType.FP32, "fp32_contents", [1.0], b"\x00\x00\x80\x3f"),
        (DataType.FP64, "fp64_contents", [1.0], b"\x00\x00\x00\x00\x00\x00\xf0\x3f"),
        (DataType.BYTES, "bytes_contents", [b"a", b""], b"\x01\0\0\0a\0\0\0\0"),
    ],
)
def test_typed_contents_become_raw(
    datatype: DataType, field: str, values: list[object], raw: bytes
) -> None:
    table = RouteTable.of([route(identity(datatype))])
    request = Request(
        model_name="identity",
        inputs=[tensor("INPUT0", (1, len(values)), datatype.value)],
    )
    getattr(request.inputs[0].contents, field).extend(values)
    _, body = admit_in_full(request.SerializeToString(), table)
    normal = Request.FromString(body)
    assert list(normal.raw_input_contents) == [raw]
    assert not normal.inputs[0].HasField("contents")


@pytest.mark.parametrize(
    ("datatype", "field", "values", "message"),
    [
        ("INT8", "int_contents", [128], "value 128 of input tensor 'INPUT0'"),
        ("UINT8", "uint_contents", [256], "value 256 of input tensor 'INPUT0'"),
        ("INT32", "fp32_contents", [1.0], "of type 'FP32', expected datatype 'INT32'"),
        ("FP16", "fp32_contents", [1.0], "can only be sent in raw_input_contents"),
    ],
)
def test_typed_contents_that_do_not_fit_are_refused(
    datatype: str, field: str, values: list[object], message: str
) -> None:
    table = RouteTable.of([route(identity(DataType.from_protocol(datatype)))])
    request = Request(
        model_name="identity", inputs=[tensor("INPUT0", (1, 1), datatype)]
    )
    getattr(request.inputs[0].contents, field).extend(values)
    assert message in str(refusal(request, table))


def test_typed_and_raw_contents_do_not_mix() -> None:
    request = add_sub_request()
    request.inputs[0].contents.int_contents.extend(range(16))
    assert str(refusal(request)) == (
        "contents field must not be specified when using raw_input_contents for "
        "'INPUT0' for model 'simple'"
    )


def test_bytes_tensors_are_looked_at_every_time() -> None:
    table = RouteTable.of([route(identity(DataType.BYTES))])
    request = Request(
        model_name="identity",
        inputs=[tensor("INPUT0", (1, 1), "BYTES")],
        raw_input_contents=[b"\x02\0\0\0ab"],
    )
    admission = Admission(table)
    admission.admit(request.SerializeToString())
    request.raw_input_contents[0] = b"\x09\0\0\0ab"
    with pytest.raises(InvalidRequestError, match="incomplete string data"):
        admission.admit(request.SerializeToString())


def test_a_second_request_with_the_same_header_is_recognised() -> None:
    learned = LearnedHeaders()
    body = add_sub_request(id="a").SerializeToString()
    verdict, _ = admit_in_full(body, TABLE)
    assert learned.learn(body, verdict)
    other = add_sub_request(id="other", raw_input_contents=[b"\1" * 64] * 2)
    assert learned.find(other.SerializeToString()) is verdict


def test_equal_lengths_split_differently_are_not_recognised() -> None:
    admission = Admission(TABLE)
    admission.admit(add_sub_request().SerializeToString())
    moved = add_sub_request(raw_input_contents=[bytes(60), bytes(68)])
    with pytest.raises(InvalidRequestError, match="Expected 64, got 6"):
        admission.admit(moved.SerializeToString())


def test_an_id_that_is_no_text_is_not_recognised() -> None:
    admission = Admission(TABLE)
    body = add_sub_request(id="ab").SerializeToString()
    admission.admit(body)
    with pytest.raises(InternalError):
        admission.admit(body.replace(b"\x1a\x02ab", b"\x1a\x02\xff\xfe"))


def test_a_name_repeated_behind_the_header_is_not_learned() -> None:
    body = add_sub_request().SerializeToString()
    repeated = body + Request(model_name="nope").SerializeToString()
    verdict, _ = admit_in_full(body, TABLE)
    assert not LearnedHeaders().learn(repeated, verdict)


@pytest.mark.parametrize(("length", "is_learned"), [(16_000, True), (16_400, False)])
def test_no_client_has_memory_kept_by_a_long_header(
    length: int, *, is_learned: bool
) -> None:
    note = pb.InferParameter(string_param="x" * length)
    body = add_sub_request(parameters={"note": note}).SerializeToString()
    verdict, _ = admit_in_full(body, TABLE)
    assert LearnedHeaders().learn(body, verdict) is is_learned


def test_what_was_learned_is_forgotten_when_the_routes_change() -> None:
    admission = Admission(TABLE)
    body = add_sub_request().SerializeToString()
    admission.admit(body)
    admission.apply(RouteTable.of([]))
    with pytest.raises(ModelNotFoundError):
        admission.admit(body)


def outcome(admit: object, body: bytes) -> object:
    try:
        verdict, normal = admit(body)  # type: ignore[operator]
    except ServingError as error:
        return type(error), str(error)
    return verdict.rows, verdict.shape_key, verdict.route, normal


requests = st.builds(
    lambda rows, ids, version, sizes, extra: add_sub_request(
        rows=rows,
        id=ids,
        model_version=version,
        raw_input_contents=[bytes(size) for size in sizes],
        parameters={
            name: pb.InferParameter(int64_param=value) for name, value in extra.items()
        },
    ),
    rows=st.integers(0, 9),
    ids=st.sampled_from(["", "a", "b", "longer", "é"]),
    version=st.sampled_from(["", "1", "2"]),
    sizes=st.lists(st.sampled_from([60, 64, 68, 128]), min_size=1, max_size=3),
    extra=st.dictionaries(st.sampled_from(["p", "priority"]), st.integers(0, 2)),
)


@given(
    st.lists(
        st.tuples(requests, st.integers(0, 400), st.integers(-1, 255)), max_size=12
    )
)
def test_the_shortcut_gives_the_verdict_of_the_full_path(
    cases: list[tuple[pb.ModelInferRequest, int, int]],
) -> None:
    admission = Admission(TABLE)
    for request, position, byte in cases:
        body = bytearray(request.SerializeToString())
        if byte >= 0:
            body[position % len(body)] = byte
        for _ in range(2):
            message = bytes(body)
            expected = outcome(lambda b: admit_in_full(b, TABLE), message)
            assert outcome(admission.admit, message) == expected


def test_lengths_that_are_padded_alike_share_a_batch() -> None:
    length_of = LengthOf(name="INPUT0", dim=0)
    config = ModelConfig(
        name="identity",
        max_batch_size=8,
        inputs=tuple(
            ModelInput(name=name, datatype=DataType.FP32, dims=(-1,))
            for name in ("INPUT0", "mask")
        ),
        padding=Padding(
            inputs=(PaddedInput(name="INPUT0", dims=(0,)),),
            buckets=(4, 8),
            mask=GeneratedInput(name="mask", of=length_of),
        ),
    )
    table = RouteTable.of([route(config)])

    def request(name: str, length: int) -> bytes:
        return Request(
            model_name="identity",
            inputs=[tensor(name, (1, length), "FP32")],
            raw_input_contents=[bytes(4 * length)],
        ).SerializeToString()

    keys = [
        admit_in_full(request("INPUT0", length), table)[0].shape_key
        for length in (1, 4, 5, 9)
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    with pytest.raises(InvalidRequestError, match="unexpected inference input 'mask'"):
        admit_in_full(request("mask", 1), table)


def test_of_a_ragged_input_no_shape_counts_but_its_presence() -> None:
    config = ModelConfig(
        name="ragged",
        max_batch_size=8,
        inputs=(
            ModelInput(
                name="X", datatype=DataType.FP32, dims=(-1,), allow_ragged_batch=True
            ),
            ModelInput(name="Y", datatype=DataType.FP32, dims=(-1,)),
            ModelInput(
                name="Z",
                datatype=DataType.FP32,
                dims=(-1,),
                allow_ragged_batch=True,
                optional=True,
            ),
        ),
    )

    def key(**lengths: int) -> object:
        tensors = [
            pb.ModelInferRequest.InferInputTensor(
                name=name, datatype="FP32", shape=[1, length]
            )
            for name, length in lengths.items()
        ]
        return shape_key(tensors, config)

    assert key(X=3, Y=1) == key(X=5, Y=1) == key(Y=1, X=4)
    assert key(X=3, Y=1) != key(X=3, Y=2)
    assert key(X=3, Y=1) != key(X=3, Y=1, Z=1)
    assert key(X=3, Y=1, Z=2) == key(X=3, Y=1, Z=1)
