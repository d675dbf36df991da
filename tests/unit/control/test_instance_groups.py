import pytest

from protos import model_config_pb2 as pb
from services.control.config_pbtxt import parse
from services.control.instance_groups import depends_on_devices, normalise

GPU, CPU, MODEL = (
    pb.ModelInstanceGroup.KIND_GPU,
    pb.ModelInstanceGroup.KIND_CPU,
    pb.ModelInstanceGroup.KIND_MODEL,
)


def normalised(
    text: str, gpus: tuple[int, ...] = (), backend: str = "onnxruntime"
) -> list[tuple[str, int, int, list[int]]]:
    config = parse(f'name: "m" backend: "{backend}" {text}').message
    return [
        (group.name, group.kind, group.count, list(group.gpus))
        for group in normalise(config, gpus).instance_group
    ]


def test_without_groups_there_is_one_with_the_models_own_name() -> None:
    assert normalised("") == [("m", CPU, 2, [])]
    assert normalised("", gpus=(1, 0)) == [("m", GPU, 1, [0, 1])]


def test_written_groups_are_numbered_and_names_are_kept() -> None:
    text = 'instance_group [ { count: 3 }, { name: "own" }, {} ]'
    assert [name for name, *_ in normalised(text)] == ["m_0", "own", "m_2"]


@pytest.mark.parametrize(
    ("backend", "count"), [("onnxruntime", 2), ("python", 1), ("pytorch", 1)]
)
def test_a_cpu_group_without_a_count_has_what_suits_its_backend(
    backend: str, count: int
) -> None:
    text = "instance_group { kind: KIND_CPU }"
    assert normalised(text, backend=backend) == [("m_0", CPU, count, [])]


def test_python_models_stay_on_the_cpu_unless_told_otherwise() -> None:
    assert normalised("", gpus=(0,), backend="python") == [("m", CPU, 1, [])]
    groups = normalised("instance_group {}", gpus=(0,), backend="python")
    assert groups == [("m_0", GPU, 1, [0])]


@pytest.mark.parametrize(
    ("gpus", "kind", "listed"),
    [((), CPU, []), ((0,), CPU, []), ((0, 2), GPU, [2]), ((2,), GPU, [2])],
)
def test_auto_is_gpu_only_if_all_listed_gpus_are_there(
    gpus: tuple[int, ...], kind: int, listed: list[int]
) -> None:
    text = "instance_group { gpus: 2 count: 1 }"
    assert normalised(text, gpus=gpus) == [("m_0", kind, 1, listed)]


def test_a_gpu_group_keeps_its_list_and_gets_all_gpus_without_one() -> None:
    text = "instance_group [ { kind: KIND_GPU gpus: 7 }, { kind: KIND_GPU } ]"
    assert normalised(text, gpus=(3, 1)) == [
        ("m_0", GPU, 1, [7]),
        ("m_1", GPU, 1, [1, 3]),
    ]


def test_a_gpu_group_without_gpus_is_left_to_the_placement() -> None:
    text = "instance_group { kind: KIND_GPU }"
    assert normalised(text) == [("m_0", GPU, 1, [])]


def test_a_model_group_counts_one() -> None:
    text = "instance_group { kind: KIND_MODEL }"
    assert normalised(text, gpus=(0,)) == [("m_0", MODEL, 1, [])]


def test_an_ensemble_has_no_groups() -> None:
    assert normalised("ensemble_scheduling {}", gpus=(0,)) == []


def test_the_given_configuration_is_not_changed() -> None:
    config = parse('name: "m" instance_group {}').message
    before = config.SerializeToString(deterministic=True)
    normalise(config, ())
    assert config.SerializeToString(deterministic=True) == before


def test_normalising_twice_changes_nothing() -> None:
    config = parse('name: "m" backend: "onnxruntime" instance_group [ {}, {} ]')
    once = normalise(config.message, (0,))
    assert normalise(once, (0,)) == once


@pytest.mark.parametrize(
    ("text", "backend", "expected"),
    [
        ("", "onnxruntime", True),
        ("", "python", False),
        ("instance_group {}", "python", True),
        ("instance_group { kind: KIND_GPU }", "onnxruntime", True),
        ("instance_group { kind: KIND_GPU gpus: 0 }", "onnxruntime", False),
        ("instance_group { kind: KIND_CPU }", "onnxruntime", False),
        ("ensemble_scheduling {}", "", False),
    ],
)
def test_it_is_known_whether_devices_matter(
    text: str,
    backend: str,
    expected: bool,
) -> None:
    config = parse(f'name: "m" backend: "{backend}" {text}').message
    assert depends_on_devices(config) is expected
    without, with_gpus = normalise(config, ()), normalise(config, (0, 1))
    assert (without != with_gpus) is expected
