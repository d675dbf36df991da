"""The graph of an ensemble, and one request's way through it. Pure.

Steps are tied by the names of the ensemble's tensors alone: one runs as soon as all
it reads is there, whatever the order in the file, so branches run side by side.

Source: Triton's user guide, "Ensemble Models"; like Triton, a request that asks for
some of the outputs runs only the steps that lead to them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from services.core.model_config import ModelConfig

TensorT = TypeVar("TensorT")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One call of a model.

    Attributes:
        model: Its name.
        version: As the protocol writes it; "" for the newest.
        inputs: Pairs of the model's input and the ensemble's tensor.
        outputs: Pairs of the model's output and the ensemble's tensor.
    """

    model: str
    version: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsemblePlan:
    """What has to be run for some outputs of an ensemble.

    Attributes:
        name: Of the ensemble.
        steps: By their place in the configuration; those not needed are left out.
        results: Tensors that the answer has, in the order of the configuration.
        readers: By tensor, the steps that read it, each once.
        awaited: By step, how many tensors it reads that other steps write.
        awaited_results: Those of ``results`` that steps write.
        first: The steps that wait for no other.
    """

    name: str
    steps: Mapping[int, PlannedStep]
    results: tuple[str, ...]
    readers: Mapping[str, tuple[int, ...]]
    awaited: Mapping[int, int]
    awaited_results: frozenset[str]
    first: tuple[int, ...]

    def narrowed(self, results: Collection[str]) -> "EnsemblePlan":
        """Return the plan that answers with ``results`` only."""
        writers = {
            tensor: i for i, step in self.steps.items() for _, tensor in step.outputs
        }
        wanted, needed = list(results), set[int]()
        while wanted:
            writer = writers.get(wanted.pop())
            if writer is not None and writer not in needed:
                needed.add(writer)
                wanted += [tensor for _, tensor in self.steps[writer].inputs]
        steps = {i: self.steps[i] for i in sorted(needed)}
        read = {tensor for step in steps.values() for _, tensor in step.inputs}
        used = read | set(results)
        return _plan(
            self.name,
            {
                i: replace(
                    step,
                    outputs=tuple(pair for pair in step.outputs if pair[1] in used),
                )
                for i, step in steps.items()
            },
            tuple(name for name in self.results if name in results),
        )


def plan_of(config: ModelConfig) -> EnsemblePlan:
    """Return how a request for all outputs of an ensemble runs.

    Args:
        config: Validated: every tensor is written once and leads somewhere.
    """
    steps = config.ensemble.steps if config.ensemble is not None else ()
    return _plan(
        config.name,
        {
            i: PlannedStep(
                model=step.model_name,
                version="" if step.model_version is None else str(step.model_version),
                inputs=tuple(sorted(step.input_map.items())),
                outputs=tuple(sorted(step.output_map.items())),
            )
            for i, step in enumerate(steps)
        },
        tuple(output.name for output in config.outputs),
    )


def _plan(
    name: str, steps: Mapping[int, PlannedStep], results: tuple[str, ...]
) -> EnsemblePlan:
    written = {tensor for step in steps.values() for _, tensor in step.outputs}
    readers: dict[str, tuple[int, ...]] = {}
    awaited: dict[int, int] = {}
    for i, step in steps.items():
        read = {tensor for _, tensor in step.inputs}
        awaited[i] = len(read & written)
        for tensor in read:
            readers[tensor] = (*readers.get(tensor, ()), i)
    return EnsemblePlan(
        name=name,
        steps=steps,
        results=results,
        readers=readers,
        awaited=awaited,
        awaited_results=frozenset(results) & written,
        first=tuple(i for i, count in awaited.items() if not count),
    )


@dataclass(frozen=True, slots=True)
class Move:
    """What to do next with a request.

    Attributes:
        run: Steps whose inputs are all there, each named once in a request's life.
        is_done: All results are there: answer.
        problem: Not empty: it cannot go on, and this is why.
    """

    run: tuple[int, ...] = ()
    is_done: bool = False
    problem: str = ""


_WAIT = Move()


@dataclass(slots=True)
class Progress(Generic[TensorT]):
    """One request on its way.

    Attributes:
        plan: What is run.
        tensors: What is there so far, by the ensemble's names. What the client left
            out is not, and a step that would read it runs without.
    """

    plan: EnsemblePlan
    tensors: dict[str, TensorT] = field(default_factory=dict)
    # How many tensors each step, and the answer, still waits for.
    _missing: dict[int, int] = field(default_factory=dict)
    _wanted: int = 0

    def begin(self, given: Mapping[str, TensorT]) -> Move:
        """Start with what the client sent."""
        plan = self.plan
        self.tensors.update(given)
        self._missing = dict(plan.awaited)
        self._wanted = len(plan.awaited_results)
        return Move(run=plan.first, is_done=not self._wanted)

    def answered(self, step: int, outputs: Mapping[str, TensorT]) -> Move:
        """Take in the outputs of a step, by its model's names; once for each step."""
        plan, missing = self.plan, self._missing
        planned = plan.steps[step]
        ready: list[int] = []
        for name, tensor in planned.outputs:
            if name not in outputs:
                problem = (
                    f"in ensemble '{plan.name}', model '{planned.model}' returned "
                    f"no output '{name}'"
                )
                return Move(problem=problem)
            self.tensors[tensor] = outputs[name]
            if tensor in plan.awaited_results:
                self._wanted -= 1
            for reader in plan.readers.get(tensor, ()):
                missing[reader] -= 1
                if not missing[reader]:
                    ready.append(reader)
        if not self._wanted:
            return Move(is_done=True)
        return Move(run=tuple(ready)) if ready else _WAIT
