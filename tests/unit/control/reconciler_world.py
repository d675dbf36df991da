"""A world for reconciler tests: puppet workers that do what they are told."""

from collections.abc import Mapping, Sequence

from services.control.events import (
    Action,
    Event,
    InstancesLoaded,
    InstancesUnloaded,
    LoadInstances,
    ModelDesired,
    PublishRoutes,
    UnloadInstances,
    WorkerJoined,
    WorkerLeft,
)
from services.control.model_registry import (
    DeviceKind,
    PlacedInstance,
    VersionSpec,
    Worker,
)
from services.control.placement import Placed
from services.control.reconciler import Reconciler
from services.core.lifecycle import ModelState


def spec(
    model: str = "m",
    version: int = 1,
    *,
    content: str = "a",
    backend: str = "onnxruntime",
    refusal: str = "",
) -> VersionSpec:
    return VersionSpec(
        model=model,
        version=version,
        config=content.encode(),
        backend=backend,
        directory=f"/models/{model}/{version}",
        fingerprint=content,
        refusal=refusal,
    )


def worker(name: str, *, gpu: bool = False) -> Worker:
    return Worker(
        worker_id=name,
        host="h",
        device=DeviceKind.GPU if gpu else DeviceKind.CPU,
        backends=frozenset({"onnxruntime"}),
    )


def place_two(
    spec: VersionSpec,
    workers: Sequence[Worker],
    load: Mapping[str, int],  # noqa: ARG001
) -> Placed:
    """Two instances, dealt out in turn.

    The backend "gpu" wants GPUs, "both" one instance on a CPU and one on a GPU.
    """
    if spec.backend == "both":
        return place_on_both(workers)
    suitable = [
        each
        for each in workers
        if spec.backend != "gpu" or each.device is DeviceKind.GPU
    ]
    if not suitable:
        return Placed(instances={}, problems=("no GPUs are available",))
    placement: dict[str, tuple[PlacedInstance, ...]] = {}
    for i in range(2):
        chosen = suitable[i % len(suitable)].worker_id
        instance = PlacedInstance(name=f"{spec.model}_0_{i}", group=0)
        placement[chosen] = (*placement.get(chosen, ()), instance)
    return Placed(instances=placement)


def place_on_both(workers: Sequence[Worker]) -> Placed:
    placement = {}
    problems = []
    for group, kind in enumerate((DeviceKind.CPU, DeviceKind.GPU)):
        able = [each.worker_id for each in workers if each.device is kind]
        if able:
            instance = PlacedInstance(name=f"m_{group}_0", group=group)
            placement[able[0]] = (instance,)
        else:
            problems.append(f"no {kind.value} is available")
    return Placed(instances=placement, problems=tuple(problems))


class World:
    """A reconciler, and every order it has given that nobody has obeyed yet."""

    def __init__(self, reconciler: Reconciler | None = None) -> None:
        self.reconciler = reconciler or Reconciler(place_two)
        self.orders: list[LoadInstances | UnloadInstances] = []
        self.served: dict[str, set[int]] = {}
        self.actions: tuple[Action, ...] = ()

    def step(self, event: Event) -> tuple[Action, ...]:
        self.actions = self.reconciler.step(event)
        for action in self.actions:
            if isinstance(action, LoadInstances | UnloadInstances):
                self.orders.append(action)
        return self.actions

    def desire(self, *specs: VersionSpec) -> tuple[Action, ...]:
        return self.step(ModelDesired(model=specs[0].model, specs=specs))

    def join(self, name: str, *, gpu: bool = False) -> tuple[Action, ...]:
        served = self.served.setdefault(name, set())
        joined = worker(name, gpu=gpu)
        return self.step(WorkerJoined(worker=joined, generations=frozenset(served)))

    def lose(self, name: str, *, dies: bool = True) -> tuple[Action, ...]:
        self.orders = [each for each in self.orders if each.worker_id != name]
        if dies:
            self.served.pop(name, None)
        return self.step(WorkerLeft(worker_id=name))

    def obey(self) -> None:
        """Carry out every order, and those that follow from it."""
        while self.orders:
            order = self.orders.pop(0)
            served = self.served.setdefault(order.worker_id, set())
            if isinstance(order, LoadInstances):
                served.add(order.generation)
                self.step(
                    InstancesLoaded(
                        worker_id=order.worker_id, generation=order.generation
                    )
                )
            else:
                served.discard(order.generation)
                self.step(
                    InstancesUnloaded(
                        worker_id=order.worker_id, generation=order.generation
                    )
                )

    def state(self, model: str = "m", version: int = 1) -> ModelState:
        return self.route(model, version)[0]

    def route(self, model: str = "m", version: int = 1) -> tuple[ModelState, str, int]:
        """Return state, reason and serving generation, as routers see them."""
        for route in self.reconciler.table.versions:
            if (route.model, route.version) == (model, version):
                return (route.state, route.reason, route.generation)
        raise KeyError((model, version))

    def published(self) -> bool:
        return any(isinstance(each, PublishRoutes) for each in self.actions)

    def loads(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """Return the load orders of the last step: worker, generation, names."""
        return [
            (each.worker_id, each.generation, tuple(i.name for i in each.instances))
            for each in self.actions
            if isinstance(each, LoadInstances)
        ]

    def unloads(self) -> list[tuple[str, int]]:
        return [
            (each.worker_id, each.generation)
            for each in self.actions
            if isinstance(each, UnloadInstances)
        ]
