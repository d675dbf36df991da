"""What a configuration's names mean in a PyTorch file."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import ConfigError
from services.worker.backends.pytorch_names import (
    TensorPlace,
    assign,
    input_place,
    leaf_paths,
    output_place,
)

FORWARD = [TensorPlace(names=("x",)), TensorPlace(names=("y", "ARGS[1]"))]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["y", "x"], (1, 0)),
        (["ARGS[1]", "x"], (1, 0)),
        (["A__1", "B__0"], (1, 0)),
        (["y__1", "x__0"], (1, 0)),
        (["y", "B"], (0, 1)),
        (["y", "x__0"], (0, 1)),
        (["A__1", "B__zero"], (0, 1)),
        (["A__1", "B__"], (0, 1)),
        (["A__1", "B__0__0"], (0, 1)),
    ],
)
def test_one_way_of_naming_holds_for_all(
    names: list[str], expected: tuple[int, ...]
) -> None:
    assert assign("m", "input", names, FORWARD) == expected


def test_without_knowing_how_many_there_are_any_number_is_taken() -> None:
    assert assign("m", "output", ["Y__7"], None) == (7,)
    with pytest.raises(ConfigError) as caught:
        assign("m", "output", ["Y__2"], FORWARD)
    assert str(caught.value) == (
        "The output Y__2 in the model configuration refers to an output index which"
        " doesn't exist. This model has 2 outputs"
    )


def test_two_names_for_one_tensor_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="'A__1' and 'B__1' of model 'm' are the same"
    ):
        assign("m", "input", ["A__1", "B__1"], FORWARD)


def tree(value: object) -> dict[str, Any]:
    """Return what torch's pytree writes of a nested value."""
    if isinstance(value, dict):
        children = [tree(one) for one in value.values()]
        context = json.dumps(list(value))
        return {"type": "builtins.dict", "context": context, "children_spec": children}
    if isinstance(value, list | tuple):
        children = [tree(one) for one in value]
        kind = f"builtins.{type(value).__name__}"
        return {"type": kind, "context": "null", "children_spec": children}
    return {"type": None, "context": None, "children_spec": []}


def test_the_leaves_of_arguments_are_found_in_order() -> None:
    spec = json.dumps([1, tree(((0, {"b": 0, "a": [0, 0]}), {"k": 0}))])
    paths = leaf_paths(spec)
    assert paths == ((0, 0), (0, 1, "b"), (0, 1, "a", 0), (0, 1, "a", 1), (1, "k"))
    places = [input_place(path, ["x", "options"]).names for path in paths]
    assert places == [
        ("x", "ARGS[0]"),
        ("options[b]", "ARGS[1][b]"),
        ("options[a][0]", "ARGS[1][a][0]"),
        ("options[a][1]", "ARGS[1][a][1]"),
        ("k", "KWARGS[k]"),
    ]
    assert input_place(paths[1], ()).names == ("ARGS[1][b]",)


def test_results_are_named_by_their_place() -> None:
    assert leaf_paths(json.dumps([1, tree(0)])) == ((),)
    assert output_place(()).names == ("RESULT",)
    assert output_place((1,)).names == ("RESULT[1]",)
    assert output_place(("AAA", 0)).names == ("AAA[0]", "RESULT[AAA][0]")


NESTED = st.recursive(
    st.just(0),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(NESTED)
def test_every_leaf_can_be_reached_by_its_path(
    value: Any,  # noqa: ANN401 - nested
) -> None:
    paths = leaf_paths(json.dumps([1, tree(value)]))
    assert len(set(paths)) == len(paths)
    for path in paths:
        at = value
        for step in path:
            at = at[step]
        assert at == 0
