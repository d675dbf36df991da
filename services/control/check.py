"""The command ``nereid check``: is everything in a model repository fit to serve?"""

import argparse
import asyncio
import os
import sys
import textwrap
from collections.abc import Sequence

from services.control import repository
from services.control.command_line import max_batch_sizes
from services.control.preparation import CompletionSettings
from services.control.remote_repository import RemoteRepositories
from services.control.repository_check import CheckedModel, RepositoryCheck
from services.control.trial_fleet import QUIET, trial_fleet
from services.core import logs
from services.core.errors import InternalError


def main(argv: Sequence[str]) -> int:
    """Check repositories and print what was found.

    Returns:
        0 if every model can be served, 1 if not, 2 if there is nothing to check.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        sizes = max_batch_sizes(options.backend_config)
    except ValueError as error:
        parser.error(str(error))
    logs.configure(settings=QUIET)
    completion = CompletionSettings(
        auto_complete=not options.disable_auto_complete_config, max_batch_sizes=sizes
    )
    try:
        return asyncio.run(_check(options, completion))
    except (InternalError, ValueError) as error:
        sys.stderr.write(f"nereid check: {error}\n")
        return 2


async def _check(options: argparse.Namespace, completion: CompletionSettings) -> int:
    remotes = RemoteRepositories(options.repositories, os.environ)
    try:
        return await _check_all(options, completion, remotes)
    finally:
        remotes.close()


async def _check_all(
    options: argparse.Namespace,
    completion: CompletionSettings,
    remotes: RemoteRepositories,
) -> int:
    await asyncio.to_thread(remotes.refresh)
    found = await asyncio.to_thread(
        repository.scan, remotes.folders, options.model_config_name
    )
    bad = 0
    async with trial_fleet(options.device) as fleet:
        check = RepositoryCheck(
            found=found,
            fleet=fleet,
            completion=completion,
            loads=not options.no_load,
        )
        async for model in check.run():
            bad += bool(model.errors)
            if model.errors or not options.quiet:
                sys.stdout.write(describe(model, with_config=not options.quiet))
                sys.stdout.flush()
    count = len(found.names)
    sys.stdout.write(f"{count} models, {bad} with errors\n")
    return 1 if bad else 0


def describe(model: CheckedModel, *, with_config: bool) -> str:
    """Return what is printed of a model.

    Args:
        model: What was found.
        with_config: Also print the completed configuration.
    """
    outcome = "ERROR" if model.errors else "ok"
    versions = ", ".join(map(str, model.versions))
    head = f"{model.name}: {outcome}"
    text = f"{head} (versions {versions})\n" if versions else f"{head}\n"
    for error in model.errors:
        text += textwrap.indent(f"  error: {error.strip()}\n", "  ").removeprefix("  ")
    text += "".join(f"  note: {note}\n" for note in model.notes)
    return text + (textwrap.indent(model.config, "    ") if with_config else "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nereid check",
        description="Check model repositories without serving them: complete every"
        " configuration, load every model, one after the other, and say what is wrong.",
    )
    add = parser.add_argument
    add("repositories", nargs="+", metavar="DIR", help="a folder of models")
    add("--device", default="cpu", help="load on cpu or cuda:N (default: cpu)")
    add("--quiet", action="store_true", help="print only models with errors")
    add("--no-load", action="store_true", help="only complete the configurations")
    add("--model-config-name", default="", metavar="NAME", help="as of nereid serve")
    add("--disable-auto-complete-config", action="store_true", help="the same")
    add("--backend-config", action="append", default=[], help="the same")
    return parser
