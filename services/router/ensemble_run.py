"""The shell around ensemble plans: steps go to the schedulers of their models.

A step is a request like any other once it is admitted, so steps of many ensemble
requests, and those of clients, share batches. All on the reactor's thread.
"""

import time
from collections.abc import Mapping
from typing import Final, Protocol

import grpc
import structlog

from services.core.wire_format import WireFormatError
from services.router.ensemble_calls import Member, StepCall
from services.router.ensemble_plan import EnsemblePlan, Move, Progress
from services.router.ensemble_wire import (
    EnsembleRequest,
    Tensor,
    ensemble_response,
    read_response,
    step_request,
)
from services.router.pending_request import PendingRequest
from services.router.route_table import Route

_log = structlog.get_logger(__name__)

_INTERNAL: Final[int] = grpc.StatusCode.INTERNAL.value[0]


class Owner(Protocol):
    """Who submits the steps of a request, and is told how it ended."""

    @property
    def route(self) -> Route:
        """Of the ensemble."""
        ...

    def submit(self, call: StepCall, body: bytes) -> None:
        """Admit a step and hand it to its scheduler."""
        ...

    def succeeded(self, run: "EnsembleRun", message: bytes) -> None:
        """Answer the client of ``run``."""
        ...

    def failed(self, run: "EnsembleRun", code: int, details: str) -> None:
        """Tell the client of ``run`` that it failed."""
        ...


class EnsembleRun:
    """One request of an ensemble under way."""

    __slots__ = (
        "_calls",
        "_members",
        "_owner",
        "_progress",
        "_wire",
        "began_ns",
        "request",
    )

    def __init__(
        self,
        owner: Owner,
        request: PendingRequest,
        wire: EnsembleRequest,
        members: Mapping[int, Member],
        plan: EnsemblePlan,
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            owner: Is told of the end.
            request: Whom to answer.
            wire: Its contents.
            members: By step, who executes it; kept to the end.
            plan: What is run.
        """
        self._owner = owner
        self.request = request
        self._wire = wire
        self._members = members
        self._progress: Progress[Tensor] = Progress(plan)
        self._calls: dict[int, StepCall] = {}
        self.began_ns = 0

    def begin(self) -> None:
        """Submit the steps that need nothing but the client's tensors."""
        self.began_ns = time.monotonic_ns()
        self._make(self._progress.begin(self._wire.tensors))

    def step_answered(self, call: StepCall, message: bytes) -> None:
        """Go on with what a step has returned."""
        del self._calls[call.step]
        try:
            outputs = read_response(message)
        except (WireFormatError, IndexError, UnicodeDecodeError):
            _log.exception("a step's answer could not be read", step=call.step)
            self._end_with(_INTERNAL, "a step's answer could not be read")
            return
        self._make(self._progress.answered(call.step, outputs))

    def step_failed(self, call: StepCall, code: int, details: str) -> None:
        """End with the step's error; the rest is dropped."""
        del self._calls[call.step]
        self._end_with(code, f"in ensemble '{self._progress.plan.name}', {details}")

    def drop(self) -> None:
        """Cancel all steps under way."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.leave()

    def _make(self, move: Move) -> None:
        if move.problem:
            self._end_with(_INTERNAL, move.problem)
        elif move.is_done:
            self._answer()
        else:
            for step in move.run:
                # One that fails at once ends the run.
                if self.request.open:
                    self._submit(step)

    def _submit(self, step: int) -> None:
        planned = self._progress.plan.steps[step]
        tensors = self._progress.tensors
        call = self._calls[step] = StepCall(self, step, self._members[step])
        body = step_request(
            model=planned.model,
            version=planned.version,
            request=self._wire,
            inputs=[(n, tensors[t]) for n, t in planned.inputs if t in tensors],
            outputs=[
                (name, self._wire.outputs.get(tensor, b""))
                for name, tensor in planned.outputs
            ],
        )
        self._owner.submit(call, body)

    def _answer(self) -> None:
        tensors = self._progress.tensors
        results = self._progress.plan.results
        message = ensemble_response(
            model=self._owner.route.model,
            version=self._owner.route.version_text,
            request=self._wire,
            outputs=[(name, tensors[name]) for name in results if name in tensors],
        )
        self.drop()
        self._owner.succeeded(self, message)

    def _end_with(self, code: int, details: str) -> None:
        self.drop()
        self._owner.failed(self, code, details)
