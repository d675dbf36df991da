"""One life of the stack: start, wait for the models, serve, stop."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from services.core.errors import InternalError, ModelNotReadyError
from services.stack import log_settings, quickstart
from services.stack.child import Sink
from services.stack.inference_client import repository_index, server_is_ready
from services.stack.model_states import Verdict, judge
from services.stack.plan import Places, ProcessSpec
from services.stack.readiness import rest_is_ready, url_of
from services.stack.settings import StackSettings
from services.stack.supervisor import Supervisor

Stages = Sequence[Sequence[ProcessSpec]]

POLL_S: Final = 0.1
# A failure must last so long to be believed: a model may be placed anew.
FAILURE_SETTLES_S: Final = 2.0
NEWS_EVERY_S: Final = 5.0
# How long the gateway may take to notice that the router is ready.
GATEWAY_S: Final = 15.0


async def run_in_foreground(
    settings: StackSettings,
    places: Places,
    stages: Stages,
    *,
    environment: Mapping[str, str],
    sink: Sink,
) -> int:
    """Run the stack until SIGINT or SIGTERM; a second one kills it.

    Returns:
        The exit status of ``nereid serve``.

    Raises:
        ServingError: the start failed; everything is stopped.
    """
    supervisor = Supervisor(environment=environment, sink=sink, progress=_say)
    told_to_stop = _listen_for_signals(supervisor)
    serving = asyncio.create_task(_serve(supervisor, settings, places, stages))
    waiting = asyncio.create_task(told_to_stop.wait())
    try:
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        return 0
    finally:
        serving.cancel()
        waiting.cancel()
        _say("stopping")
        await supervisor.stop()
        _say("stopped")


async def _serve(
    supervisor: Supervisor, settings: StackSettings, places: Places, stages: Stages
) -> None:
    """Start everything, and then wait for ever."""
    for stage in stages:
        await supervisor.start(stage)
    await supervisor.unless_one_ends(_until_models_are_up(settings, places))
    supervisor.settle()
    _say(_welcome(settings))
    if settings.quickstart:
        await asyncio.to_thread(quickstart.show, settings)
    _say("Ctrl-C stops the stack")
    await log_settings.follow(places.control_target, settings.log)


async def _until_models_are_up(settings: StackSettings, places: Places) -> None:
    """Wait until what was asked for is loaded, and every door says so.

    Raises:
        ModelNotReadyError: models failed, and the user wants to end then.
        InternalError: the models are up, but the gateway does not say so.
    """
    verdict = await _settled_verdict(places)
    for entry in verdict.ready:
        _say(f"model {entry.name} version {entry.version} is ready")
    if verdict.failed:
        failures = "".join(f"\n  {entry}" for entry in verdict.failed)
        if settings.exit_on_error:
            raise ModelNotReadyError(
                f"models failed to load:{failures}\n"
                "(--exit-on-error=false serves the others)"
            )
        _say(f"models failed to load:{failures}")
        return
    if settings.rest is not None:
        give_up_at = time.monotonic() + GATEWAY_S
        while not await asyncio.to_thread(rest_is_ready, settings.rest):
            if time.monotonic() > give_up_at:
                raise InternalError("the models are ready, but REST does not say so")
            await asyncio.sleep(POLL_S)


async def _settled_verdict(places: Places) -> Verdict:
    """Poll control and the router until the start is decided either way."""
    failed_since = time.monotonic()
    next_news = failed_since + NEWS_EVERY_S
    while True:
        entries = await asyncio.to_thread(repository_index, places.control_target)
        now = time.monotonic()
        verdict = judge(entries or ())
        if entries is None or verdict.loading or not verdict.failed:
            failed_since = now
        if verdict.failed and now - failed_since > FAILURE_SETTLES_S:
            return verdict
        undecided = entries is None or verdict.loading or verdict.failed
        if not undecided and await asyncio.to_thread(
            server_is_ready, places.router_target
        ):
            return verdict
        if now > next_news:
            next_news = now + NEWS_EVERY_S
            names = ", ".join(entry.name for entry in verdict.loading)
            _say(f"waiting for {names or 'instances of the models'}")
        await asyncio.sleep(POLL_S)


def _listen_for_signals(supervisor: Supervisor) -> asyncio.Event:
    """Return the event that the first SIGINT, SIGTERM or SIGHUP sets."""
    told_to_stop = asyncio.Event()

    def on_signal() -> None:
        if told_to_stop.is_set():
            supervisor.kill()
        told_to_stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    return told_to_stop


def _welcome(settings: StackSettings) -> str:
    shown = {door.name: url_of(door) for door in settings.doors}
    if settings.grpc:
        shown["gRPC"] = shown["gRPC"].removeprefix("http://")
    return "ready" + "".join(f"\n  {name:<8} {url}" for name, url in shown.items())


def _say(text: str) -> None:
    # Whoever no longer reads, a terminal that was closed, does not keep the stack
    # from ending in order.
    with contextlib.suppress(OSError):
        sys.stdout.write(f"nereid: {text}\n")
        sys.stdout.flush()
