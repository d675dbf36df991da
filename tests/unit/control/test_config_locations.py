import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from protos import model_config_pb2 as pb
from services.control.config_locations import Position, path_at, scan

TEXT = """\
name: "m"  # not: a field
input [
  { name: "x" dims: [ 1,
    2 ] },
  { name: 'y'
    "z" reshape < shape: -1 > }
]
input { name: "w" }
parameters { key: "k" value { string_value: "v" } }
parameters {
  key: "l"
  value { string_value:
    "v" }
}
dynamic_batching {
  priority_queue_policy [ { key: 3 value: {
    max_queue_size: 7 } } ]
}
"""


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        (("name",), 1, 1),
        (("input",), 3, 3),
        (("input", 0), 3, 3),
        (("input", 0, "dims"), 3, 23),
        (("input", 0, "dims", 1), 4, 5),
        (("input", 1), 5, 3),
        (("input", 1, "reshape", "shape", 0), 6, 19),
        (("input", 2, "name"), 8, 9),
        (("parameters", "k"), 9, 1),
        (("parameters", "l"), 10, 1),
        (("parameters", "l", "string_value"), 12, 11),
        (("dynamic_batching", "priority_queue_policy", "3"), 16, 27),
        (("dynamic_batching", "priority_queue_policy", "3", "max_queue_size"), 17, 5),
    ],
)
def test_a_written_field_is_found_where_it_is_written(
    path: tuple[str | int, ...], line: int, column: int
) -> None:
    assert scan(TEXT).find(path) == Position(line=line, column=column)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("input", 1, "data_type"), 5),
        (("input", 1, "dims", 3), 5),
        (("input", 9, "dims"), 3),
        (("dynamic_batching", "default_priority_level"), 15),
        (("parameters", "absent"), 9),
    ],
)
def test_an_unwritten_field_has_the_place_of_the_one_around_it(
    path: tuple[str | int, ...], line: int
) -> None:
    found = scan(TEXT).find(path)
    assert found is not None
    assert found.line == line


def test_a_field_with_nothing_around_it_has_no_place() -> None:
    assert scan(TEXT).find(("output", 0)) is None


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("max_batch_size: |", ("max_batch_size", 0)),
        ("max_batch_size |", ("max_batch_size", 0)),
        ("name: 'm' |", ()),
        ("input { name: 'm' |", ("input", 0)),
        ("input { name: 'm' } input { dims: [ 1, |", ("input", 1, "dims", 1)),
        ("input [ {}, |", ("input", 1)),
        ("# input {\nname: |", ("name", 0)),
        ("name: '{' |", ()),
    ],
)
def test_the_open_field_is_known_wherever_a_text_breaks_off(
    text: str, path: tuple[str | int, ...]
) -> None:
    line = text.count("\n") + 1
    column = len(text.rsplit("\n", maxsplit=1)[-1])
    assert path_at(text, Position(line=line, column=column)) == path


@given(st.text(alphabet="a{}<>[]:,;#\"'\\ \n1-", max_size=40))
def test_no_text_stops_the_scanner(text: str) -> None:
    scan(text)
    path_at(text, Position(line=1, column=len(text) + 1))


names = st.text(min_size=1, max_size=5)


@given(st.lists(st.tuples(names, st.lists(st.integers(-1, 99), max_size=3))))
def test_every_field_that_protobuf_prints_is_found_on_its_line(
    tensors: list[tuple[str, list[int]]],
) -> None:
    message = pb.ModelConfig()
    for name, dims in tensors:
        message.input.add(name=name, dims=dims)
    text = text_format.MessageToString(message)
    lines, root = text.split("\n"), scan(text)
    for i, (_, dims) in enumerate(tensors):
        place = root.find(("input", i, "name"))
        assert place is not None
        assert lines[place.line - 1].startswith("  name: ")
        for j, dim in enumerate(dims):
            place = root.find(("input", i, "dims", j))
            assert place is not None
            assert lines[place.line - 1] == f"  dims: {dim}"
