"""Ensembles with decoupled steps: strands, their order, and their end."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import UnsupportedError
from services.router.ensemble_plan import plan_of
from services.router.ensemble_strands import Layers, Strand, Strands, Turn, layers_of
from tests.unit.router.ensembles import ensemble, step

# Step 0 streams; 1 follows from it, 2 from nothing, 3 from both.
MIXED = ensemble(
    step("stream", {"I": "A"}, {"O": "S"}),
    step("each", {"I": "S"}, {"O": "E"}),
    step("once", {"I": "A"}, {"O": "N"}),
    step("both", {"I": "E", "J": "N"}, {"O": "Z"}),
)
# Step 1 streams what step 0 streams.
TWICE = ensemble(
    step("outer", {"I": "A"}, {"O": "S"}),
    step("inner", {"I": "S"}, {"O": "T"}),
    step("each", {"I": "T", "J": "S"}, {"O": "Z"}),
)


class World:
    """Runs strands; models return what they read, joined, and how often asked."""

    def __init__(self, layers: Layers, responses: int) -> None:
        self.layers = layers
        self.responses = responses
        self.strands: Strands[str] = Strands(layers)
        self.open: list[tuple[Strand[str], int, int]] = []
        self.ran: list[int] = []
        self.answers: list[str] = []
        self.done = 0
        self.take(self.strands.begin({"A": "a"}))

    def take(self, turn: Turn[str]) -> None:
        self.answers += [str(strand.find("Z")) for strand in turn.answers]
        self.done += turn.is_done
        self.open += [(strand, i, 0) for strand, i in turn.run]
        self.ran += [i for _, i in turn.run]

    def go_on(self, index: int) -> None:
        strand, i, count = self.open.pop(index)
        planned = self.layers.plan.steps[i]
        value = "+".join(str(strand.find(tensor)) for _, tensor in planned.inputs)
        if i not in self.layers.decoupled:
            self.take(self.strands.answered(strand, i, {"O": value}))
        elif count == self.responses:
            self.take(self.strands.ended(strand))
        else:
            self.open.insert(index, (strand, i, count + 1))
            self.take(self.strands.responded(strand, i, {"O": f"{value}{count}"}))


@pytest.mark.parametrize("responses", [0, 1, 3])
@given(chance=st.randoms(use_true_random=False))
def test_each_response_gives_one_in_order_and_the_rest_runs_once(
    responses: int, chance: Random
) -> None:
    world = World(layers_of(plan_of(MIXED), {0}), responses)
    while not world.done:
        world.go_on(chance.randrange(len(world.open)))
    assert world.answers == [f"a{i}+a" for i in range(responses)]
    assert world.ran.count(0) == 1
    assert world.ran.count(2) == 1
    assert world.ran.count(1) == world.ran.count(3) == responses
    assert world.done == 1


@pytest.mark.parametrize("responses", [0, 1, 3])
@given(chance=st.randoms(use_true_random=False))
def test_responses_to_responses_come_in_the_order_of_both(
    responses: int, chance: Random
) -> None:
    world = World(layers_of(plan_of(TWICE), {0, 1}), responses)
    while not world.done:
        world.go_on(chance.randrange(len(world.open)))
    numbers = range(responses)
    assert world.answers == [f"a{i}{j}+a{i}" for i in numbers for j in numbers]


def test_a_response_does_not_wait_for_the_end_of_the_stream() -> None:
    world = World(layers_of(plan_of(MIXED), {0}), responses=9)
    for model in (0, 2, 1, 3):
        steps = [i for _, i, _ in world.open]
        world.go_on(steps.index(model))
    assert world.answers == ["a0+a"]
    assert not world.done


def test_a_step_behind_two_streams_is_refused() -> None:
    config = ensemble(
        step("one", {"I": "A"}, {"O": "S"}),
        step("two", {"I": "A"}, {"O": "T"}),
        step("both", {"I": "S", "J": "T"}, {"O": "Z"}),
    )
    with pytest.raises(UnsupportedError, match="step of model 'two': two decoupled"):
        layers_of(plan_of(config), {0, 1})


def test_results_of_two_streams_are_refused() -> None:
    config = ensemble(
        step("one", {"I": "A"}, {"O": "Y"}),
        step("two", {"I": "A"}, {"O": "Z"}),
        outputs="YZ",
    )
    plan = plan_of(config)
    with pytest.raises(UnsupportedError, match="two decoupled steps"):
        layers_of(plan, {0, 1})
    assert layers_of(plan.narrowed({"Y"}), {0, 1}).decoupled == (0,)


def test_an_output_that_a_model_does_not_return_is_named() -> None:
    strands: Strands[str] = Strands(layers_of(plan_of(MIXED), {0}))
    (strand, _), *_ = strands.begin({"A": "a"}).run
    with pytest.raises(LookupError) as caught:
        strands.responded(strand, 0, {})
    assert caught.value.args == ("O",)
