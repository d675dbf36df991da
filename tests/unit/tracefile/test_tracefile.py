"""The command ``nereid trace``."""

import json
from pathlib import Path

import pytest

from services.tracefile.app import main
from services.tracefile.perfetto import to_json
from services.tracefile.records import TracedRequest, read
from services.tracefile.summary import percentile, summary

# As Triton 2.51 writes it, in its order.
RECORDS = [
    {"id": 1, "timestamps": [{"name": "HTTP_RECV_START", "ns": 1000}]},
    {"id": 1, "timestamps": [{"name": "HTTP_RECV_END", "ns": 3000}]},
    {"id": 1, "model_name": "m", "model_version": 2, "request_id": "r"},
    {"id": 1, "timestamps": [{"name": "REQUEST_START", "ns": 4000}]},
    {"id": 1, "timestamps": [{"name": "QUEUE_START", "ns": 4000}]},
    {"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": {"name": "I"}},
    {"id": 1, "timestamps": [{"name": "REQUEST_END", "ns": 24000}]},
    {"id": 1, "timestamps": [{"name": "COMPUTE_START", "ns": 9000}]},
    {"id": 2, "model_name": "step", "model_version": 1, "parent_id": 1},
]


def requests() -> list[TracedRequest]:
    return read(json.dumps(RECORDS))


def test_the_records_of_a_request_are_put_together() -> None:
    first, second = requests()
    assert (first.model, first.version, first.request_id) == ("m", 2, "r")
    assert first.times_ns["COMPUTE_START"] == 9000
    assert (second.model, second.parent, second.times_ns) == ("step", 1, {})


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"id":1,"model_name":"m"}]'])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever kind
        read(text)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([7], 50, 7), ([1, 2], 50, 1), ([3, 1, 2], 50, 2), ([1, 2], 99, 2)],
)
def test_percentiles_are_values_that_occurred(
    values: list[int], percent: int, expected: int
) -> None:
    assert percentile(values, percent) == expected
    assert percentile(list(range(1, 201)), percent) == percent * 2


def test_the_summary_has_a_line_for_each_model() -> None:
    lines = summary(requests()).splitlines()
    assert " ".join(lines[2].split()) == (
        "model version traces request receive queue input infer output send"
    )
    assert lines[3].split() == ["m", "2", "1", "20/20", "2/2", "5/5", *"----"]
    assert lines[4].split() == ["step", "1", "1", *"-------"]


def test_perfetto_gets_a_span_for_each_phase_that_is_known() -> None:
    events = json.loads(to_json(requests()))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [(s["name"], s["ts"], s["dur"], s["pid"], s["tid"]) for s in spans] == [
        ("request", 3.0, 20.0, 1, 1),
        ("receive", 0.0, 2.0, 1, 1),
        ("queue", 3.0, 5.0, 1, 1),
    ]
    assert spans[0]["args"] == {"version": 2, "request_id": "r"}
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"m", "step", "request 1", "request 2, step of 1"}


def test_several_files_make_one_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "t.json.0", tmp_path / "t.json.1"]
    for path in paths:
        path.write_text(json.dumps(RECORDS))
    assert main([str(path) for path in paths]) == 0
    assert capsys.readouterr().out.splitlines()[3].split()[2] == "2"


def test_perfetto_has_a_file_of_its_own(tmp_path: Path) -> None:
    path, out = tmp_path / "t.json", tmp_path / "out.json"
    path.write_text(json.dumps(RECORDS))
    assert main([str(path), "--perfetto", str(out)]) == 0
    assert "traceEvents" in json.loads(out.read_text())


def test_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nope.json")]) == 1
    assert "nope.json" in capsys.readouterr().err
