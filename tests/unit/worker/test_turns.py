"""Instances that execute by turns, with routers that are puppets."""

import threading
from collections.abc import Iterator

import pytest

from protos import worker_pb2
from services.core.errors import ConfigError
from services.core.model_config import InstanceGroup, ModelConfig
from services.core.model_config_placement import (
    InstanceKind,
    RateLimiter,
    RateLimiterResource,
)
from services.core.rate_limits import ResourceAmount
from services.worker.backend import InstancePlace
from services.worker.instance import Instance
from services.worker.turns import Turns
from tests.unit.worker.messages import batch
from tests.unit.worker.onnx_models import config
from tests.unit.worker.puppets import WAIT_S, PuppetRouters, PuppetStream

ASKS = worker_pb2.BatchRequest(asks_turn=True).SerializeToString()
PASSES = worker_pb2.BatchRequest(passes_turn=True).SerializeToString()
TURN = worker_pb2.BatchResponse(turn=True).SerializeToString()
BATCH = batch(b"request")


def limited(*counts: int) -> ModelConfig:
    """Return a model with a group for each count of a resource; 0: no limit."""
    groups = tuple(
        InstanceGroup(
            name=f"m_{number}",
            kind=InstanceKind.CPU,
            count=1,
            rate_limiter=RateLimiter(
                resources=(RateLimiterResource(name="r", count=count),)
            )
            if count
            else None,
        )
        for number, count in enumerate(counts)
    )
    return ModelConfig(
        **{
            field: getattr(config({"A": [4]}, {"B": [4]}), field)
            for field in ("name", "backend", "max_batch_size", "inputs", "outputs")
        },
        instance_groups=groups,
    )


def places(of: ModelConfig) -> list[InstancePlace]:
    groups = enumerate(of.instance_groups)
    return [InstancePlace(name=group.name, group=n) for n, group in groups]


class Device:
    """Two instances that need the same resource, each with a stream to a router."""

    def __init__(self) -> None:
        self.inside = self.most_inside = 0
        self.routers = PuppetRouters()
        self.begun = [threading.Event() for _ in range(2)]
        self.go_on = [threading.Event() for _ in range(2)]
        of = limited(1, 1)
        self.instances = [
            Instance(f"m_{n}", self._run(n), self.routers.open, turns)
            for n, turns in enumerate(Turns().admit(of, places(of)))
        ]
        self.streams: list[PuppetStream] = []
        for instance in self.instances:
            instance.connect(["r1"])
            self.streams.append(self.routers.accept())

    def _run(self, number: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
        def run(message: bytes) -> bytes:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            self.begun[number].set()
            assert self.go_on[number].wait(WAIT_S)
            self.inside -= 1
            return message

        return run

    def leave(self) -> None:
        for event in self.go_on:
            event.set()
        for instance, stream in zip(self.instances, self.streams, strict=True):
            thread = threading.Thread(target=instance.stop)
            thread.start()
            stream.end()
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.fixture
def device() -> Iterator[Device]:
    device = Device()
    yield device
    device.leave()


def test_a_turn_is_given_where_the_resource_is_free(device: Device) -> None:
    first, second = device.streams
    first.deliver(ASKS)
    assert first.sent.get(timeout=WAIT_S) == TURN
    second.deliver(ASKS)
    first.deliver(PASSES)
    assert second.sent.get(timeout=WAIT_S) == TURN


def test_the_resource_is_held_until_the_batch_is_executed(device: Device) -> None:
    first, second = device.streams
    first.deliver(ASKS)
    assert first.sent.get(timeout=WAIT_S) == TURN
    first.deliver(BATCH)
    assert device.begun[0].wait(WAIT_S)
    second.deliver(ASKS)
    second.deliver(ASKS)  # once is enough
    device.go_on[0].set()
    assert first.sent.get(timeout=WAIT_S) == BATCH
    assert second.sent.get(timeout=WAIT_S) == TURN
    assert second.sent.empty()


def test_a_batch_that_nobody_asked_a_turn_for_waits_for_one(device: Device) -> None:
    first, second = device.streams
    first.deliver(BATCH)
    assert device.begun[0].wait(WAIT_S)
    second.deliver(BATCH)
    device.go_on[0].set()
    assert first.sent.get(timeout=WAIT_S) == BATCH
    device.go_on[1].set()
    assert second.sent.get(timeout=WAIT_S) == BATCH
    assert device.most_inside == 1


def test_two_routers_share_one_instance_turn_by_turn(device: Device) -> None:
    device.instances[0].connect(["r1", "r2"])
    one, two = device.streams[0], device.routers.accept()
    device.go_on[0].set()
    one.deliver(ASKS)
    assert one.sent.get(timeout=WAIT_S) == TURN
    two.deliver(ASKS)
    one.deliver(BATCH)
    assert one.sent.get(timeout=WAIT_S) == BATCH
    assert two.sent.get(timeout=WAIT_S) == TURN
    one.deliver(ASKS)
    two.deliver(BATCH)
    assert two.sent.get(timeout=WAIT_S) == BATCH
    assert one.sent.get(timeout=WAIT_S) == TURN
    device.instances[0].connect(["r1"])
    two.end()


def test_a_router_that_is_lost_loses_its_turn(device: Device) -> None:
    first, second = device.streams
    first.deliver(ASKS)
    assert first.sent.get(timeout=WAIT_S) == TURN
    first.end()
    device.streams[0] = device.routers.accept()
    second.deliver(ASKS)
    assert second.sent.get(timeout=WAIT_S) == TURN


def test_an_execution_that_fails_gives_back_what_it_held(device: Device) -> None:
    first, second = device.streams

    def fail(_: bytes) -> bytes:
        raise RuntimeError("no answer can be made")

    device.instances[0]._run = fail
    first.deliver(BATCH)
    assert first.cancelled.wait(WAIT_S)
    device.streams[0] = device.routers.accept()
    second.deliver(ASKS)
    assert second.sent.get(timeout=WAIT_S) == TURN


def test_an_instance_without_resources_is_not_limited() -> None:
    of = limited(0, 1)
    unlimited, limits = Turns().admit(of, places(of))
    assert unlimited is None
    assert limits is not None


def test_a_model_is_in_as_a_whole_or_not_at_all() -> None:
    turns = Turns((ResourceAmount(name="r", count=2),))
    of = limited(2, 3)
    with pytest.raises(ConfigError, match="the minimum required count is 3"):
        turns.admit(of, places(of))
    fits = limited(2)
    (admitted,) = turns.admit(fits, places(fits))
    assert admitted is not None
    # Of the model that was refused nothing is left that would stand in the way.
    told: list[str] = []
    admitted.ask(admitted.claim(lambda: told.append("turn")))
    assert told == ["turn"]
