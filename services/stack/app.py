"""``nereid serve``: the whole stack in the foreground, until Ctrl-C."""

import asyncio
import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog

from services.core import logs, parent_death, process_tuning
from services.core.errors import ServingError
from services.stack import devices, directories, gateway, ports, programs
from services.stack.child import Sink
from services.stack.command_line import CommandLine, UsageError, help_text, parse
from services.stack.foreground import run_in_foreground
from services.stack.plan import Places, needs_gateway, plan
from services.stack.settings import StackSettings, settings_of

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

log = structlog.get_logger()


def main(argv: list[str]) -> int:
    """Serve until told to stop.

    Returns:
        0 after a stop that was asked for; 1 if the stack could not start; 2 if the
        command line is wrong.
    """
    process_tuning.prepare_grpc()
    try:
        line = parse(argv)
        if "help" in line.values:
            sys.stdout.write(help_text())
            return 0
        settings = settings_of(line)
    except UsageError as error:
        return _complain(str(error), status=EXIT_USAGE)
    logs.configure(settings=settings.log)
    _warn(line)
    problems = (*_folder_problems(settings), *ports.problems(settings.doors))
    if problems:
        return _complain(*problems, status=EXIT_FAILED)
    try:
        return _serve(settings)
    except ServingError as error:
        return _complain(str(error), status=EXIT_FAILED)


def _serve(settings: StackSettings) -> int:
    """Hold what the stack holds while it runs.

    Raises:
        ServingError: something is missing, or the start failed.
    """
    found = devices.choose(settings.devices, os.environ)
    redis_url = os.environ.get("REDIS_URL", "")
    state = directories.state_directory(settings.state_directory, os.environ)
    environment = {
        "GRPC_VERBOSITY": "ERROR",  # else gRPC tells of every stream that ends
        **os.environ,
        **settings.log.to_environment(),
        **parent_death.environment_for_child(),
    }
    with contextlib.ExitStack() as held:
        if not redis_url:
            held.enter_context(directories.held_state_directory(state))
        run = held.enter_context(directories.run_directory())
        sink = held.enter_context(_log_sink(settings.log_file))
        places = Places(
            run_directory=run,
            state_directory=state,
            nereid=programs.nereid(),
            valkey="" if redis_url else programs.valkey(),
            envoy=programs.envoy() if needs_gateway(settings) else "",
            redis_url=redis_url,
        )
        if needs_gateway(settings):
            config = gateway.write_config(settings, places)
            places = dataclasses.replace(places, envoy_config=config)
        stages = plan(settings, places, found)
        return asyncio.run(
            run_in_foreground(
                settings, places, stages, environment=environment, sink=sink
            )
        )


@contextlib.contextmanager
def _log_sink(path: str) -> Iterator[Sink]:
    """Yield what takes the children's log lines: stderr, or a file to append to.

    Raises:
        ServingError: the file cannot be opened.
    """
    if not path:
        yield _write_to_stderr
        return
    with Path(path).open("ab", buffering=0) as file:

        def write_to_file(lines: bytes) -> None:
            file.write(lines)

        yield write_to_file


def _write_to_stderr(lines: bytes) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.buffer.write(lines)
        sys.stderr.buffer.flush()


def _folder_problems(settings: StackSettings) -> tuple[str, ...]:
    return tuple(
        f"model repository '{folder}' is not a folder"
        for folder in settings.model_repositories
        # Control says what is wrong with a remote one.
        if "://" not in folder and not Path(folder).is_dir()
    )


def _warn(line: CommandLine) -> None:
    for flag in line.deprecated:
        log.warning("deprecated flag", flag=f"--{flag.name}", use=f"--{flag.alias_of}")
    for flag in line.ignored:
        log.warning("flag accepted and ignored", flag=f"--{flag.name}", why=flag.text)


def _complain(*sentences: str, status: int) -> int:
    for sentence in sentences:
        sys.stderr.write(f"nereid serve: {sentence}\n")
    return status
