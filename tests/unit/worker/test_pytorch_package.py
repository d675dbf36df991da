"""What is read out of the source in an AOTInductor package."""

import pytest

from services.worker.backends.pytorch_package import CompiledInput, compiled_inputs

CHECK = """
AOTI_NOINLINE static void check_input_{number}(
    AtenTensorHandle* input_handles
) {{
    int32_t arg_expected_dtype = aoti_torch_dtype_{dtype}();
    if (arg_expected_dtype != arg_dtype) {{
        ss << "input_handles[0]: unmatched dtype, "
    }}
{sizes}
    if (1 != arg_stride[1]) {{
        ss << "unmatched stride value at 1, "
    }}
}}
"""
VARYING = "    if (arg_size[0] < 2) {\n    }\n    if (arg_size[0] > 8) {\n    }\n"
FIXED = "    if (4 != arg_size[1]) {\n    }\n"


def test_datatypes_shapes_and_bounds_are_found() -> None:
    source = (
        "int main() { if (7 != arg_size[0]) {} }"
        + CHECK.format(number=0, dtype="float32", sizes=VARYING + FIXED)
        + CHECK.format(number=1, dtype="int64", sizes="    if (3L != arg_size[0]) {\n")
        + "void run() { if (9 != arg_size[3]) {} }\n"
    )
    assert compiled_inputs(source) == (
        CompiledInput(dtype="float32", shape=(-1, 4), most={0: 8}),
        CompiledInput(dtype="int64", shape=(3, -1), most={}),
    )


def test_a_source_without_checks_tells_nothing() -> None:
    assert compiled_inputs("") == ()
    assert compiled_inputs("void run() {}") == ()


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        ((1, 4), True),
        ((8, 4), True),
        ((0, 4), True),
        ((9, 4), False),
        ((1, 3), False),
        ((4,), False),
        ((1, 4, 1), False),
    ],
)
def test_only_what_the_code_was_compiled_for_fits(
    shape: tuple[int, ...], *, fits: bool
) -> None:
    expected = CompiledInput(dtype="float32", shape=(-1, 4), most={0: 8})
    assert expected.accepts(shape) is fits
