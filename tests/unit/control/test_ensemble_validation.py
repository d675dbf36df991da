import pytest

from services.control.config_pbtxt import parse
from services.control.ensemble_validation import require_ensemble, require_members
from services.core.errors import ConfigError
from services.core.model_config import FieldError, ModelConfig
from services.core.model_config_proto import from_proto


def ensemble(*steps: str, extra: str = "") -> ModelConfig:
    text = (
        'name: "e" platform: "ensemble" max_batch_size: 8'
        ' input { name: "A" data_type: TYPE_INT8 dims: 1 }'
        ' output { name: "C" data_type: TYPE_INT8 dims: 1 }'
        f" ensemble_scheduling {{ {' '.join(steps)} }} {extra}"
    )
    return from_proto(parse(text).message)


def step(model: str, reads: str, writes: str) -> str:
    ins = " ".join(f'input_map {{ key: "{t}_in" value: "{t}" }}' for t in reads)
    outs = " ".join(f'output_map {{ key: "{t}_out" value: "{t}" }}' for t in writes)
    return f'step {{ model_name: "{model}" model_version: -1 {ins} {outs} }}'


@pytest.mark.parametrize(
    "steps",
    [
        [step("a", "A", "C")],
        [step("a", "A", "B"), step("b", "AB", "C")],
        [step("b", "AB", "C"), step("a", "A", "B")],
        [step("a", "A", "BD"), step("b", "BD", "C")],
    ],
)
def test_a_graph_from_inputs_to_outputs_is_accepted(steps: list[str]) -> None:
    require_ensemble(ensemble(*steps))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [step("a", "B", "C")],
            "input[0]: ensemble input 'A' for ensemble e is not used",
        ),
        (
            [step("a", "A", "B"), step("b", "B", "D")],
            (
                "ensemble_scheduling.step[1].output_map.D_out: ensemble tensor 'D' is "
                "unused in ensemble 'e'"
            ),
        ),
        (
            [step("a", "A", "C"), step("b", "A", "C")],
            (
                "ensemble_scheduling.step[1].output_map.C_out: ensemble tensor 'C' is "
                "written more than once in ensemble 'e'"
            ),
        ),
        (
            [step("a", "A", "AC")],
            (
                "ensemble_scheduling.step[0].output_map.A_out: ensemble tensor 'A' is "
                "written more than once in ensemble 'e'"
            ),
        ),
        (
            [step("a", "AD", "C")],
            (
                "ensemble_scheduling.step[0].input_map.D_in: ensemble tensor 'D' is "
                "not connected in ensemble 'e'"
            ),
        ),
        (
            [step("a", "AD", "B"), step("b", "B", "CD")],
            (
                "ensemble_scheduling.step[0].input_map.D_in: ensemble tensor 'D' is "
                "not connected in ensemble 'e'"
            ),
        ),
        (
            [step("a", "A", "B"), step("b", "B", "D"), step("c", "D", "E")],
            (
                "ensemble_scheduling.step[2].output_map.E_out: ensemble tensor 'E' is "
                "unused in ensemble 'e'"
            ),
        ),
        (
            [step("a", "A", "B"), step("b", "B", "D"), step("c", "DE", "E")],
            (
                "ensemble_scheduling.step[2].input_map.E_in: ensemble tensor 'E' is "
                "not connected in ensemble 'e'"
            ),
        ),
    ],
)
def test_a_broken_graph_names_the_tensor(steps: list[str], message: str) -> None:
    with pytest.raises(FieldError) as caught:
        require_ensemble(ensemble(*steps))
    assert str(caught.value) == message


def test_an_output_nobody_writes_is_refused() -> None:
    extra = 'output { name: "F" data_type: TYPE_INT8 dims: 1 }'
    with pytest.raises(FieldError, match="output 'F' for ensemble 'e' is not written"):
        require_ensemble(ensemble(step("a", "A", "C"), extra=extra))


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ("instance_group {}", "instance_group"),
        ("optimization { eager_batching: true }", "optimization"),
        ('model_warmup { name: "w" }', "model_warmup"),
    ],
)
def test_an_ensemble_has_nothing_that_executes(extra: str, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        require_ensemble(ensemble(step("a", "A", "C"), extra=extra))
    assert caught.value.path == (field,)


def member_a(max_batch_size: int = 8, /, **declared: str) -> ModelConfig:
    """Return a member; keywords replace what follows the tensors' names."""
    tensor = {"A_in": "TYPE_INT8 dims: 1", "C_out": "TYPE_INT8 dims: 1", **declared}
    return from_proto(
        parse(
            f'name: "a" backend: "b" max_batch_size: {max_batch_size}'
            f' input {{ name: "A_in" data_type: {tensor["A_in"]} }}'
            f' output {{ name: "C_out" data_type: {tensor["C_out"]} }}'
        ).message
    )


@pytest.mark.parametrize("rows", [8, 9])
def test_members_may_take_more_rows_than_the_ensemble(rows: int) -> None:
    member = member_a(rows)
    require_members(ensemble(step("a", "A", "C")), {("a", None): member})


def test_a_member_with_smaller_batches_is_refused_in_tritons_words() -> None:
    member = ModelConfig(name="a", max_batch_size=4)
    with pytest.raises(ConfigError) as caught:
        require_members(ensemble(step("a", "A", "C")), {("a", None): member})
    assert str(caught.value) == (
        "ensemble e allows maximum batch size 8, but it contains model a which only "
        "allows maximum batch size to be 4"
    )


def test_an_absent_member_is_named() -> None:
    with pytest.raises(ConfigError, match="not available or ambiguous: a"):
        require_members(ensemble(step("a", "A", "C")), {})


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            {"A_in": "TYPE_FP32 dims: 1"},
            (
                "in ensemble e, ensemble tensor A: inconsistent data type: TYPE_INT8 "
                "is inferred from model e while TYPE_FP32 is inferred from model a"
            ),
        ),
        (
            {"C_out": "TYPE_INT8 dims: 2"},
            (
                "in ensemble e, ensemble tensor C: inconsistent shape: [-1,1] is "
                "inferred from model e while [-1,2] is inferred from model a"
            ),
        ),
        (
            {"A_in": "TYPE_INT8 dims: [ 1, 1 ]"},
            (
                "in ensemble e, ensemble tensor A: inconsistent shape: [-1,1] is "
                "inferred from model e while [-1,1,1] is inferred from model a"
            ),
        ),
    ],
)
def test_members_that_disagree_about_a_tensor_are_refused(
    declared: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        require_members(
            ensemble(step("a", "A", "C")), {("a", None): member_a(8, **declared)}
        )
    assert str(caught.value) == message


def test_a_variable_dimension_is_left_to_the_request() -> None:
    member = member_a(C_out="TYPE_INT8 dims: -1")
    require_members(ensemble(step("a", "A", "C")), {("a", None): member})


def test_a_tensor_that_the_member_does_not_have_is_named() -> None:
    graph = ensemble(
        'step { model_name: "a" input_map { key: "X" value: "A" }'
        ' output_map { key: "C_out" value: "C" } }'
    )
    with pytest.raises(ConfigError) as caught:
        require_members(graph, {("a", None): member_a()})
    assert str(caught.value) == (
        "in ensemble e, ensemble tensor A is mapped to non-existing input X of model a"
    )


@pytest.mark.parametrize("optional", [False, True])
def test_a_step_may_leave_out_optional_inputs_only(*, optional: bool) -> None:
    member = from_proto(
        parse(
            'name: "a" backend: "b" max_batch_size: 8'
            ' input [{ name: "A_in" data_type: TYPE_INT8 dims: 1 },'
            ' { name: "B" data_type: TYPE_INT8 dims: 1'
            f" optional: {str(optional).lower()} }}]"
            ' output { name: "C_out" data_type: TYPE_INT8 dims: 1 }'
        ).message
    )
    graph = ensemble(step("a", "A", "C"))
    if optional:
        require_members(graph, {("a", None): member})
    else:
        with pytest.raises(ConfigError, match="input B of model a is required"):
            require_members(graph, {("a", None): member})


@pytest.mark.parametrize(("dims", "fits"), [("[ -1, 1 ]", True), ("1", False)])
def test_an_ensemble_without_batching_says_what_its_members_call_the_batch(
    dims: str, *, fits: bool
) -> None:
    graph = from_proto(
        parse(
            'name: "e" platform: "ensemble"'
            f' input {{ name: "A" data_type: TYPE_INT8 dims: {dims} }}'
            f' output {{ name: "C" data_type: TYPE_INT8 dims: {dims} }}'
            f" ensemble_scheduling {{ {step('a', 'A', 'C')} }}"
        ).message
    )
    if fits:
        require_members(graph, {("a", None): member_a()})
    else:
        with pytest.raises(ConfigError, match="inconsistent shape"):
            require_members(graph, {("a", None): member_a()})
