import random

from hypothesis import given
from hypothesis import strategies as st

from services.control.model_registry import DeviceKind, PlacedInstance, Worker
from services.control.placement import Placed, gpus_of, place
from services.core.model_config import InstanceGroup, InstanceKind

CPU, GPU, MODEL = InstanceKind.CPU, InstanceKind.GPU, InstanceKind.MODEL


def cpu(worker_id: str, *, backend: str = "b", host: str = "") -> Worker:
    return Worker(worker_id=worker_id, host=host, backends=frozenset({backend}))


def gpu(worker_id: str, index: int, *, host: str = "") -> Worker:
    return Worker(
        worker_id=worker_id,
        host=host,
        device=DeviceKind.GPU,
        device_index=index,
        backends=frozenset({"b"}),
    )


def group(
    kind: InstanceKind, count: int, *gpus: int, name: str = "m_0"
) -> InstanceGroup:
    return InstanceGroup(name=name, kind=kind, count=count, gpus=gpus)


def placed(
    *groups: InstanceGroup,
    workers: list[Worker],
    load: dict[str, int] | None = None,
) -> Placed:
    return place(
        model="m", backend="b", groups=groups, workers=workers, load=load or {}
    )


def names(answer: Placed) -> dict[str, list[str]]:
    return {
        worker_id: [each.name for each in instances]
        for worker_id, instances in answer.instances.items()
    }


def test_cpu_instances_are_spread_over_the_cpu_workers() -> None:
    answer = placed(group(CPU, 3), workers=[gpu("g", 0), cpu("w2"), cpu("w1")])
    assert names(answer) == {"w1": ["m_0_0", "m_0_2"], "w2": ["m_0_1"]}
    assert answer.problems == ()


def test_the_least_loaded_worker_is_next() -> None:
    workers = [cpu("w1"), cpu("w2")]
    answer = placed(group(CPU, 3), workers=workers, load={"w1": 2})
    assert names(answer) == {"w2": ["m_0_0", "m_0_1"], "w1": ["m_0_2"]}


def test_groups_know_of_each_other_and_of_their_number() -> None:
    answer = placed(
        group(CPU, 1, name="a"),
        group(CPU, 1, name="b"),
        workers=[cpu("w1"), cpu("w2")],
    )
    assert answer.instances == {
        "w1": (PlacedInstance(name="a_0", group=0),),
        "w2": (PlacedInstance(name="b_0", group=1),),
    }


def test_a_gpu_group_has_its_count_on_each_listed_gpu() -> None:
    workers = [gpu("g0", 0), gpu("g1", 1), gpu("g2", 2), cpu("w")]
    answer = placed(group(GPU, 2, 2, 0), workers=workers)
    assert names(answer) == {"g2": ["m_0_0", "m_0_1"], "g0": ["m_0_2", "m_0_3"]}


def test_a_gpu_group_without_a_list_is_on_every_gpu() -> None:
    answer = placed(group(GPU, 1), workers=[gpu("g0", 0), gpu("g3", 3)])
    assert names(answer) == {"g0": ["m_0_0"], "g3": ["m_0_3"]}


def test_a_second_host_doubles_a_gpu_group() -> None:
    workers = [gpu("a0", 0, host="a"), gpu("b0", 0, host="b")]
    answer = placed(group(GPU, 1, 0), workers=workers)
    assert names(answer) == {"a0": ["m_0_0@a"], "b0": ["m_0_0@b"]}


def test_a_gpu_with_two_workers_serves_its_instances_once() -> None:
    workers = [gpu("new", 0, host="a"), gpu("old", 0, host="a")]
    answer = placed(group(GPU, 1, 0), workers=workers, load={"new": 1})
    assert names(answer) == {"old": ["m_0_0@a"]}


def test_a_listed_gpu_without_a_worker_is_left_out() -> None:
    answer = placed(group(GPU, 1, 0, 1), workers=[gpu("g1", 1)])
    assert names(answer) == {"g1": ["m_0_1"]}
    assert answer.problems == ()


def test_a_model_group_prefers_gpu_workers() -> None:
    workers = [cpu("a"), gpu("g", 0)]
    assert names(placed(group(MODEL, 1), workers=workers)) == {"g": ["m_0_0"]}
    assert names(placed(group(MODEL, 1), workers=workers[:1])) == {"a": ["m_0_0"]}


def test_a_cpu_group_runs_beside_a_gpu_if_there_is_nothing_else() -> None:
    assert names(placed(group(CPU, 1), workers=[gpu("g", 0)])) == {"g": ["m_0_0"]}


def test_gpu_instances_without_a_gpu_are_refused_in_tritons_words() -> None:
    answer = placed(group(GPU, 1, name="m_0"), workers=[cpu("w")])
    assert answer == Placed(
        instances={},
        problems=(
            (
                "instance group m_0 of model m has kind KIND_GPU but no GPUs are "
                "available"
            ),
        ),
    )


def test_a_gpu_that_does_not_exist_is_named() -> None:
    answer = placed(group(GPU, 1, 7), workers=[gpu("g", 0)])
    assert answer.problems == (
        (
            "instance group m_0 of model m specifies invalid or unsupported gpu id 7. "
            "Available GPUs are: 0"
        ),
    )


def test_one_group_without_a_place_does_not_keep_the_others_from_theirs() -> None:
    answer = placed(group(GPU, 1), group(CPU, 1, name="m_1"), workers=[cpu("w")])
    assert names(answer) == {"w": ["m_1_0"]}
    assert len(answer.problems) == 1


def test_a_backend_that_no_worker_has_is_refused_in_tritons_words() -> None:
    answer = placed(group(CPU, 1), workers=[cpu("w", backend="other")])
    assert answer.instances == {}
    assert answer.problems == (
        (
            "unable to find backend library for backend 'b', try specifying runtime on "
            "the model configuration."
        ),
    )


def test_an_ensemble_needs_no_place() -> None:
    assert placed(workers=[]) == Placed(instances={})


def test_an_unresolved_kind_is_a_problem() -> None:
    answer = placed(group(InstanceKind.AUTO, 1), workers=[cpu("w")])
    assert answer.problems == (
        "instance group m_0 of model m has unexpected kind KIND_AUTO",
    )


def test_gpus_are_those_whose_workers_have_the_backend() -> None:
    workers = [gpu("a", 3), gpu("b", 1), cpu("c")]
    assert gpus_of(workers, "b") == {1, 3}
    assert gpus_of(workers, "other") == set()


WORKERS = [
    *(cpu(f"c{i}") for i in range(3)),
    *(gpu(f"g{i}{host}", i, host=host) for i in range(3) for host in "xy"),
]
worker_sets = st.lists(st.sampled_from(WORKERS), unique=True, min_size=1)
group_lists = st.lists(
    st.tuples(
        st.sampled_from([CPU, GPU, MODEL]),
        st.integers(1, 4),
        st.sets(st.integers(0, 2)),
    ),
    max_size=3,
).map(
    lambda specs: [
        group(kind, count, *(gpus if kind is GPU else ()), name=f"m_{i}")
        for i, (kind, count, gpus) in enumerate(specs)
    ]
)


@given(workers=worker_sets, groups=group_lists, seed=st.integers(0, 9))
def test_the_order_of_the_workers_does_not_matter(
    workers: list[Worker], groups: list[InstanceGroup], seed: int
) -> None:
    shuffled = random.Random(seed).sample(workers, len(workers))  # noqa: S311
    assert placed(*groups, workers=shuffled) == placed(*groups, workers=workers)


@given(workers=worker_sets, groups=group_lists)
def test_no_name_is_given_twice_and_every_group_is_placed_or_a_problem(
    workers: list[Worker], groups: list[InstanceGroup]
) -> None:
    answer = placed(*groups, workers=workers)
    instances = [each for places in answer.instances.values() for each in places]
    assert len({each.name for each in instances}) == len(instances)
    assert len({each.group for each in instances}) + len(answer.problems) == len(groups)


@given(few=worker_sets, more=worker_sets, groups=group_lists)
def test_names_do_not_depend_on_who_else_is_there(
    few: list[Worker], more: list[Worker], groups: list[InstanceGroup]
) -> None:
    def all_names(workers: list[Worker]) -> set[str]:
        answer = placed(*groups, workers=workers)
        return {each.name for places in answer.instances.values() for each in places}

    both = [*few, *(worker for worker in more if worker not in few)]
    assert all_names(few) <= all_names(both)


@given(
    count=st.integers(1, 20),
    workers=st.lists(st.sampled_from(WORKERS[:3]), unique=True, min_size=1),
)
def test_cpu_workers_differ_by_one_instance_at_most(
    count: int, workers: list[Worker]
) -> None:
    answer = placed(group(CPU, count), workers=workers)
    counts = [len(answer.instances.get(each.worker_id, ())) for each in workers]
    assert sum(counts) == count
    assert max(counts) - min(counts) <= 1


def test_a_backend_of_ours_that_nobody_has_says_what_it_takes() -> None:
    (problem,) = place(
        model="m",
        backend="tensorrt",
        groups=[InstanceGroup(name="m_0", kind=InstanceKind.GPU, count=1)],
        workers=[],
    ).problems
    assert problem.startswith("unable to find backend library for backend 'tensorrt',")
    assert "it takes a GPU, and nereid with the extra 'tensorrt'." in problem
