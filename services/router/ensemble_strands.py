"""One request's way through an ensemble with decoupled steps. Pure.

A decoupled step returns any number of responses. With each begins a strand: what
follows from the step runs once in every strand, what does not runs once, and every
strand of the last such step gives one response of the ensemble, in order.

Source: Triton's user guide, "Ensemble Models", and its restriction that a step may
not read from two decoupled steps neither of which follows from the other.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from services.core.errors import UnsupportedError
from services.router.ensemble_plan import EnsemblePlan

TensorT = TypeVar("TensorT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Which steps of a plan run in whose strands.

    Attributes:
        plan: The graph.
        decoupled: Its decoupled steps that the results depend on, in their order.
        layer_of: By step, how many decoupled steps it follows from.
        written: Tensors that some step writes.
    """

    plan: EnsemblePlan
    decoupled: tuple[int, ...]
    layer_of: Mapping[int, int]
    written: frozenset[str]


def layers_of(plan: EnsemblePlan, decoupled: Collection[int]) -> Layers:
    """Return how a plan with decoupled steps runs.

    Raises:
        UnsupportedError: two decoupled steps meet, and neither follows from the
            other.
    """
    writers = {t: i for i, step in plan.steps.items() for _, t in step.outputs}
    above: dict[int, frozenset[int]] = {}

    def reach(step: int) -> frozenset[int]:
        """Return the decoupled steps that ``step`` follows from."""
        if step not in above:
            found: set[int] = set()
            for _, tensor in plan.steps[step].inputs:
                if tensor in writers:
                    found |= _with_itself(writers[tensor])
            above[step] = frozenset(found)
        return above[step]

    def _with_itself(step: int) -> frozenset[int]:
        own = {step} if step in decoupled else set()
        return reach(step) | own

    chain: tuple[int, ...] = ()
    for step in plan.steps:
        way = tuple(sorted(_with_itself(step), key=lambda i: len(reach(i))))
        shorter, longer = sorted((chain, way), key=len)
        if longer[: len(shorter)] != shorter:
            raise UnsupportedError(_meet(plan, step))
        chain = longer
    return Layers(
        plan=plan,
        decoupled=chain,
        layer_of={step: len(reach(step)) for step in plan.steps},
        written=frozenset(writers),
    )


def _meet(plan: EnsemblePlan, step: int) -> str:
    return (
        f"in ensemble '{plan.name}', step of model '{plan.steps[step].model}': two "
        "decoupled steps, neither of which follows from the other, cannot be in one "
        "request"
    )


@dataclass(slots=True, eq=False)
class Strand(Generic[TensorT]):
    """What follows from one response of a decoupled step; the first from none.

    Attributes:
        parent: That it follows from.
        layer: How many decoupled steps it follows from.
        tensors: What was returned in it.
        children: Those that follow from it and are not over, in order.
        begun: Steps that were submitted.
        is_producer_over: Whether the decoupled step of this strand has ended.
    """

    parent: "Strand[TensorT] | None"
    layer: int
    tensors: dict[str, TensorT]
    children: "deque[Strand[TensorT]]" = field(default_factory=deque)
    begun: set[int] = field(default_factory=set)
    is_producer_over: bool = False

    def find(self, tensor: str) -> TensorT | None:
        """Return a tensor of this strand or of one that it follows from."""
        strand: Strand[TensorT] | None = self
        while strand is not None:
            if tensor in strand.tensors:
                return strand.tensors[tensor]
            strand = strand.parent
        return None


@dataclass(frozen=True, slots=True)
class Turn(Generic[TensorT]):
    """What to do next.

    Attributes:
        run: Steps to submit, and the strands they run in.
        answers: The strands whose responses are due, in order.
        is_done: Whether there will be no more of either.
    """

    run: tuple[tuple[Strand[TensorT], int], ...] = ()
    answers: tuple[Strand[TensorT], ...] = ()
    is_done: bool = False


class Strands(Generic[TensorT]):
    """All strands of one request."""

    __slots__ = ("_layers", "_root")

    def __init__(self, layers: Layers) -> None:
        """Begin with nothing."""
        self._layers = layers
        self._root: Strand[TensorT] = Strand(None, 0, {})

    def begin(self, given: Mapping[str, TensorT]) -> Turn[TensorT]:
        """Start with what the client sent."""
        self._root.tensors.update(given)
        return self._turn(self._root)

    def answered(
        self, strand: Strand[TensorT], step: int, outputs: Mapping[str, TensorT]
    ) -> Turn[TensorT]:
        """Take in what a step that is not decoupled returned.

        Raises:
            LookupError: an output is missing; the argument is its name.
        """
        strand.tensors.update(self._named(step, outputs))
        return self._turn(strand)

    def responded(
        self, strand: Strand[TensorT], step: int, outputs: Mapping[str, TensorT]
    ) -> Turn[TensorT]:
        """Take in one response of a decoupled step.

        Raises:
            LookupError: an output is missing; the argument is its name.
        """
        fork = Strand(strand, strand.layer + 1, self._named(step, outputs))
        strand.children.append(fork)
        return self._turn(fork)

    def ended(self, strand: Strand[TensorT]) -> Turn[TensorT]:
        """Hear that the decoupled step of a strand returns nothing more."""
        strand.is_producer_over = True
        return self._turn(strand)

    def _named(self, step: int, outputs: Mapping[str, TensorT]) -> dict[str, TensorT]:
        named = {}
        for name, tensor in self._layers.plan.steps[step].outputs:
            if name not in outputs:
                raise LookupError(name)
            named[tensor] = outputs[name]
        return named

    def _turn(self, changed: Strand[TensorT]) -> Turn[TensorT]:
        run = tuple(self._ready(changed))
        answers: list[Strand[TensorT]] = []
        is_done = self._collect(self._root, answers)
        return Turn(run, tuple(answers), is_done)

    def _ready(self, strand: Strand[TensorT]) -> Iterator[tuple[Strand[TensorT], int]]:
        """Yield what can run in ``strand`` and in those that follow from it."""
        layers = self._layers
        for i, step in layers.plan.steps.items():
            if layers.layer_of[i] == strand.layer and i not in strand.begun:
                needed = (t for _, t in step.inputs if t in layers.written)
                if all(strand.find(tensor) is not None for tensor in needed):
                    strand.begun.add(i)
                    yield strand, i
        for child in strand.children:
            yield from self._ready(child)

    def _collect(self, strand: Strand[TensorT], answers: list[Strand[TensorT]]) -> bool:
        """Add the responses that are due; whether ``strand`` gives no more."""
        if strand.layer == len(self._layers.decoupled):
            results = self._layers.plan.results
            wanted = (t for t in results if t in self._layers.written)
            if all(strand.find(tensor) is not None for tensor in wanted):
                answers.append(strand)
                return True
            return False
        while strand.children:
            if not self._collect(strand.children[0], answers):
                return False
            strand.children.popleft()
        return strand.is_producer_over
