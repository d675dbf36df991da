"""The shell of ensembles with decoupled steps: many responses to one request.

All on the reactor's thread.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import grpc

from services.core.wire_format import WireFormatError
from services.router.ensemble_calls import Member, ProducerCall, StepCall
from services.router.ensemble_strands import Layers, Strand, Strands, Turn
from services.router.ensemble_wire import (
    EnsembleRequest,
    Tensor,
    ensemble_response,
    read_response,
    step_request,
)
from services.router.route_table import Route
from services.router.streamed_replies import DecoupledRequest

_INTERNAL: Final[int] = grpc.StatusCode.INTERNAL.value[0]


class Owner(Protocol):
    """Who submits steps, and is told how a request ended."""

    @property
    def route(self) -> Route:
        """Of the ensemble."""
        ...

    def submit(self, call: StepCall, body: bytes) -> None:
        """Admit a step and hand it to its scheduler."""
        ...

    def streamed(self, run: "StreamedRun") -> None:
        """Hear that a request has had all its responses."""
        ...

    def failed(self, run: "StreamedRun", code: int, details: str) -> None:
        """Tell the client of ``run`` that it failed."""
        ...


class StreamedRun:
    """One request of an ensemble with decoupled steps under way."""

    __slots__ = (
        "_ahead",
        "_calls",
        "_held",
        "_inflight",
        "_is_over",
        "_is_slow",
        "_layers",
        "_limit",
        "_members",
        "_owner",
        "_strands",
        "_wire",
        "began_ns",
        "request",
    )

    def __init__(
        self,
        owner: Owner,
        request: DecoupledRequest,
        wire: EnsembleRequest,
        members: Mapping[int, Member],
        layers: Layers,
        *,
        limit: int = 0,
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            owner: Submits the steps and is told of the end.
            request: Whom to answer.
            wire: Its contents.
            members: By step, who executes it; kept to the end.
            layers: The graph.
            limit: How often each step may be under way at once; 0: as often as
                there are responses to run it for.
        """
        self._owner = owner
        self.request = request
        self._wire = wire
        self._members = members
        self._layers = layers
        self._strands: Strands[Tensor] = Strands(layers)
        self._calls: dict[StepCall, Strand[Tensor]] = {}
        self._limit = limit
        self._inflight: Counter[int] = Counter()
        self._held: dict[int, deque[Strand[Tensor]]] = {}
        # Whose responses are held.
        self._ahead: set[ProducerCall] = set()
        self._is_over = False
        self._is_slow = False
        self.began_ns = 0

    def begin(self) -> None:
        """Submit the steps that need nothing but the client's tensors."""
        self.began_ns = time.monotonic_ns()
        self.request.pace = self._pace
        self._take(self._strands.begin(self._wire.tensors))

    def step_answered(self, call: StepCall, message: bytes) -> None:
        """Go on with what a step has returned."""
        strand = self._calls.pop(call)
        self._take_in(call, strand, message, self._strands.answered)
        self._release(call.step)

    def step_responded(self, call: StepCall, message: bytes) -> None:
        """Go on with one response of a decoupled step."""
        held = self._held_count
        self._take_in(call, self._calls[call], message, self._strands.responded)
        if isinstance(call, ProducerCall) and call in self._calls:
            if self._held_count > held:
                self._ahead.add(call)
            call.slow_down(is_slow=self._is_slow or call in self._ahead)

    def step_ended(self, call: StepCall) -> None:
        """Expect nothing more of a decoupled step."""
        strand = self._calls.pop(call, None)
        if strand is not None:
            self._take(self._strands.ended(strand))
            self._release(call.step)

    def step_failed(
        self,
        call: StepCall,  # noqa: ARG002 - of a Run
        code: int,
        details: str,
    ) -> None:
        """End with the step's error; the rest is dropped."""
        self._end_with(code, f"in ensemble '{self._owner.route.model}', {details}")

    def drop(self) -> None:
        """Cancel all steps under way."""
        self.request.pace = None
        self._is_over = True
        calls, self._calls = self._calls, {}
        for call in calls:
            if call.open:
                call.leave()

    def _take_in(
        self,
        call: StepCall,
        strand: Strand[Tensor],
        message: bytes,
        take: Callable[[Strand[Tensor], int, Mapping[str, Tensor]], Turn[Tensor]],
    ) -> None:
        try:
            turn = take(strand, call.step, read_response(message))
        except (WireFormatError, UnicodeDecodeError):
            self._end_with(_INTERNAL, "a step's answer could not be read")
        except LookupError as error:
            model = self._layers.plan.steps[call.step].model
            self._end_with(
                _INTERNAL,
                f"in ensemble '{self._owner.route.model}', model '{model}' returned no "
                f"output '{error.args[0]}'",
            )
        else:
            self._take(turn)

    def _take(self, turn: Turn[Tensor]) -> None:
        for strand in turn.answers:
            self.request.respond(self._response(strand), final=False)
        if turn.is_done:
            self.drop()
            self.request.respond(None, final=True)
            self._owner.streamed(self)
            return
        for strand, step in turn.run:
            if self._is_over:
                return  # one that fails at once ends the run
            if 0 < self._limit <= self._inflight[step]:
                self._held.setdefault(step, deque()).append(strand)
            else:
                self._submit(strand, step)

    def _release(self, step: int) -> None:
        """Submit a step for the next strand, as one of it has ended."""
        self._inflight[step] -= 1
        held = self._held.get(step)
        if held and not self._is_over:
            self._submit(held.popleft(), step)
        if self._ahead and not self._held_count:
            self._ahead.clear()
            self._hold_producers()

    @property
    def _held_count(self) -> int:
        return sum(map(len, self._held.values()))

    def _pace(self, is_slow: bool) -> None:  # noqa: FBT001 - a callback
        """Have the models pause as long as the client reads too slowly."""
        self._is_slow = is_slow
        self._hold_producers()

    def _hold_producers(self) -> None:
        for call in tuple(self._calls):
            if isinstance(call, ProducerCall):
                call.slow_down(is_slow=self._is_slow or call in self._ahead)

    def _submit(self, strand: Strand[Tensor], step: int) -> None:
        self._inflight[step] += 1
        planned = self._layers.plan.steps[step]
        is_producer = step in self._layers.decoupled
        kind = ProducerCall if is_producer else StepCall
        call = kind(self, step, self._members[step])
        self._calls[call] = strand
        found = ((name, strand.find(tensor)) for name, tensor in planned.inputs)
        body = step_request(
            model=planned.model,
            version=planned.version,
            request=self._wire,
            inputs=[(name, tensor) for name, tensor in found if tensor is not None],
            outputs=[
                (name, self._wire.outputs.get(tensor, b""))
                for name, tensor in planned.outputs
            ],
        )
        self._owner.submit(call, body)

    def _response(self, strand: Strand[Tensor]) -> bytes:
        found = ((name, strand.find(name)) for name in self._layers.plan.results)
        return ensemble_response(
            model=self._owner.route.model,
            version=self._owner.route.version_text,
            request=self._wire,
            outputs=[(name, tensor) for name, tensor in found if tensor is not None],
        )

    def _end_with(self, code: int, details: str) -> None:
        self.drop()
        self._owner.failed(self, code, details)
