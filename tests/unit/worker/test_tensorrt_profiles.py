"""Which optimization profile takes a batch, and which configurations fit an engine."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.datatype import DataType
from services.core.errors import ConfigError, InvalidRequestError
from services.core.model_config import (
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    ModelInput,
)
from services.worker.backend import InstancePlace
from services.worker.backends.tensorrt_profiles import (
    EngineFacts,
    EngineTensor,
    Profile,
    ShapeRange,
    choose_profile,
    most_rows,
    profiles_of,
    require_supported,
)

PLACE = InstancePlace(name="m_0_0", group=0)


def tensor(name: str, *shape: int) -> EngineTensor:
    return EngineTensor(name=name, datatype=DataType.FP32, shape=shape)


def profile(
    index: int, **ranges: tuple[Sequence[int], Sequence[int], Sequence[int]]
) -> Profile:
    return Profile(
        index=index,
        ranges={
            name: ShapeRange(least=tuple(a), best=tuple(b), most=tuple(c))
            for name, (a, b, c) in ranges.items()
        },
    )


SMALL = profile(0, X=([1, 1], [2, 16], [4, 32]))
LARGE = profile(1, X=([1, 16], [8, 64], [16, 128]))
FACTS = EngineFacts(
    inputs=(tensor("X", -1, -1),),
    outputs=(tensor("Y", -1, 3),),
    profiles=(SMALL, LARGE),
)


def config(
    max_batch_size: int = 4,
    kind: InstanceKind = InstanceKind.GPU,
    profiles: tuple[str, ...] = (),
) -> ModelConfig:
    group = InstanceGroup(name="m_0", kind=kind, count=1, profiles=profiles)
    return ModelConfig(
        name="m", max_batch_size=max_batch_size, instance_groups=(group,)
    )


@pytest.mark.parametrize(
    ("shape", "index"),
    [((1, 1), 0), ((4, 32), 0), ((5, 32), 1), ((4, 33), 1), ((1, 16), 0), ((4, 30), 0)],
)
def test_the_nearest_of_those_that_fit_is_chosen(
    shape: tuple[int, int], index: int
) -> None:
    assert choose_profile([SMALL, LARGE], {"X": shape}, "m_0_0").index == index


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((5, 8), "dimension 0 to be between 1 and 4 but received 5"),
        ((1, 33), "dimension 1 to be between 1 and 32 but received 33"),
        ((0, 8), "dimension 0 to be between 1 and 4 but received 0"),
        ((1,), "model expected 2 dimensions but received 1 dimensions"),
    ],
)
def test_a_shape_beyond_the_only_profile_is_told_in_tritons_words(
    shape: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        choose_profile([SMALL], {"X": shape}, "m_0_0")
    text = str(caught.value)
    assert text.startswith("request specifies invalid shape for input 'X' for m_0_0.")
    assert text.endswith(reason)


def test_a_shape_that_no_profile_takes_names_them_all() -> None:
    with pytest.raises(InvalidRequestError, match="no optimization profile among 0, 1"):
        choose_profile([SMALL, LARGE], {"X": (17, 64)}, "m_0_0")


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 8),
)
def test_whatever_fits_some_profile_gets_one_that_it_fits(
    steps: list[tuple[int, int, int]], size: int
) -> None:
    profiles = [
        profile(i, X=([low], [low + a], [low + a + b]))
        for i, (low, a, b) in enumerate(steps)
    ]
    shapes: Mapping[str, tuple[int, ...]] = {"X": (size,)}
    fitting = [one for one in profiles if one.problem(shapes) is None]
    if not fitting:
        with pytest.raises(InvalidRequestError):
            choose_profile(profiles, shapes, "m")
        return
    chosen = choose_profile(profiles, shapes, "m")
    assert chosen in fitting
    assert all(chosen.distance(shapes) <= one.distance(shapes) for one in fitting)


@pytest.mark.parametrize(
    ("named", "indices"), [((), [0]), (("1",), [1]), (("1", "0", "1"), [1, 0])]
)
def test_an_instance_has_the_profiles_that_its_group_names(
    named: tuple[str, ...], indices: list[int]
) -> None:
    found = profiles_of(config(profiles=named), PLACE, FACTS)
    assert [one.index for one in found] == indices


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (config(profiles=("2",)), r"profile 2 for m_0_0\. Expected .* range 0-1"),
        (config(kind=InstanceKind.CPU), "supports only GPU device"),
        (config(kind=InstanceKind.MODEL), "supports only GPU device"),
        (config(5), "maximum batch size 5 for 'm_0_0', model maximum is 4"),
        (config(17, profiles=("0", "1")), "size 17 for 'm_0_0', model maximum is 16"),
    ],
)
def test_a_group_that_does_not_fit_the_engine_is_refused(
    of: ModelConfig, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        profiles_of(of, PLACE, FACTS)


def test_a_batch_may_be_as_large_as_the_largest_named_profile_takes() -> None:
    assert profiles_of(config(16, profiles=("0", "1")), PLACE, FACTS)


def test_the_most_rows_are_those_that_all_inputs_take() -> None:
    uneven = profile(0, A=([1, 1], [1, 1], [8, 9]), B=([1], [1], [6]))
    assert most_rows([uneven]) == 6
    assert FACTS.found().max_rows == 16


def test_an_engine_with_a_fixed_first_dimension_does_not_batch() -> None:
    fixed = EngineFacts(
        inputs=FACTS.inputs, outputs=(tensor("Y", 3),), profiles=FACTS.profiles
    )
    assert fixed.found().max_rows == 0


@pytest.mark.parametrize(
    ("shape", "linear", "text"),
    [(True, True, "'X' .* is a shape tensor"), (False, False, "non-linear IO format")],
)
def test_what_cannot_be_run_is_refused_when_loading(
    *, shape: bool, linear: bool, text: str
) -> None:
    odd = EngineTensor(
        name="X",
        datatype=DataType.INT32,
        shape=(-1,),
        is_shape=shape,
        is_linear=linear,
    )
    facts = EngineFacts(inputs=(odd,), outputs=(), profiles=(SMALL,))
    with pytest.raises(ConfigError, match=text):
        require_supported(config(), facts)


def test_an_engine_has_no_optional_inputs() -> None:
    optional = ModelInput(name="X", datatype=DataType.FP32, dims=(3,), optional=True)
    of = ModelConfig(name="m", inputs=(optional,))
    with pytest.raises(ConfigError, match="input 'X' is optional in the configuration"):
        require_supported(of, FACTS)
