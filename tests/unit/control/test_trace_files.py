"""Trace files on a real disk."""

import asyncio
import json
from pathlib import Path

from services.control.trace_book import CommonFile, IndexedFile
from services.control.trace_files import TraceFiles


def test_the_common_file_grows_and_is_complete_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    files = TraceFiles(str(path))
    files.write([CommonFile(('{"id":1}', '{"id":2}'))])
    files.write([CommonFile(('{"id":3}',))])
    files.close()
    assert json.loads(path.read_text()) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_files_with_an_index_are_complete_each(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    files = TraceFiles(str(path))
    files.write([IndexedFile(('{"id":1}',)), IndexedFile(('{"id":2}',))])
    files.close()
    found = sorted(each.name for each in tmp_path.iterdir())
    assert found == ["t.json.0", "t.json.1"]
    assert json.loads((tmp_path / "t.json.1").read_text()) == [{"id": 2}]


def test_settled_comes_behind_what_was_given(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path / "t.json"))
    for number in range(50):
        files.write([IndexedFile((f'{{"id":{number}}}',))])
    asyncio.run(files.settled())
    assert len(list(tmp_path.iterdir())) == 50
    files.close()


def test_an_older_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("of an earlier run")
    files = TraceFiles(str(path))
    files.write([CommonFile(('{"id":1}',))])
    files.close()
    assert json.loads(path.read_text()) == [{"id": 1}]


def test_without_traces_there_is_no_file(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path / "t.json"))
    files.write([])
    files.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_ends_nothing(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path / "nowhere" / "t.json"))
    files.write([IndexedFile(('{"id":1}',)), CommonFile(('{"id":2}',))])
    files.close()
    assert list(tmp_path.iterdir()) == []
