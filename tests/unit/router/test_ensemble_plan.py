"""The graph of an ensemble and one request's way through it."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from services.core.model_config import EnsembleStep
from services.router.ensemble_plan import EnsemblePlan, Move, Progress, plan_of
from tests.unit.router.ensembles import DIAMOND, ensemble, step


def progress(plan: EnsemblePlan, *given_names: str) -> tuple[Progress[str], Move]:
    under_way: Progress[str] = Progress(plan)
    return under_way, under_way.begin({name: name for name in given_names})


def test_a_diamond_runs_its_branches_side_by_side() -> None:
    under_way, first = progress(plan_of(DIAMOND), "A")
    assert first == Move(run=(3,))
    branches = under_way.answered(3, {"OUTPUT0": "t"})
    assert sorted(branches.run) == [1, 2]
    assert under_way.answered(2, {"OUTPUT0": "l"}) == Move()
    assert under_way.answered(1, {"OUTPUT0": "r"}) == Move(run=(0,))
    assert under_way.tensors["L"] == "l"
    assert under_way.answered(0, {"OUTPUT0": "z"}) == Move(is_done=True)
    assert under_way.tensors["Z"] == "z"


def test_a_step_that_reads_one_tensor_twice_runs_once() -> None:
    config = ensemble(
        step("a", {"INPUT0": "A"}, {"OUTPUT0": "B"}),
        step("b", {"INPUT0": "B", "INPUT1": "B"}, {"OUTPUT0": "Z"}),
    )
    under_way, _ = progress(plan_of(config), "A")
    assert under_way.answered(0, {"OUTPUT0": "b"}).run == (1,)


def test_a_step_that_reads_two_tensors_of_one_other_runs_once() -> None:
    config = ensemble(
        step("a", {"INPUT0": "A"}, {"OUTPUT0": "B", "OUTPUT1": "C"}),
        step("b", {"INPUT0": "B", "INPUT1": "C"}, {"OUTPUT0": "Z"}),
    )
    under_way, _ = progress(plan_of(config), "A")
    outputs = {"OUTPUT0": "b", "OUTPUT1": "c"}
    assert under_way.answered(0, outputs) == Move(run=(1,))


def test_an_optional_input_that_is_left_out_is_waited_for_by_nobody() -> None:
    config = ensemble(
        step("a", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "Z"}),
        inputs="AB",
        optional="B",
    )
    under_way, first = progress(plan_of(config), "A")
    assert first == Move(run=(0,))
    assert "B" not in under_way.tensors


def test_only_the_steps_that_lead_to_the_wanted_outputs_run() -> None:
    config = ensemble(
        step("a", {"INPUT0": "A"}, {"OUTPUT0": "Y", "OUTPUT1": "M"}),
        step("b", {"INPUT0": "M"}, {"OUTPUT0": "Z"}),
        outputs="YZ",
    )
    plan = plan_of(config).narrowed({"Y"})
    assert list(plan.steps) == [0]
    assert plan.steps[0].outputs == (("OUTPUT0", "Y"),)
    assert plan.results == ("Y",)
    under_way, _ = progress(plan, "A")
    assert under_way.answered(0, {"OUTPUT0": "y"}) == Move(is_done=True)


def test_an_output_that_a_model_does_not_return_is_named() -> None:
    under_way, _ = progress(plan_of(DIAMOND), "A")
    assert under_way.answered(3, {}).problem == (
        "in ensemble 'ens', model 'top' returned no output 'OUTPUT0'"
    )


def test_a_step_that_names_a_version_calls_that_version() -> None:
    config = ensemble(step("a", {"INPUT0": "A"}, {"OUTPUT0": "Z"}, version=3))
    assert [each.version for each in plan_of(config).steps.values()] == ["3"]
    assert {each.version for each in plan_of(DIAMOND).steps.values()} == {""}


@st.composite
def graphs(draw: st.DrawFn) -> list[EnsembleStep]:
    """Draw an acyclic graph: step i reads inputs and what earlier steps wrote."""
    count = draw(st.integers(1, 8))
    steps, tensors = [], ["A"]
    for i in range(count):
        reads = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
        if i:
            reads[0] = tensors[-1]
        inputs = {f"I{k}": tensor for k, tensor in enumerate(reads)}
        written = "Z" if i == count - 1 else f"t{i}"
        steps.append(step(f"m{i}", inputs, {"O": written}))
        tensors.append(written)
    return draw(st.permutations(steps))


@given(graphs(), st.randoms(use_true_random=False))
def test_every_step_runs_once_after_all_it_reads_in_any_order_of_answers(
    steps: list[EnsembleStep], chance: Random
) -> None:
    under_way, move = progress(plan_of(ensemble(*steps)), "A")
    running, ran = list(move.run), list(move.run)
    while not move.is_done:
        assert running, "nothing runs, and it is not done"
        i = running.pop(chance.randrange(len(running)))
        for tensor in steps[i].input_map.values():
            assert tensor in under_way.tensors
        move = under_way.answered(i, {"O": steps[i].output_map["O"]})
        running += move.run
        ran += move.run
    assert sorted(ran) == sorted(set(ran))
    assert not running
    assert under_way.tensors["Z"] == "Z"
