"""Sequences on instances, none of them real."""

from collections.abc import Callable, Hashable

import pytest

from protos import control_pb2, worker_pb2
from protos import inference_pb2 as pb
from services.core.datatype import DataType
from services.core.model_config import (
    DirectStrategy,
    ModelConfig,
    OldestStrategy,
    SequenceBatching,
)
from services.core.model_config_sequences import (
    ControlKind,
    SequenceControl,
    SequenceControlInput,
    SequenceState,
)
from services.router.pending_request import Execution
from services.router.queue_limits import QueueLimits
from services.router.sequence_scheduler import SequenceScheduler
from services.router.state_checkpoints import StateCheckpoints
from tests.unit.router.routes import add_sub, add_sub_request, route
from tests.unit.router.stage import PuppetReactor

MS = 1_000_000


def control(name: str, kind: ControlKind) -> SequenceControlInput:
    is_id = kind is ControlKind.SEQUENCE_CORRID
    return SequenceControlInput(
        name=name,
        controls=(
            SequenceControl(
                kind=kind,
                datatype=DataType.UINT64 if is_id else DataType.INT32,
                false_true=None if is_id else (0, 1),
            ),
        ),
    )


CONTROLS = (
    control("START", ControlKind.SEQUENCE_START),
    control("END", ControlKind.SEQUENCE_END),
    control("READY", ControlKind.SEQUENCE_READY),
    control("CORRID", ControlKind.SEQUENCE_CORRID),
)


class Client:
    """A request and what its client was told."""

    def __init__(
        self, correlation_id: int, rows: int = 1, *, timeout_ns: int = 0, **flags: bool
    ) -> None:
        request = add_sub_request(rows, id=str(correlation_id))
        request.parameters["sequence_id"].int64_param = correlation_id
        for name, value in flags.items():
            request.parameters[f"sequence_{name}"].bool_param = value
        self.body = request.SerializeToString()
        self.rows = rows
        self.priority = self.attempts = 0
        self.timeout_ns = timeout_ns
        self.shape_key: Hashable = ()
        self.enqueued_ns = 0
        self.open = True
        self.outcome: object = None

    def answer(self, message: bytes) -> None:
        self.outcome, self.open = message, False

    def fail(self, code: int, details: str) -> None:
        self.outcome, self.open = (code, details), False


class PuppetInstance:
    """Holds what it is given; tells what the model would be told."""

    worker = "puppet"

    def __init__(self) -> None:
        self.held: list[Execution] = []
        self.notices: list[worker_pb2.BatchRequest] = []
        self.closed = False

    def execute(self, execution: Execution) -> None:
        self.held.append(execution)

    def tell(self, notice: bytes) -> None:
        self.notices.append(worker_pb2.BatchRequest.FromString(notice))

    def close(self) -> None:
        self.closed = True

    def told(self) -> list[dict[str, int]]:
        """Return the controls of each row of the batch that is held."""
        rows = []
        for member in self.held[0].batch:
            message = pb.ModelInferRequest.FromString(member.body)
            pairs = zip(message.inputs, message.raw_input_contents, strict=True)
            rows.append(
                {
                    tensor.name: int.from_bytes(raw, "little")
                    for tensor, raw in pairs
                    if not tensor.name.startswith("INPUT")
                }
            )
        return rows


class Stage:
    """A scheduler with everything around it."""

    def __init__(
        self,
        config: ModelConfig,
        limits: QueueLimits | None = None,
        checkpoints: StateCheckpoints | None = None,
    ) -> None:
        self.reactor = PuppetReactor()
        self.clock_ns = 0
        assert config.sequence_batching is not None
        self.scheduler = SequenceScheduler(
            route(config),
            config.sequence_batching,
            self.reactor,  # type: ignore[arg-type]
            lambda: self.clock_ns,
            limits=limits,
            checkpoints=checkpoints,
        )

    def send(self, *clients: Client) -> None:
        for client in clients:
            client.enqueued_ns = self.clock_ns
            self.scheduler.enqueue(client)
        self.reactor.drain()

    def instance(self) -> PuppetInstance:
        instance = PuppetInstance()
        self.scheduler.attach(instance)
        return instance

    def complete(self, instance: PuppetInstance, *, again: bool = False) -> None:
        execution = instance.held.pop(0)
        reply = worker_pb2.Reply(response=b"r")
        if again:
            reply = worker_pb2.Reply(rescheduled=True)
        replies = [reply] * len(execution.batch)
        message = worker_pb2.BatchResponse(
            timing=worker_pb2.BatchTiming(compute_infer_ns=1), reply=replies
        )
        self.scheduler.completed(instance, execution, message.SerializeToString())


STATE = SequenceState(
    input_name="S", output_name="T", datatype=DataType.INT32, dims=(1,)
)


def config(
    strategy: OldestStrategy | None = None,
    *,
    states: tuple[SequenceState, ...] = (),
    is_iterative: bool = False,
    parameters: dict[str, str] | None = None,
) -> ModelConfig:
    batching = SequenceBatching(
        strategy=strategy or DirectStrategy(),
        control_inputs=CONTROLS,
        max_sequence_idle_ns=100 * MS,
        states=states,
        iterative_sequence=is_iterative,
    )
    return add_sub(
        max_batch_size=2,
        dynamic_batching=None,
        sequence_batching=batching,
        parameters=parameters or {},
    )


@pytest.fixture
def stage() -> Stage:
    return Stage(config())


def test_the_model_is_told_where_each_request_stands(stage: Stage) -> None:
    instance = stage.instance()
    client = Client(42, start=True)
    stage.send(client)
    assert instance.told() == [{"START": 1, "END": 0, "READY": 1, "CORRID": 42}]
    stage.complete(instance)
    assert client.outcome == b"r"
    stage.send(Client(42, end=True))
    assert instance.told() == [{"START": 0, "END": 1, "READY": 1, "CORRID": 42}]


def test_a_gap_in_the_batch_is_filled_and_its_answer_dropped(stage: Stage) -> None:
    instance = stage.instance()
    stage.send(Client(1, start=True), Client(2, start=True))
    stage.complete(instance)
    second = Client(2)
    stage.send(second)
    assert [row["READY"] for row in instance.told()] == [0, 1]
    stage.complete(instance)
    assert second.outcome == b"r"
    taken = stage.scheduler.statistics.take()
    assert taken is not None
    assert taken.counts["inference_count"] == 3


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (Client(0), "must specify a non-zero or non-empty correlation ID"),
        (Client(7), "must specify the START flag"),
        (Client(7, rows=2, start=True), "must specify batch-size 1"),
    ],
)
def test_what_is_no_part_of_a_sequence_is_refused(
    stage: Stage, client: Client, message: str
) -> None:
    stage.instance()
    stage.send(client)
    assert isinstance(client.outcome, tuple)
    assert client.outcome[0] == 3
    assert message in client.outcome[1]


def test_a_lost_worker_ends_its_sequences_with_a_request_to_start_again(
    stage: Stage,
) -> None:
    instance = stage.instance()
    running, waiting = Client(1, start=True), Client(1)
    stage.send(running, waiting)
    stage.scheduler.detach(instance, (instance.held.pop(),))
    for client in (running, waiting):
        assert isinstance(client.outcome, tuple)
        assert client.outcome[0] == 14
        assert "START" in client.outcome[1]
    late = Client(1)
    stage.send(late)
    assert isinstance(late.outcome, tuple)
    assert "START flag" in late.outcome[1]


def test_a_client_that_leaves_ends_its_sequence(stage: Stage) -> None:
    first, second = Client(1, start=True), Client(1)
    stage.send(first, second)
    first.open = False
    stage.scheduler.forget(first)
    assert isinstance(second.outcome, tuple)
    assert second.outcome[0] == 1
    assert stage.scheduler.is_quiet


def test_silence_ends_a_sequence_and_lets_the_next_one_in(stage: Stage) -> None:
    instance = stage.instance()
    stage.send(Client(1, start=True), Client(2, start=True), Client(3, start=True))
    stage.complete(instance)
    assert instance.held == []
    stage.clock_ns = 100 * MS
    stage.reactor.fire()
    assert [row["CORRID"] for row in instance.told()] == [3]


def test_requests_without_a_worker_are_refused_after_a_while(stage: Stage) -> None:
    client = Client(1, start=True)
    stage.send(client)
    assert client.open
    stage.reactor.fire()
    assert isinstance(client.outcome, tuple)
    assert client.outcome[0] == 14


def test_the_oldest_strategy_batches_more_sequences_than_rows() -> None:
    strategy = OldestStrategy(max_candidate_sequences=4)
    stage = Stage(config(strategy=strategy))
    stage.send(*(Client(i, start=True) for i in (1, 2, 3)))
    instance = stage.instance()
    assert [row["CORRID"] for row in instance.told()] == [1, 2]
    stage.complete(instance)
    assert [row["CORRID"] for row in instance.told()] == [3]


def test_a_retiring_scheduler_is_quiet_when_all_are_answered(stage: Stage) -> None:
    quiet: list[str] = []
    callback: Callable[[], None] = lambda: quiet.append("now")  # noqa: E731
    instance = stage.instance()
    stage.send(Client(1, start=True))
    stage.scheduler.when_quiet(callback)
    assert quiet == []
    stage.complete(instance)
    assert quiet == ["now"]


def test_closing_refuses_who_waits_and_parts_from_the_instances(stage: Stage) -> None:
    instance = stage.instance()
    running, waiting = Client(1, start=True), Client(1)
    stage.send(running, waiting)
    stage.scheduler.close()
    assert instance.closed
    assert waiting.outcome == (14, "the server is shutting down")


def test_the_scheduler_can_be_held_until_the_backlog_is_filled() -> None:
    stage = Stage(config(), QueueLimits(hold_until=2, backlog_hold_until=1))
    instance = stage.instance()
    stage.send(Client(1, start=True), Client(2, start=True))
    assert instance.held == []
    stage.send(Client(3, start=True))
    assert [row["CORRID"] for row in instance.told()] == [1, 2]


def test_what_does_not_fit_into_the_queue_is_refused_with_its_sequence() -> None:
    first, second, more = Client(1, start=True), Client(2, start=True), Client(1)
    stage = Stage(config(), QueueLimits(max_queue_bytes=2 * len(first.body)))
    stage.send(first, second, more)
    assert [each.open for each in (first, second, more)] == [False, True, False]
    assert isinstance(first.outcome, tuple)
    assert first.outcome[0] == 14
    assert "Exceeds maximum queue size" in first.outcome[1]
    assert more.outcome == first.outcome
    # There is room again.
    again = Client(1, start=True)
    stage.send(again)
    instance = stage.instance()
    assert [row["CORRID"] for row in instance.told()] == [2, 1]


def test_those_behind_a_cancelled_request_leave_nothing_in_the_queue() -> None:
    clients = [Client(1, start=True), Client(1), Client(1)]
    most_bytes = 2 * sum(len(each.body) for each in clients)
    stage = Stage(config(), QueueLimits(max_queue_bytes=most_bytes))
    for _ in range(10):
        sent = [Client(1, start=True), Client(1), Client(1)]
        stage.send(*sent)
        assert [each.open for each in sent] == [True] * 3
        stage.scheduler.forget(sent[0])
        assert [each.open for each in sent] == [True, False, False]


def test_a_worker_is_told_whose_state_it_is_and_when_it_may_go() -> None:
    stage = Stage(config(states=(STATE,)))
    instance = stage.instance()
    stage.send(Client(7, start=True), Client(8, start=True))
    assert [row["nereid_sequence"] for row in instance.told()] == [1, 2]
    stage.complete(instance)
    stage.send(Client(8, end=True))
    # Its neighbour has nothing to do: nobody's state goes on there.
    assert [row["nereid_sequence"] for row in instance.told()] == [0, 2]
    assert [list(notice.ended_sequence) for notice in instance.notices] == [[2]]
    stage.complete(instance)
    stage.clock_ns = 100 * MS
    stage.reactor.fire()
    assert [list(notice.ended_sequence) for notice in instance.notices] == [[2], [1]]


def test_a_worker_that_keeps_no_states_is_told_nothing(stage: Stage) -> None:
    instance = stage.instance()
    stage.send(Client(7, start=True, end=True))
    assert "nereid_sequence" not in instance.told()[0]
    stage.complete(instance)
    assert instance.notices == []


def test_a_request_that_is_cancelled_while_it_is_executed_ends_its_sequence() -> None:
    stage = Stage(config(states=(STATE,)))
    instance = stage.instance()
    running, waiting = Client(1, start=True), Client(1)
    stage.send(running, waiting)
    running.open = False
    stage.scheduler.forget(running)
    assert isinstance(waiting.outcome, tuple)
    assert waiting.outcome[0] == 1
    assert [list(notice.ended_sequence) for notice in instance.notices] == [[1]]
    stage.complete(instance)
    assert running.outcome is None
    assert stage.scheduler.is_quiet


def test_a_sequence_that_waits_too_long_for_a_slot_is_refused(stage: Stage) -> None:
    instance = stage.instance()
    stage.send(Client(1, start=True), Client(2, start=True))
    late = Client(3, start=True, timeout_ns=5 * MS)
    stage.send(late, behind := Client(3))
    stage.clock_ns = 5 * MS
    stage.reactor.fire()
    for client in (late, behind):
        text = "timeout of the corresponding sequence has been expired"
        assert client.outcome == (14, text)
    assert len(instance.held) == 1


def test_the_oldest_strategy_may_answer_in_the_order_of_arrival() -> None:
    strategy = OldestStrategy(max_candidate_sequences=1, preserve_ordering=True)
    stage = Stage(config(strategy))
    first, second = stage.instance(), stage.instance()
    slow, fast, gone = (
        Client(1, start=True),
        Client(2, start=True),
        Client(3, start=True),
    )
    stage.send(slow, fast)
    stage.complete(second)
    assert fast.outcome is None
    stage.send(gone)
    gone.open = False
    stage.scheduler.forget(gone)
    stage.complete(first)
    assert [each.outcome for each in (slow, fast)] == [b"r", b"r"]
    assert stage.scheduler.is_quiet


def test_an_iterative_model_gets_a_request_back_until_it_answers() -> None:
    stage = Stage(config(is_iterative=True))
    instance = stage.instance()
    client = Client(0)
    stage.send(client)
    (first,) = instance.told()
    assert (first["START"], first["END"]) == (1, 0)
    assert first["CORRID"] > 0
    for _ in range(3):
        stage.complete(instance, again=True)
        assert client.outcome is None
        (then,) = instance.told()
        assert then == {**first, "START": 0}
    parameters = pb.ModelInferRequest.FromString(instance.held[0].batch[0].body)
    assert parameters.parameters["sequence_id"].int64_param == first["CORRID"]
    assert not parameters.parameters["sequence_start"].bool_param
    stage.complete(instance)
    assert client.outcome == b"r"
    assert stage.scheduler.is_quiet
    # Each request is a sequence of its own.
    stage.send(Client(0))
    assert instance.told()[0]["CORRID"] != first["CORRID"]


def test_a_client_that_leaves_is_given_back_to_no_model() -> None:
    stage = Stage(config(is_iterative=True))
    instance = stage.instance()
    client = Client(0)
    stage.send(client)
    client.open = False
    stage.scheduler.forget(client)
    stage.complete(instance, again=True)
    assert instance.held == []
    assert stage.scheduler.is_quiet


def test_a_model_that_is_not_iterative_gets_nothing_back(stage: Stage) -> None:
    instance = stage.instance()
    client = Client(1, start=True)
    stage.send(client)
    stage.complete(instance, again=True)
    assert isinstance(client.outcome, tuple)
    assert "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" in client.outcome[1]


class Resumable(Stage):
    """A model whose states are kept elsewhere, and the control that keeps them."""

    def __init__(self) -> None:
        self.checkpoints = StateCheckpoints()
        self.reports: list[control_pb2.RouterReport] = []
        self.checkpoints.connect(self.take)
        parameters = {"nereid_state_checkpoint": "true"}
        of = config(states=(STATE,), parameters=parameters)
        super().__init__(of, checkpoints=self.checkpoints)

    def take(self, report: control_pb2.RouterReport) -> bool:
        self.reports.append(report)
        return True

    def step(self, instance: PuppetInstance, number: int, state: bytes) -> None:
        """End an execution that left ``state`` behind."""
        self.leave(instance, number, state)
        self.complete(instance)

    def leave(self, instance: PuppetInstance, number: int, state: bytes) -> None:
        told = worker_pb2.SequenceStates(
            sequence=number, state=[worker_pb2.SequenceState(shape=[1], data=state)]
        )
        message = worker_pb2.BatchResponse(states=[told]).SerializeToString()
        self.scheduler.take_states(instance, message)

    def confirm(self) -> None:
        """Have control say that all is stored."""
        for report in self.reports:
            if report.state_checkpoint.step:
                stored = control_pb2.StateStored(
                    key=report.state_checkpoint.key, step=report.state_checkpoint.step
                )
                self.checkpoints.saved(control_pb2.RouterUpdate(state_stored=stored))

    def answer(self, *, is_found: bool = True) -> None:
        """Have control say what it has of the sequence that was asked for."""
        key = self.reports[-1].state_request.key
        saved = [
            r.state_checkpoint.data
            for r in self.reports
            if r.state_checkpoint.key == key
        ]
        found = control_pb2.StateFound(key=key, is_found=is_found, data=saved[-1])
        self.checkpoints.found(control_pb2.RouterUpdate(state_found=found))

    def lose(self, instance: PuppetInstance) -> None:
        self.scheduler.detach(instance, tuple(instance.held))
        instance.held.clear()


def restored(instance: PuppetInstance) -> list[tuple[int, bytes]]:
    return [
        (one.sequence, one.state[0].data)
        for notice in instance.notices
        for one in notice.restored
    ]


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_sequence_goes_on_elsewhere_with_the_state_after_its_last_answer(
    is_confirmed: bool,
) -> None:
    stage = Resumable()
    first = stage.instance()
    stage.send(Client(7, start=True))
    stage.step(first, 1, b"one")
    running, waiting = Client(7), Client(7, end=True)
    stage.send(running, waiting)
    # What an execution leaves behind counts only once it is answered.
    stage.leave(first, 1, b"two")
    if is_confirmed:
        stage.confirm()
    stage.lose(first)
    assert stage.scheduler._resumption is not None
    assert stage.scheduler._resumption._arrived == {}
    second = stage.instance()
    if is_confirmed:
        assert second.held == []
        stage.answer()
    assert restored(second) == [(1, b"one")]
    assert second.told()[0]["nereid_sequence"] == 1
    stage.step(second, 1, b"two")
    assert running.outcome == b"r"
    stage.step(second, 1, b"three")
    assert waiting.outcome == b"r"
    # It is over: nobody keeps anything.
    assert stage.reports[-1].state_checkpoint.is_over
    assert [list(n.ended_sequence) for n in second.notices if n.ended_sequence] == [[1]]
    assert stage.scheduler.is_quiet


def test_a_sequence_that_had_nothing_to_do_goes_on_too() -> None:
    stage = Resumable()
    first = stage.instance()
    stage.send(Client(7, start=True))
    stage.step(first, 1, b"one")
    stage.lose(first)
    second = stage.instance()
    stage.send(Client(7))
    assert restored(second) == [(1, b"one")]


def test_what_had_only_begun_begins_once_more() -> None:
    stage = Resumable()
    first = stage.instance()
    client = Client(7, start=True)
    stage.send(client)
    stage.lose(first)
    second = stage.instance()
    assert restored(second) == []
    assert second.told()[0]["START"] == 1
    stage.step(second, 1, b"one")
    assert client.outcome == b"r"


def test_a_state_that_nobody_has_ends_its_sequence() -> None:
    stage = Resumable()
    first = stage.instance()
    stage.send(Client(7, start=True))
    stage.step(first, 1, b"one")
    stage.confirm()
    client = Client(7)
    stage.send(client)
    stage.lose(first)
    stage.answer(is_found=False)
    assert isinstance(client.outcome, tuple)
    assert client.outcome[0] == 14
    assert "START" in client.outcome[1]


def test_without_an_answer_from_control_a_sequence_ends_after_a_while() -> None:
    stage = Resumable()
    first, _ = stage.instance(), stage.instance()
    stage.send(Client(7, start=True))
    stage.step(first, 1, b"one")
    stage.confirm()
    client = Client(7)
    stage.send(client)
    stage.lose(first)
    assert client.open
    stage.clock_ns = QueueLimits().no_worker_timeout_ns
    stage.reactor.fire()
    assert isinstance(client.outcome, tuple)
    assert "START" in client.outcome[1]


def test_a_request_that_brings_workers_down_ends_its_sequence() -> None:
    stage = Resumable()
    client = Client(7, start=True)
    stage.send(client)
    for _ in range(2):
        assert client.open
        stage.lose(stage.instance())
    assert isinstance(client.outcome, tuple)
    assert "START" in client.outcome[1]


def test_what_control_has_not_confirmed_is_said_again_on_a_new_stream() -> None:
    stage = Resumable()
    first = stage.instance()
    stage.send(Client(7, start=True), Client(8, start=True))
    stage.leave(first, 1, b"one")
    stage.complete(first)
    stage.confirm()
    stage.send(Client(8))
    stage.step(first, 2, b"two")
    stage.lose(first)
    before = len(stage.reports)
    stage.checkpoints.connected()
    again = [r.WhichOneof("report") for r in stage.reports[before:]]
    assert again == ["state_checkpoint", "state_request"]


def test_a_worker_that_leaves_in_order_is_not_held_against_a_request() -> None:
    stage = Resumable()
    client = Client(7, start=True)
    stage.send(client)
    for _ in range(3):
        instance = stage.instance()
        stage.scheduler.detach(instance, tuple(instance.held), were_begun=False)
    last = stage.instance()
    stage.step(last, 1, b"one")
    assert client.outcome == b"r"
