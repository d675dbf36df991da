"""Loads, unloads and inspects models for control, off the control stream's thread."""

import gc
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, TypeAlias

import structlog

from services.core.clock import Clock
from services.worker.backend import (
    CompletedConfig,
    Forgetting,
    FoundModel,
    InstancePlace,
    ModelSource,
    Runtime,
    SelfTelling,
)
from services.worker.instance import Instance
from services.worker.load_error import describe
from services.worker.memory import MemoryUse, measure
from services.worker.model_metrics import ModelMetrics
from services.worker.peers import Peers
from services.worker.readiness import ReadinessChecks
from services.worker.router_stream import Stream
from services.worker.seating import Seating, let_go
from services.worker.seats import Seat, Seats, seat_key
from services.worker.turns import InstanceTurns, Turns, close_all
from services.worker.watchdog import Watchdog

# Unloading is mostly waiting for models that finalize.
_UNLOADING_THREADS: Final = 16

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOrder:
    """One model version that control wants here.

    Attributes:
        generation: Told apart by control: a reload is a new one.
        source: What to load.
        places: Its instances.
        fingerprint: Equal for what differs only in its instance groups; "" if it
            is not known.
    """

    generation: int
    source: ModelSource
    places: tuple[InstancePlace, ...]
    fingerprint: str = ""


class Reports(Protocol):
    """How control is told what became of its orders; from any thread."""

    def loaded(self, generation: int, memory: MemoryUse) -> None:
        """All instances stand and dial the routers; ``memory`` is what it took."""
        ...

    def load_failed(self, generation: int, message: str) -> None:
        """Nothing of it is left."""
        ...

    def unloaded(self, generation: int) -> None:
        """Nothing of it is left."""
        ...

    def readiness(self, question: int, *, is_ready: bool) -> None:
        """All instances of a generation would execute requests, or not."""
        ...

    def inspected(self, inspection: int, found: FoundModel | CompletedConfig) -> None:
        """The file was read."""
        ...

    def inspection_failed(self, inspection: int, message: str) -> None:
        """The file could not be read."""
        ...


Dial: TypeAlias = Callable[[LoadOrder, str, str], Stream]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    seats: tuple[Seat, ...]
    instances: tuple[Instance, ...]
    memory: MemoryUse

    def connect(self, endpoints: tuple[str, ...]) -> None:
        for instance in self.instances:
            instance.connect(endpoints)


class Loader:
    """Everything this worker serves, by generation."""

    def __init__(
        self,
        find_runtime: Callable[[ModelSource], Runtime],
        dial: Dial,
        clock: Clock,
        reports: Reports,
        *,
        threads: int = 4,
        metrics: ModelMetrics | None = None,
        watchdog: Watchdog | None = None,
        turns: Turns | None = None,
    ) -> None:
        """Begin with nothing loaded.

        Args:
            find_runtime: Returns the runtime for a model; raises ConfigError.
            dial: Opens a stream: order, instance name, router endpoint.
            clock: For the batches' timing.
            reports: Is told the outcomes.
            threads: How many models are loaded at once.
            metrics: Where models show what they count themselves.
            watchdog: Ends executions that do not return; None: nobody does.
            turns: Of instances with resources; None: nothing is limited.
        """
        self._find_runtime = find_runtime
        self._dial = dial
        self._reports = reports
        self._peers = Peers()
        self._metrics = metrics or ModelMetrics()
        self._seating = Seating(find_runtime, clock, watchdog)
        self._seats = Seats()
        self._readiness = ReadinessChecks()
        self._turns = turns
        self._lock = threading.Lock()
        self._endpoints: tuple[str, ...] = ()
        # None while it is being loaded.
        self._models: dict[int, _Loaded | None] = {}
        self._unwanted: set[int] = set()
        self._threads = ThreadPoolExecutor(threads, "load")

    def generations(self) -> tuple[int, ...]:
        """Return what is served now."""
        with self._lock:
            return tuple(g for g, loaded in self._models.items() if loaded)

    def connect(self, endpoints: Sequence[str]) -> None:
        """Have every instance serve these routers and no others."""
        self._peers.connect(endpoints)
        with self._lock:
            self._endpoints = tuple(endpoints)
            for model in self._models.values():
                if model is not None:
                    model.connect(self._endpoints)

    def load(self, order: LoadOrder) -> None:
        """Begin to load; an order that is repeated changes nothing."""
        generation = order.generation
        with self._lock:
            self._unwanted.discard(generation)
            is_known = generation in self._models
            loaded = self._models.setdefault(generation, None)
            if not is_known:
                self._threads.submit(self._load, order)
        if loaded is not None:
            self._reports.loaded(generation, loaded.memory)

    def unload(self, generation: int) -> None:
        """Begin to unload, now or as soon as it is loaded."""
        with self._lock:
            loaded = self._models.get(generation)
            if loaded is None and generation in self._models:
                self._unwanted.add(generation)
                return
        if loaded is not None:
            self._seats.retire(loaded.seats)
        self._threads.submit(self._unload, generation)

    def check_readiness(self, question: int, generation: int) -> None:
        """Begin to ask the instances of a generation whether they are ready."""
        with self._lock:
            loaded = self._models.get(generation)
        if loaded is None:
            self._reports.readiness(question, is_ready=False)
            return
        instances = [
            seat.backend
            for seat in loaded.seats
            if isinstance(seat.backend, SelfTelling)
        ]
        self._readiness.begin(
            instances,
            lambda is_ready: self._reports.readiness(question, is_ready=is_ready),
        )

    def inspect(self, inspection: int, source: ModelSource) -> None:
        """Begin to read a model file."""
        self._threads.submit(self._inspect, inspection, source)

    def stop(self) -> None:
        """Unload everything; executions that have begun are answered."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._readiness.stop()
        with self._lock:
            loaded = [model for model in self._models.values() if model]
            self._models.clear()
        threads = [
            threading.Thread(target=instance.stop)
            for model in loaded
            for instance in model.instances
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seats = (seat for model in loaded for seat in model.seats)
        backends = self._seats.release(seats)
        with ThreadPoolExecutor(_UNLOADING_THREADS, "unload") as unloading:
            list(unloading.map(lambda backend: backend.unload(), backends))
        self._peers.close()

    def _load(self, order: LoadOrder) -> None:
        generation = order.generation
        config, version = order.source.config, order.source.version
        metrics = self._metrics.of(config.name, version)
        source = replace(order.source, peers=self._peers, metrics=metrics)
        try:
            model = self._make(order, source)
        except Exception as error:  # noqa: BLE001 - the boundary: it is reported
            with self._lock:
                del self._models[generation]
                self._unwanted.discard(generation)
            self._reports.load_failed(generation, describe(error))
            return
        with self._lock:
            self._models[generation] = model
            is_unwanted = generation in self._unwanted
            self._unwanted.discard(generation)
            if not is_unwanted:
                model.connect(self._endpoints)
        if is_unwanted:
            self._unload(generation)
            return
        _log.info(
            "model loaded",
            model=source.config.name,
            version=source.version,
            instances=len(model.instances),
        )
        self._reports.loaded(generation, model.memory)

    def _make(self, order: LoadOrder, source: ModelSource) -> _Loaded:
        """Load a model and warm its instances up; they dial nobody yet."""
        turns: tuple[InstanceTurns | None, ...] = (None,) * len(order.places)
        if self._turns is not None:
            turns = self._turns.admit(source.config, order.places)
        try:
            return self._make_instances(order, source, turns)
        except Exception:
            close_all(turns)
            raise

    def _make_instances(
        self,
        order: LoadOrder,
        source: ModelSource,
        turns: Sequence[InstanceTurns | None],
    ) -> _Loaded:
        before = measure(source.device)
        keys = [seat_key(source, place, order.fingerprint) for place in order.places]
        found = [self._seats.take(key) for key in keys]
        missing = [
            (place, key)
            for place, key, seat in zip(order.places, keys, found, strict=True)
            if seat is None
        ]
        try:
            fresh = self._seating.make(source, missing)
        except Exception:
            for backend in self._seats.release(seat for seat in found if seat):
                let_go(backend)
            raise
        self._seats.offer(fresh)
        rest = iter(fresh)
        seats = tuple(seat or next(rest) for seat in found)
        instances = tuple(
            Instance(place.name, seat.run, partial(self._dial, order, place.name), turn)
            for place, seat, turn in zip(order.places, seats, turns, strict=True)
        )
        if source.config.sequence_batching is not None:
            for instance, seat in zip(instances, seats, strict=True):
                if isinstance(seat.backend, Forgetting):
                    seat.backend.when_forgotten(instance.forget)
        memory = measure(source.device).since(before)
        return _Loaded(seats=seats, instances=instances, memory=memory)

    def _unload(self, generation: int) -> None:
        with self._lock:
            model = self._models.pop(generation, None)
        if model is not None:
            for instance in model.instances:
                instance.stop()
            for backend in self._seats.release(model.seats):
                let_go(backend)
            del model
            gc.collect()
        self._reports.unloaded(generation)

    def _inspect(self, inspection: int, source: ModelSource) -> None:
        try:
            found = self._find_runtime(source).inspect(source)
        except Exception as error:  # noqa: BLE001 - the boundary: it is reported
            self._reports.inspection_failed(inspection, describe(error))
            return
        self._reports.inspected(inspection, found)
