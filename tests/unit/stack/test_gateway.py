"""What the stack has written for the gateway."""

from pathlib import Path

import pytest

from services.stack.command_line import parse
from services.stack.gateway import write_config
from services.stack.plan import Places
from services.stack.settings import settings_of


@pytest.mark.parametrize(
    ("flags", "limit"),
    [((), 64 << 20), (("--http-max-input-size=300000000",), 300_000_000)],
)
def test_the_limit_on_bodies_holds_for_every_method(
    tmp_path: Path, flags: tuple[str, ...], limit: int
) -> None:
    settings = settings_of(parse(["--model-repository=/m", *flags]))
    places = Places(
        run_directory=tmp_path, state_directory=tmp_path, nereid=("nereid",)
    )
    written = Path(write_config(settings, places)).read_text()
    assert f'"max_request_body_size": {limit}' in written
