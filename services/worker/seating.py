"""Makes the seats of a model: loaded, behind what its configuration declares, warm."""

from collections.abc import Callable, Sequence

import structlog

from services.core.clock import Clock
from services.core.model_config import ModelConfig
from services.worker.backend import (
    AbandonableBackend,
    AnyBackend,
    DecoupledBackend,
    InstancePlace,
    ModelSource,
    RequestBackend,
    Runtime,
)
from services.worker.backend_check import require_backends
from services.worker.execution import Execution
from services.worker.gather import Allocate
from services.worker.host_memory import input_memory
from services.worker.labels import read_labels
from services.worker.padded_backend import PaddedBackend, with_padding
from services.worker.ragged_backend import with_ragged_batches
from services.worker.request_execution import RequestExecution
from services.worker.runs import AnyRun, Run, StatefulRun, StreamedRun
from services.worker.seats import Seat, SeatKey, exclusive
from services.worker.sequence_states import SequenceStates
from services.worker.signature import Signature
from services.worker.stateful_backend import StatefulBackend, with_states
from services.worker.stateful_requests import StatefulRequestBackend
from services.worker.streamed_execution import StreamedExecution
from services.worker.warmup import warm_up
from services.worker.watchdog import Watchdog

_log = structlog.get_logger(__name__)


class Seating:
    """What every seat of a worker is made with."""

    def __init__(
        self,
        find_runtime: Callable[[ModelSource], Runtime],
        clock: Clock,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Make none yet.

        Args:
            find_runtime: Returns the runtime for a model; raises ConfigError.
            clock: For the batches' timing.
            watchdog: Ends executions that do not return; None: nobody does.
        """
        self._find_runtime = find_runtime
        self._clock = clock
        self._watchdog = watchdog

    def make(
        self,
        source: ModelSource,
        missing: Sequence[tuple[InstancePlace, SeatKey | None]],
    ) -> tuple[Seat, ...]:
        """Load instances and warm them up; nothing is left of them if one fails.

        Args:
            source: The model.
            missing: The places, each with the key of its seat.
        """
        if not missing:
            return ()
        places = [place for place, _ in missing]
        labels = read_labels(source)
        backends = tuple(self._find_runtime(source).load(source, places))
        try:
            require_backends(source.config.name, backends, len(places))
            signature = Signature.from_config(source.config, source.version, labels)
            fronts = [_front(source, signature, each) for each in backends]
            tells_states = source.config.checkpoints_states
            bare = [
                _run(
                    signature,
                    each,
                    self._clock,
                    input_memory(source, place),
                    tells_states=tells_states,
                )
                for each, place in zip(fronts, places, strict=True)
            ]
            names = [place.name for place in places]
            warm_up(source, list(zip(names, bare, strict=True)))
            runs = [
                exclusive(self._watched(source.config, name, backend, run))
                for name, backend, run in zip(names, backends, bare, strict=True)
            ]
        except Exception:
            for backend in backends:
                let_go(backend)
            raise
        for front in fronts:
            if isinstance(front, PaddedBackend):
                front.show(source)
        return tuple(
            Seat(backend=front, run=run, key=key)
            for (_, key), front, run in zip(missing, fronts, runs, strict=True)
        )

    def _watched(
        self,
        config: ModelConfig,
        name: str,
        backend: AnyBackend,
        run: AnyRun,
    ) -> AnyRun:
        """Return ``run``, watched if the model says how long it may take."""
        bound_ns = config.execution_timeout_ns
        if not bound_ns or self._watchdog is None:
            return run
        end = None
        if isinstance(backend, AbandonableBackend):
            end = backend.abandon
        return self._watchdog.watch(run, name, bound_ns, end)


def _front(
    source: ModelSource, signature: Signature, backend: AnyBackend
) -> AnyBackend:
    """Return ``backend`` behind what its configuration declares of its batches."""
    config = source.config
    padded = with_padding(with_states(backend, source), config, signature)
    return with_ragged_batches(padded, config, signature)


def _run(
    signature: Signature,
    backend: AnyBackend,
    clock: Clock,
    allocate: Allocate,
    *,
    tells_states: bool,
) -> AnyRun:
    """Return what answers the batches of one instance."""
    if isinstance(backend, DecoupledBackend):
        return StreamedRun(StreamedExecution(signature, backend, clock).run)
    if isinstance(backend, StatefulRequestBackend):
        by_request = RequestExecution(signature, backend, clock)
        return _stateful(backend, by_request.run, tells_states=tells_states)
    if isinstance(backend, RequestBackend):
        return RequestExecution(signature, backend, clock).run
    execution = Execution(signature, backend, clock, allocate)
    if isinstance(backend, StatefulBackend):
        return _stateful(backend, execution.run, tells_states=tells_states)
    return execution.run


def _stateful(
    backend: StatefulBackend | StatefulRequestBackend, run: Run, *, tells_states: bool
) -> StatefulRun:
    """Return what answers batches with the states of whoever sends them."""

    def run_with(message: bytes, states: SequenceStates) -> bytes:
        backend.states = states
        return run(message)

    return StatefulRun(run_with, tells_states)


def let_go(backend: AnyBackend) -> None:
    """Unload ``backend``, and go on if that fails."""
    try:
        backend.unload()
    except Exception:  # noqa: BLE001 - it is gone all the same, as the others are
        _log.exception("a model did not unload cleanly")
