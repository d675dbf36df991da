"""Loading and unloading by order of control."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.datatype import DataType
from services.core.errors import (
    BackendError,
    ConfigError,
    InternalError,
    UnsupportedError,
)
from services.core.model_config_warmup import Warmup, WarmupData, WarmupInput
from services.worker.backend import (
    CompletedConfig,
    FoundModel,
    FoundTensor,
    InstancePlace,
    ModelSource,
    Tensors,
)
from services.worker.load_error import describe
from services.worker.loader import Loader, LoadOrder
from services.worker.memory import MemoryUse
from tests.unit.worker.messages import answers, batch, ints, request
from tests.unit.worker.onnx_models import source
from tests.unit.worker.puppets import (
    WAIT_S,
    ManualClock,
    PuppetBackend,
    PuppetRouters,
    PuppetStream,
)

FOUND = FoundModel(
    inputs=(FoundTensor(name="A", datatype=DataType.INT32, shape=(-1, 4)),), outputs=()
)


class RecordingReports:
    """What control would hear, in order."""

    def __init__(self) -> None:
        self._heard: queue.Queue[tuple[object, ...]] = queue.Queue()

    def next(self) -> tuple[object, ...]:
        return self._heard.get(timeout=WAIT_S)

    def is_silent(self) -> bool:
        return self._heard.empty()

    def loaded(self, generation: int, memory: MemoryUse) -> None:
        del memory
        self._heard.put(("loaded", generation))

    def load_failed(self, generation: int, message: str) -> None:
        self._heard.put(("failed", generation, message))

    def unloaded(self, generation: int) -> None:
        self._heard.put(("unloaded", generation))

    def readiness(self, question: int, *, is_ready: bool) -> None:
        self._heard.put(("readiness", question, is_ready))

    def inspected(self, inspection: int, found: FoundModel | CompletedConfig) -> None:
        self._heard.put(("inspected", inspection, found))

    def inspection_failed(self, inspection: int, message: str) -> None:
        self._heard.put(("not inspected", inspection, message))


class PuppetRuntime:
    """Loads puppets, when it is let."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: Exception | None = None
        self.answer: Callable[[Tensors], Tensors] | None = None
        self.kind = PuppetBackend
        self.backends: list[PuppetBackend] = []

    def load(
        self, source: ModelSource, places: Sequence[InstancePlace]
    ) -> Sequence[PuppetBackend]:
        del source
        self.begun.set()
        assert self.go_on.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        self.backends = [self.kind(self.answer) for _ in places]
        return self.backends

    def inspect(self, source: ModelSource) -> FoundModel:
        del source
        if self.error is not None:
            raise self.error
        return FOUND


class Stage:
    """A loader among puppets."""

    def __init__(self) -> None:
        self.reports = RecordingReports()
        self.runtime = PuppetRuntime()
        self.routers = PuppetRouters()
        self.dialled: list[tuple[int, str, str]] = []
        self.loader = Loader(
            lambda _: self.runtime, self._dial, ManualClock(), self.reports
        )

    def order(self, generation: int = 7, instances: int = 1) -> LoadOrder:
        return LoadOrder(
            generation=generation,
            source=source(Path("/nowhere")),
            places=tuple(
                InstancePlace(name=f"m_0_{n}", group=0) for n in range(instances)
            ),
        )

    def _dial(self, order: LoadOrder, name: str, endpoint: str) -> PuppetStream:
        self.dialled.append((order.generation, name, endpoint))
        return self.routers.open(endpoint)

    def during(
        self, action: Callable[[], None], *streams: PuppetStream
    ) -> threading.Thread:
        """Do ``action`` while the routers let go of ``streams``."""
        thread = threading.Thread(target=action)
        thread.start()
        for stream in streams:
            assert stream.finished.wait(WAIT_S)
            stream.end()
        return thread


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.runtime.go_on.set()
    stage.loader.stop()


def test_a_loaded_model_serves_the_routers_and_is_reported(stage: Stage) -> None:
    stage.loader.connect(["r1"])
    stage.loader.load(stage.order())
    assert stage.reports.next() == ("loaded", 7)
    stream = stage.routers.accept()
    a, b = ints(1, 2, 3, 4), ints(1, 1, 1, 1)
    stream.deliver(batch(request({"A": a, "B": b})))
    (answer,) = answers(stream.sent.get(timeout=WAIT_S))
    assert answer.array("SUM").tolist() == [[2, 3, 4, 5]]
    assert stage.dialled == [(7, "m_0_0", "r1")]
    assert stage.loader.generations() == (7,)
    stage.during(stage.loader.stop, stream).join()


def warming_order(stage: Stage) -> LoadOrder:
    zeros = WarmupInput(datatype=DataType.INT32, dims=(4,), data=WarmupData.ZERO)
    sample = Warmup(name="w", batch_size=2, inputs={"A": zeros, "B": zeros})
    order = stage.order()
    config = replace(order.source.config, warmups=(sample,))
    return replace(order, source=replace(order.source, config=config))


def test_a_model_is_warm_before_a_router_hears_of_it(stage: Stage) -> None:
    stage.loader.load(warming_order(stage))
    assert stage.reports.next() == ("loaded", 7)
    ((warmed,),) = [backend.batches for backend in stage.runtime.backends]
    assert warmed["A"].shape == (2, 4)
    assert stage.dialled == []


def test_a_model_that_fails_its_warm_up_is_not_kept(stage: Stage) -> None:
    def fail(_: Tensors) -> Tensors:
        raise BackendError("no weights")

    stage.runtime.answer = fail
    stage.loader.connect(["r1"])
    stage.loader.load(warming_order(stage))
    reason = "Internal: failed to run warmup sample 'w': no weights"
    assert stage.reports.next() == ("failed", 7, reason)
    assert [backend.is_unloaded for backend in stage.runtime.backends] == [True]
    assert stage.dialled == []


def test_more_instances_load_only_what_is_missing(stage: Stage) -> None:
    stage.loader.connect(["r1"])
    first = replace(stage.order(7), fingerprint="same")
    stage.loader.load(first)
    assert stage.reports.next() == ("loaded", 7)
    stage.routers.accept()
    (kept,) = stage.runtime.backends
    stage.loader.load(replace(stage.order(8, instances=2), fingerprint="same"))
    assert stage.reports.next() == ("loaded", 8)
    assert len(stage.runtime.backends) == 1  # of the second loading
    assert stage.runtime.backends[0] is not kept
    assert sorted(stage.dialled)[1:] == [(8, "m_0_0", "r1"), (8, "m_0_1", "r1")]


def test_a_backend_that_was_taken_over_outlives_its_first_generation(
    stage: Stage,
) -> None:
    for generation in (7, 8):
        stage.loader.load(replace(stage.order(generation), fingerprint="same"))
        assert stage.reports.next() == ("loaded", generation)
    (kept,) = stage.runtime.backends
    stage.loader.unload(7)
    assert stage.reports.next() == ("unloaded", 7)
    assert not kept.is_unloaded
    stage.loader.unload(8)
    assert stage.reports.next() == ("unloaded", 8)
    assert kept.is_unloaded


def test_what_is_being_unloaded_is_not_taken_over(stage: Stage) -> None:
    stage.loader.connect(["r1"])
    stage.loader.load(replace(stage.order(7), fingerprint="same"))
    assert stage.reports.next() == ("loaded", 7)
    stream = stage.routers.accept()
    (old,) = stage.runtime.backends
    stage.loader.unload(7)
    assert stream.finished.wait(WAIT_S)
    stage.loader.load(replace(stage.order(8), fingerprint="same"))
    assert stage.reports.next() == ("loaded", 8)
    (new,) = stage.runtime.backends
    assert new is not old
    stream.end()
    assert stage.reports.next() == ("unloaded", 7)
    assert (old.is_unloaded, new.is_unloaded) == (True, False)


def test_routers_that_come_later_are_dialled_by_all_instances(stage: Stage) -> None:
    stage.loader.load(stage.order(instances=2))
    assert stage.reports.next() == ("loaded", 7)
    stage.loader.connect(["r1"])
    streams = [stage.routers.accept(), stage.routers.accept()]
    assert sorted(stage.dialled) == [(7, "m_0_0", "r1"), (7, "m_0_1", "r1")]
    stage.during(stage.loader.stop, *streams).join()


def test_an_unloaded_model_leaves_its_routers_and_its_memory(stage: Stage) -> None:
    stage.loader.connect(["r1"])
    stage.loader.load(stage.order())
    assert stage.reports.next() == ("loaded", 7)
    stream = stage.routers.accept()
    stage.during(lambda: stage.loader.unload(7), stream).join()
    assert stage.reports.next() == ("unloaded", 7)
    assert stream.closed.is_set()
    assert [backend.is_unloaded for backend in stage.runtime.backends] == [True]
    assert stage.loader.generations() == ()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            BackendError("onnx runtime error 7: no"),
            "Internal: onnx runtime error 7: no",
        ),
        (ConfigError("no such input"), "Invalid argument: no such input"),
        (UnsupportedError("decoupled"), "Unsupported: decoupled"),
        (KeyError("x"), "Internal: KeyError: 'x'"),
        (MemoryError("64 GiB"), "Internal: MemoryError: 64 GiB"),
    ],
)
def test_a_failure_is_reported_in_words_and_leaves_nothing(
    stage: Stage, error: Exception, text: str
) -> None:
    stage.runtime.error = error
    stage.loader.load(stage.order())
    assert stage.reports.next() == ("failed", 7, text)
    assert stage.loader.generations() == ()
    stage.runtime.error = None
    stage.loader.load(stage.order())
    assert stage.reports.next() == ("loaded", 7)


def test_an_order_repeated_while_loading_loads_once(stage: Stage) -> None:
    stage.runtime.go_on.clear()
    stage.loader.load(stage.order())
    assert stage.runtime.begun.wait(WAIT_S)
    stage.loader.load(stage.order())
    assert stage.loader.generations() == ()
    stage.runtime.go_on.set()
    assert stage.reports.next() == ("loaded", 7)
    # A control that lost the report asks again.
    stage.loader.load(stage.order())
    assert stage.reports.next() == ("loaded", 7)
    assert stage.reports.is_silent()


def test_what_is_unloaded_while_it_loads_never_serves(stage: Stage) -> None:
    stage.loader.connect(["r1"])
    stage.runtime.go_on.clear()
    stage.loader.load(stage.order())
    assert stage.runtime.begun.wait(WAIT_S)
    stage.loader.unload(7)
    stage.runtime.go_on.set()
    assert stage.reports.next() == ("unloaded", 7)
    assert stage.dialled == []
    assert [backend.is_unloaded for backend in stage.runtime.backends] == [True]


def test_a_backend_that_fails_to_unload_is_gone_all_the_same(stage: Stage) -> None:
    class Stubborn(PuppetBackend):
        def unload(self) -> None:
            super().unload()
            raise BackendError("I stay")

    stage.runtime.kind = Stubborn
    stage.loader.load(stage.order(instances=2))
    assert stage.reports.next() == ("loaded", 7)
    stage.loader.unload(7)
    assert stage.reports.next() == ("unloaded", 7)
    assert [backend.is_unloaded for backend in stage.runtime.backends] == [True] * 2


def test_unloading_what_is_not_there_is_confirmed(stage: Stage) -> None:
    stage.loader.unload(99)
    assert stage.reports.next() == ("unloaded", 99)


def test_generations_are_independent(stage: Stage) -> None:
    for generation in (1, 2):
        stage.loader.load(stage.order(generation))
        assert stage.reports.next() == ("loaded", generation)
    stage.loader.unload(1)
    assert stage.reports.next() == ("unloaded", 1)
    assert stage.loader.generations() == (2,)


def test_an_inspection_is_reported(stage: Stage) -> None:
    stage.loader.inspect(5, source(Path("/nowhere")))
    assert stage.reports.next() == ("inspected", 5, FOUND)
    stage.runtime.error = BackendError("unreadable")
    stage.loader.inspect(6, source(Path("/nowhere")))
    assert stage.reports.next() == ("not inspected", 6, "Internal: unreadable")


class ModestBackend(PuppetBackend):
    """Says that it is not ready."""

    def is_ready(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("kind", "is_ready"), [(PuppetBackend, True), (ModestBackend, False)]
)
def test_instances_that_may_know_it_are_asked_whether_they_are_ready(
    stage: Stage, kind: type[PuppetBackend], *, is_ready: bool
) -> None:
    stage.runtime.kind = kind
    stage.loader.load(stage.order(7, instances=2))
    assert stage.reports.next() == ("loaded", 7)
    stage.loader.check_readiness(3, 7)
    assert stage.reports.next() == ("readiness", 3, is_ready)


def test_what_is_not_loaded_is_not_ready(stage: Stage) -> None:
    stage.loader.check_readiness(4, 99)
    assert stage.reports.next() == ("readiness", 4, False)


def test_internal_errors_are_called_so() -> None:
    assert describe(InternalError("x")) == "Internal: x"
