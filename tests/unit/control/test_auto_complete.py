import pytest
from google.protobuf import text_format

from protos import model_config_pb2 as pb
from services.control.auto_complete import (
    fill_backend,
    fill_defaults,
    fill_tensors,
    needs_inspection,
)
from services.core.model_config import FieldError


def parsed(text: str) -> pb.ModelConfig:
    return text_format.Parse('name: "m" ' + text, pb.ModelConfig())


def backend_of(text: str, *files: str) -> tuple[str, str, str]:
    config = parsed(text)
    fill_backend(config, files)
    return config.backend, config.platform, config.default_model_filename


ONNX = ("onnxruntime", "onnxruntime_onnx", "model.onnx")
PLAN = ("tensorrt", "tensorrt_plan", "model.plan")
PYTHON = ("python", "", "model.py")
TORCH = ("pytorch", "pytorch_libtorch", "model.pt")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["model.onnx"], ONNX),
        (["model.plan"], PLAN),
        (["model.py"], PYTHON),
        (["model.pt"], TORCH),
        (["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
        (["model.xml", "model.bin"], ("openvino", "", "model.xml")),
        (["model.py", "model.onnx", "notes.txt"], ONNX),
        (["model.onnx", "model.plan"], PLAN),
    ],
)
def test_the_files_name_the_backend(
    files: list[str], expected: tuple[str, str, str]
) -> None:
    assert backend_of("", *files) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('platform: "onnxruntime_onnx"', ONNX),
        ('backend: "onnxruntime"', ONNX),
        ('default_model_filename: "model.onnx"', ONNX),
        ('backend: "python"', PYTHON),
        ('backend: "pytorch"', TORCH),
        ('platform: "torch_aoti"', ("pytorch", "torch_aoti", "model.pt2")),
        (
            'backend: "onnxruntime" default_model_filename: "own.onnx"',
            ("onnxruntime", "onnxruntime_onnx", "own.onnx"),
        ),
        ('backend: "mine"', ("mine", "", "")),
        ('platform: "unheard_of"', ("", "unheard_of", "")),
        ('default_model_filename: "own.bin"', ("", "", "own.bin")),
    ],
)
def test_what_is_written_is_stronger_than_the_files(
    text: str, expected: tuple[str, str, str]
) -> None:
    assert backend_of(text, "model.plan") == expected


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ('backend: "pytorch"', ["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
        ('backend: "pytorch"', ["model.pt2", "model.pt"], TORCH),
        (
            'backend: "pytorch" default_model_filename: "own.pt"',
            ["model.pt2"],
            ("pytorch", "pytorch_libtorch", "own.pt"),
        ),
    ],
)
def test_a_backend_with_two_files_takes_the_one_that_is_there(
    text: str, files: list[str], expected: tuple[str, str, str]
) -> None:
    assert backend_of(text, *files) == expected


def test_a_models_name_may_name_its_backend() -> None:
    config = pb.ModelConfig(name="model.identity")
    fill_backend(config, ())
    assert config.backend == "identity"
    assert config.default_model_filename == "model.identity"


def test_without_any_sign_of_a_backend_the_model_is_refused() -> None:
    with pytest.raises(FieldError, match="Could not determine backend for model 'm'"):
        backend_of("", "weights.bin")


@pytest.mark.parametrize("text", ["ensemble_scheduling {}", 'platform: "ensemble"'])
def test_an_ensemble_has_no_backend(text: str) -> None:
    assert backend_of(text, "model.onnx") == ("", "ensemble", "")


INPUT = 'input { name: "x" data_type: TYPE_INT8 dims: 1 }'
OUTPUT = 'output { name: "y" data_type: TYPE_INT8 dims: 1 }'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        (INPUT, True),
        (OUTPUT, True),
        (INPUT + OUTPUT, False),
        ('batch_input { target_name: "b" }' + OUTPUT, False),
    ],
)
def test_only_missing_tensors_are_asked_for(
    text: str,
    expected: bool,
) -> None:
    assert needs_inspection(parsed('backend: "onnxruntime" ' + text)) is expected


def test_a_backend_of_somebody_else_is_asked_too() -> None:
    assert needs_inspection(parsed('backend: "mine"'))
    assert not needs_inspection(parsed('backend: "mine" ' + INPUT + OUTPUT))


@pytest.mark.parametrize("text", ['backend: "openvino"', 'platform: "ensemble"'])
def test_only_files_that_name_their_tensors_are_asked(text: str) -> None:
    assert not needs_inspection(parsed(text))


def test_a_python_model_is_always_asked_since_it_may_complete_anything() -> None:
    assert needs_inspection(parsed('backend: "python" ' + INPUT + OUTPUT))


BATCHED = """
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, -1, 2 ] }
"""
FIXED = """
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1, 2 ] }
"""


def filled(text: str, found: str, default: int = 4) -> pb.ModelConfig:
    config = parsed(text)
    fill_tensors(config, parsed(found), default)
    return config


def test_a_model_that_can_batch_gets_the_default_and_a_batcher() -> None:
    config = filled("", BATCHED)
    assert config.max_batch_size == 4
    assert config.HasField("dynamic_batching")
    assert config.input[0].dims == [4]
    assert config.output[0].dims == [-1, 2]
    assert not config.input[0].HasField("reshape")


@pytest.mark.parametrize(
    ("default", "has_batcher"), [(0, False), (1, False), (2, True)]
)
def test_the_batcher_is_switched_on_above_one_row(
    default: int,
    has_batcher: bool,
) -> None:
    config = filled("", BATCHED, default)
    assert config.max_batch_size == default
    assert config.HasField("dynamic_batching") is has_batcher


@pytest.mark.parametrize(
    ("most", "default", "expected"), [(16, 4, 16), (3, 4, 3), (0, 4, 4), (1, 4, 1)]
)
def test_a_file_that_tells_its_largest_batch_is_believed(
    most: int, default: int, expected: int
) -> None:
    config = filled("", f"{BATCHED} max_batch_size: {most}", default)
    assert config.max_batch_size == expected


def test_variable_dimensions_that_are_no_batch_stay() -> None:
    config = filled("", f"{BATCHED} max_batch_size: -1")
    assert config.max_batch_size == 0
    assert config.input[0].dims == [-1, 4]
    with pytest.raises(FieldError, match="model does not support batching"):
        filled("max_batch_size: 2", f"{BATCHED} max_batch_size: -1")


def test_without_batching_shapes_stay_whole() -> None:
    assert filled("", BATCHED, 0).input[0].dims == [-1, 4]


def test_one_fixed_first_dimension_is_enough_not_to_batch() -> None:
    config = filled("", FIXED)
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert config.input[0].dims == [-1, 4]
    assert config.output[0].dims == [1, 2]


def test_a_written_max_batch_size_is_kept() -> None:
    config = filled("max_batch_size: 16", BATCHED)
    assert config.max_batch_size == 16
    assert config.HasField("dynamic_batching")


def test_a_written_max_batch_size_that_cannot_be_is_refused() -> None:
    with pytest.raises(FieldError, match="model does not support batching") as caught:
        filled("max_batch_size: 2", FIXED)
    assert caught.value.path == ("max_batch_size",)


@pytest.mark.parametrize("scheduler", ["sequence_batching", "dynamic_batching"])
def test_a_written_scheduler_is_kept(scheduler: str) -> None:
    assert filled(f"{scheduler} {{}}", BATCHED).WhichOneof("scheduling_choice") == (
        scheduler
    )


def test_a_written_list_is_kept_whole_and_the_other_is_filled() -> None:
    config = filled(INPUT, BATCHED)
    assert [list(tensor.dims) for tensor in config.input] == [[1]]
    assert [list(tensor.dims) for tensor in config.output] == [[-1, 2]]
    config = filled(OUTPUT, BATCHED)
    assert [list(tensor.dims) for tensor in config.input] == [[4]]
    assert [list(tensor.dims) for tensor in config.output] == [[1]]


def test_one_value_a_row_is_a_shape_of_one_for_clients() -> None:
    scalars = BATCHED.replace("[ -1, 4 ]", "-1")
    tensor = filled("", scalars).input[0]
    assert tensor.dims == [1]
    assert tensor.HasField("reshape")
    assert tensor.reshape.shape == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dynamic_batching {}", [8]),
        ("dynamic_batching { preferred_batch_size: 2 }", [2]),
    ],
)
def test_the_preferred_batch_is_the_largest(text: str, expected: list[int]) -> None:
    config = parsed("max_batch_size: 8 " + text)
    fill_defaults(config)
    assert config.dynamic_batching.preferred_batch_size == expected


def test_nothing_is_preferred_without_batches() -> None:
    config = parsed("dynamic_batching {}")
    fill_defaults(config)
    assert config.dynamic_batching.preferred_batch_size == []


def test_sequences_get_their_defaults() -> None:
    config = parsed("max_batch_size: 8 sequence_batching { oldest {} }")
    fill_defaults(config)
    assert config.sequence_batching.max_sequence_idle_microseconds == 1_000_000
    assert config.sequence_batching.oldest.preferred_batch_size == [8]


def test_defaults_do_not_touch_what_is_written() -> None:
    text = """
    version_policy { all {} } max_batch_size: 8
    sequence_batching { direct {} max_sequence_idle_microseconds: 7 }
    optimization { input_pinned_memory {} output_pinned_memory {} }
    """
    config = parsed(text)
    fill_defaults(config)
    assert config == parsed(text)


def test_an_ensemble_has_a_transaction_policy_and_no_optimization() -> None:
    config = parsed("ensemble_scheduling {}")
    fill_defaults(config)
    assert config.HasField("model_transaction_policy")
    assert not config.HasField("optimization")
    assert config.version_policy.latest.num_versions == 1


def test_what_a_sequence_declares_on_its_own_is_no_input_and_no_output() -> None:
    text = """sequence_batching {
      control_input { name: "START" control { bool_false_true: [ false, true ] } }
      state { input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: 1 }
    }"""
    found = "".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [ -1, 1 ] }}'
        for kind, name in [
            ("input", "x"),
            ("input", "START"),
            ("input", "s"),
            ("output", "y"),
            ("output", "t"),
        ]
    )
    config = filled(text, found)
    assert [tensor.name for tensor in config.input] == ["x"]
    assert [tensor.name for tensor in config.output] == ["y"]
