"""Which GPUs a process may see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.gpus import Gpu, visible_gpus

A, B = Gpu(uuid="GPU-aa11"), Gpu(uuid="GPU-ab22")


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [A, B]),
        ("", []),
        ("-1", []),
        ("1", [B]),
        ("1, 0", [B, A]),
        ("0,2,1", [A]),
        ("1,1", [B]),
        ("GPU-ab", [B]),
        ("GPU-a", []),
        ("GPU-ab22,0", [B, A]),
        ("MIG-1a2b", [Gpu(uuid="MIG-1a2b")]),
    ],
)
def test_the_variable_chooses_and_orders(
    variable: str | None, expected: list[Gpu]
) -> None:
    assert list(visible_gpus([A, B], variable)) == expected


@given(st.text("0123,- GPUMIabx"))
def test_no_gpu_is_seen_twice_and_none_that_is_not_there(variable: str) -> None:
    assert visible_gpus([], variable) == ()
    found = visible_gpus([A, B], variable)
    assert len(set(found)) == len(found)
    assert {gpu for gpu in found if not gpu.uuid.startswith("MIG-")} <= {A, B}
