import json
from pathlib import Path

import pytest

from services.gateway.__main__ import main
from services.gateway.descriptor import transcoder_descriptor

TARGETS = ("--router", "unix:/r", "--control", "unix:/c")


def test_it_writes_what_envoy_reads_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new"
    assert main([str(folder), *TARGETS]) == 0
    path = Path(capsys.readouterr().out.strip())
    text = path.read_text()
    assert path == folder / "envoy.yaml"
    assert json.loads(text)["static_resources"]["listeners"]
    assert (folder / "rest.pb").read_bytes() == transcoder_descriptor()
    assert str(folder / "rest.pb") in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--router", "nonsense", "--control", "unix:/c"), "'nonsense' is no address"),
        ((*TARGETS, "--tls-certificate", "/c.pem"), "certificate and its private key"),
    ],
)
def test_flags_that_cannot_be_are_told_of_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    message: str,
) -> None:
    assert main([str(tmp_path), *flags]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
