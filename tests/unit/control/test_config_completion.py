import pytest
from google.protobuf import text_format

from protos import model_config_pb2 as pb
from services.control.config_completion import Completed, begin, finish
from services.control.config_pbtxt import absent, parse
from services.core.errors import ConfigError
from services.core.model_config import DynamicBatching, InstanceKind

ADD_SUB = text_format.Parse(
    """
    input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1, 16 ] }
    input { name: "INPUT1" data_type: TYPE_INT32 dims: [ -1, 16 ] }
    output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1, 16 ] }
    output { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ -1, 16 ] }
    """,
    pb.ModelConfig(),
)

# What the real Triton 2.51 answers for the same model without a config.pbtxt.
AUTOCONF = """
name: "autoconf" platform: "onnxruntime_onnx" backend: "onnxruntime"
version_policy { latest { num_versions: 1 } }
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: 16 }
input { name: "INPUT1" data_type: TYPE_INT32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 16 }
output { name: "OUTPUT1" data_type: TYPE_INT32 dims: 16 }
optimization {
  input_pinned_memory { enable: true } output_pinned_memory { enable: true }
}
dynamic_batching { preferred_batch_size: 4 }
instance_group { name: "autoconf" kind: KIND_CPU count: 2 }
default_model_filename: "model.onnx"
"""


TENSORS = """
input { name: "x" data_type: TYPE_INT32 dims: 16 }
output { name: "y" data_type: TYPE_INT32 dims: 16 }
"""


def completed(
    text: str | None,
    *,
    directory: str = "m",
    gpus: tuple[int, ...] = (),
    files: tuple[str, ...] = ("model.onnx",),
) -> Completed:
    written = absent() if text is None else parse(text)
    draft = begin(written, directory=directory, versions={1: files})
    found = ADD_SUB if draft.needs_inspection else None
    return finish(draft, found=found, gpus=gpus)


def test_a_model_without_a_configuration_is_completed_as_triton_does() -> None:
    answer = completed(None, directory="autoconf")
    assert answer.message == parse(AUTOCONF).message
    assert answer.config.dynamic_batching == DynamicBatching(preferred_batch_sizes=(4,))
    assert answer.config.instance_groups[0].kind is InstanceKind.CPU
    assert answer.versions == (1,)


def test_completing_a_completed_configuration_changes_nothing() -> None:
    assert completed(AUTOCONF, directory="autoconf").message == parse(AUTOCONF).message


def test_a_full_configuration_needs_no_inspection() -> None:
    draft = begin(
        parse(TENSORS), directory="m", versions={1: ["model.onnx"], 2: ["model.onnx"]}
    )
    assert not draft.needs_inspection
    assert (draft.backend, draft.versions, draft.inspected_version) == (
        "onnxruntime",
        (2,),
        2,
    )


def test_without_auto_completion_no_file_is_asked() -> None:
    draft = begin(
        parse(""),
        directory="m",
        versions={1: ["model.onnx"]},
        auto_complete_enabled=False,
    )
    assert draft.backend == "onnxruntime"
    assert not draft.needs_inspection


def test_the_files_of_the_newest_served_version_count() -> None:
    written = parse("version_policy { specific { versions: 1 } }" + TENSORS)
    versions = {1: ["model.py"], 2: ["model.onnx"]}
    assert begin(written, directory="m", versions=versions).backend == "python"


def test_gpus_are_used_where_they_are() -> None:
    assert completed(TENSORS, gpus=(0, 1)).config.instance_groups[0].gpus == (0, 1)


def test_the_written_message_is_not_changed() -> None:
    written = parse(TENSORS)
    draft = begin(written, directory="m", versions={1: ["model.onnx"]})
    before = draft.config.SerializeToString(deterministic=True)
    finish(draft, found=None, gpus=(0,))
    assert written.message == parse(TENSORS).message
    assert draft.config.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'name: "other"',
            (
                "config.pbtxt:1:1: name: unexpected directory name 'm' for model "
                "'other', directory name must equal model name"
            ),
        ),
        (
            "max_batch_size: 4\ndynamic_batching {\n  preferred_batch_size: [ 4, 8 ]}",
            (
                "config.pbtxt:3:27: dynamic_batching.preferred_batch_size: dynamic "
                "batching preferred batch size must be <= max batch size; got 8 with "
                "max_batch_size 4"
            ),
        ),
        (
            "input {\n  name: 'x'\n  data_type: TYPE_INT8\n  dims: [ 2, 0 ]\n}",
            (
                "config.pbtxt:4:14: input[0].dims[1]: a dimension must be at least 1, "
                "or -1 if it is variable; got 0"
            ),
        ),
        (
            "\ninput {\n  name: 'x'\n  data_type: TYPE_INT8\n}",
            "config.pbtxt:2:1: input[0].dims: 'x' must specify 'dims'",
        ),
        (
            "instance_group [\n  { kind: KIND_CPU\n    gpus: [ 0 ] }\n]",
            (
                "config.pbtxt:3:13: instance_group[0].gpus: instance group has kind "
                "KIND_CPU but specifies one or more GPUs"
            ),
        ),
        (
            "platform: 'tensorrt_plan'\nbackend: 'onnxruntime'",
            (
                "config.pbtxt:1:1: platform: unexpected 'platform' and 'backend' pair, "
                "got:tensorrt_plan, onnxruntime"
            ),
        ),
        (
            "default_model_filename: 'weights'",
            ("config.pbtxt: backend: must specify 'platform' or 'backend' for 'm'"),
        ),
    ],
)
def test_a_contradiction_names_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        completed(text)
    assert str(caught.value) == message


def test_a_batch_size_the_model_cannot_have_names_its_line() -> None:
    draft = begin(
        parse("\nmax_batch_size: 2"), directory="m", versions={1: ["model.onnx"]}
    )
    found = text_format.Parse(TENSORS, pb.ModelConfig())
    with pytest.raises(ConfigError) as caught:
        finish(draft, found=found, gpus=())
    assert str(caught.value) == (
        "config.pbtxt:2:1: max_batch_size: autofill failed for model 'm': model does "
        "not support batching while non-zero max_batch_size is specified"
    )


def test_no_version_is_an_error_in_tritons_words() -> None:
    with pytest.raises(ConfigError) as caught:
        begin(parse(TENSORS), directory="bad_noversion", versions={})
    assert str(caught.value) == (
        "at least one version must be available under the version policy of model "
        "'bad_noversion'"
    )
