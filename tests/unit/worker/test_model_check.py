"""A model file against its configuration."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from services.core.datatype import DataType
from services.core.errors import ConfigError
from services.core.model_config import (
    BatchInput,
    BatchInputKind,
    BatchOutput,
    BatchOutputKind,
    ModelConfig,
    ModelInput,
    ModelOutput,
)
from services.worker.backend import FoundModel, FoundTensor
from services.worker.model_check import check_model

X = (-1, 16)


def found(
    inputs: dict[str, Sequence[int]],
    outputs: dict[str, Sequence[int]],
    datatype: DataType = DataType.INT32,
) -> FoundModel:
    def tensors(of: dict[str, Sequence[int]]) -> tuple[FoundTensor, ...]:
        return tuple(
            FoundTensor(name=name, datatype=datatype, shape=tuple(shape))
            for name, shape in of.items()
        )

    return FoundModel(inputs=tensors(inputs), outputs=tensors(outputs))


def declared(
    dims: Sequence[int],
    *,
    max_batch_size: int = 8,
    reshape: Sequence[int] | None = None,
    optional: Sequence[str] = (),
) -> ModelConfig:
    shape = None if reshape is None else tuple(reshape)
    return ModelConfig(
        name="m",
        max_batch_size=max_batch_size,
        inputs=(
            ModelInput(
                name="X", datatype=DataType.INT32, dims=tuple(dims), reshape=shape
            ),
            *(
                ModelInput(
                    name=name, datatype=DataType.INT32, dims=tuple(dims), optional=True
                )
                for name in optional
            ),
        ),
        outputs=(ModelOutput(name="Y", datatype=DataType.INT32, dims=(16,)),),
    )


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (declared([16]), (-1, 16)),
        (declared([-1]), (-1, 16)),
        (declared([16]), (-1, -1)),
        (declared([16], reshape=[4, 4]), (-1, 4, 4)),
        (declared([1], reshape=[]), (-1,)),
    ],
)
def test_shapes_that_can_meet_are_accepted(
    config: ModelConfig, shape: tuple[int, ...]
) -> None:
    check_model(config, found({"X": shape}, {"Y": X}))


def test_a_model_may_have_more_outputs() -> None:
    check_model(declared([16]), found({"X": X}, {"Z": X, "Y": X}))


def test_an_optional_input_may_be_unknown_to_the_file() -> None:
    check_model(declared([16], optional=["O"]), found({"X": X}, {"Y": X}))


@pytest.mark.parametrize(
    ("config", "model", "text"),
    [
        (
            declared([17]),
            found({"X": X}, {"Y": X}),
            "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,16]) but"
            " the model configuration specifies 2 dimensions (an initial batch"
            " dimension because max_batch_size > 0 followed by the explicit tensor"
            " shape, making complete shape [-1,17])",
        ),
        (
            declared([17], max_batch_size=0),
            found({"X": (16,)}, {"Y": (16,)}),
            "model 'm', tensor 'X': the model expects 1 dimensions (shape [16]) but"
            " the model configuration specifies 1 dimensions (shape [17])",
        ),
        (
            declared([16]),
            found({"X": (1, 16)}, {"Y": X}),
            "model 'm', tensor 'X': for the model to support batching the shape should"
            " have at least 1 dimension and the first dimension must be -1; but shape"
            " expected by the model is [1,16]",
        ),
        (
            declared([16]),
            found({"X": X}, {"Y": X}, DataType.FP32),
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for"
            " input 'X', model provides TYPE_FP32",
        ),
        (
            declared([16]),
            found({"X": X, "B": X}, {"Y": X}),
            "unable to load model 'm', configuration expects 1 inputs, model provides"
            " 2",
        ),
        (
            declared([16]),
            found({"B": X}, {"Y": X}),
            "unexpected inference input 'X', allowed inputs are: B",
        ),
        (
            declared([16]),
            found({"X": X}, {"A": X, "B": X}),
            "unexpected inference output 'Y', allowed outputs are: A, B",
        ),
    ],
)
def test_a_contradiction_is_told_in_tritons_words(
    config: ModelConfig, model: FoundModel, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_model(config, model)
    assert str(caught.value) == text


def ragged(
    *, optional: bool = False, kind: BatchInputKind = BatchInputKind.ELEMENT_COUNT
) -> ModelConfig:
    return ModelConfig(
        name="m",
        max_batch_size=8,
        inputs=(
            ModelInput(
                name="X",
                datatype=DataType.INT32,
                dims=(-1, 2),
                allow_ragged_batch=True,
                optional=optional,
            ),
        ),
        outputs=(ModelOutput(name="Y", datatype=DataType.INT32, dims=(-1, 2)),),
        batch_inputs=(
            BatchInput(
                kind=kind,
                target_names=("N",),
                datatype=DataType.INT32,
                source_input="X",
            ),
        ),
        batch_outputs=(
            BatchOutput(
                kind=BatchOutputKind.SCATTER_WITH_INPUT_SHAPE,
                target_names=("Y",),
                source_input="X",
            ),
        ),
    )


@pytest.mark.parametrize(
    ("config", "shape"),
    [(ragged(), (-1,)), (ragged(kind=BatchInputKind.ITEM_SHAPE), (-1, 2))],
)
def test_a_ragged_model_has_one_dimension_where_the_clients_have_more(
    config: ModelConfig, shape: tuple[int, ...]
) -> None:
    check_model(config, found({"X": (-1,), "N": shape}, {"Y": (-1,)}))


@pytest.mark.parametrize(
    ("config", "model", "text"),
    [
        (
            ragged(),
            found({"X": (-1, 2), "N": (-1,)}, {"Y": (-1,)}),
            "unable to load model 'm', configuration expects model provides input with"
            " shape [-1] for ragged input 'X', model provides [-1,2]",
        ),
        (
            ragged(optional=True),
            found({"X": (-1,), "N": (-1,)}, {"Y": (-1,)}),
            "unable to load model 'm', configuration expects model provides input with"
            " shape [-1] for ragged input 'X', which is not supported for optional"
            " input",
        ),
        (
            ragged(),
            found({"X": (-1,)}, {"Y": (-1,)}),
            "unexpected inference input 'N', allowed inputs are: X",
        ),
        (
            ragged(kind=BatchInputKind.ITEM_SHAPE),
            found({"X": (-1,), "N": (-1,)}, {"Y": (-1,)}),
            "model 'm', tensor 'N': a batch input of kind BATCH_ITEM_SHAPE has 2"
            " dimensions, the model provides [-1]",
        ),
    ],
)
def test_what_a_ragged_model_lacks_is_named(
    config: ModelConfig, model: FoundModel, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_model(config, model)
    assert str(caught.value) == text


def test_a_batch_input_has_the_datatype_that_is_made() -> None:
    model = FoundModel(
        inputs=(
            FoundTensor(name="X", datatype=DataType.INT32, shape=(-1,)),
            FoundTensor(name="N", datatype=DataType.FP32, shape=(-1,)),
        ),
        outputs=(FoundTensor(name="Y", datatype=DataType.INT32, shape=(-1,)),),
    )
    with pytest.raises(ConfigError, match="TYPE_INT32 for input 'N', model provides"):
        check_model(ragged(), model)


@pytest.mark.parametrize(
    ("max_rows", "is_right"), [(None, True), (8, True), (7, False)]
)
def test_no_more_rows_than_the_file_allows(
    max_rows: int | None, *, is_right: bool
) -> None:
    model = replace(found({"X": X}, {"Y": X}), max_rows=max_rows)
    if is_right:
        check_model(declared([16], max_batch_size=8), model)
        return
    with pytest.raises(ConfigError) as caught:
        check_model(declared([16], max_batch_size=8), model)
    assert str(caught.value) == (
        "unable to load model 'm', configuration expects max_batch_size 8, model"
        " provides 7"
    )
