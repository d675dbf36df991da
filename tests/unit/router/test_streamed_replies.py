"""Models that answer a request any number of times, through the real doors."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from protos import inference_pb2 as pb
from protos import rest_pb2, worker_pb2
from services.core.model_config import SequenceBatching
from services.router.header_forwarding import NO_FORWARDING
from services.router.rest_generate_call import (
    GENERATE_STREAM_METHOD,
    GenerateStreamDoor,
)
from services.router.route_table import RouteTable
from tests.unit.router.routes import add_sub, add_sub_request, route
from tests.unit.router.running import PuppetWorker, RunningRouter, running_router


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RunningRouter]:
    with running_router(tmp_path) as router:
        table = RouteTable.of([route(add_sub(decoupled=True), generation=5)])
        router.apply(table)
        yield router


def streamed(
    request: int, text: str | None = None, *, final: bool = False, batch: int = 0
) -> worker_pb2.StreamedReply:
    reply = worker_pb2.StreamedReply(batch=batch, request=request, final=final)
    if text is not None:
        reply.reply.response = pb.ModelInferResponse(id=text).SerializeToString()
    return reply


def send(worker: PuppetWorker, *replies: worker_pb2.StreamedReply) -> None:
    """Stream replies in a message of their own."""
    message = worker_pb2.BatchResponse(streamed=replies)
    worker.stream.send(message.SerializeToString())


def end(worker: PuppetWorker, requests: int) -> None:
    """End the execution, which answers nobody by itself."""
    message = worker_pb2.BatchResponse(
        timing=worker_pb2.BatchTiming(compute_infer_ns=5),
        reply=[worker_pb2.Reply()] * requests,
    )
    worker.answers.put(message)


def outcomes(responses: Iterator[pb.ModelStreamInferResponse]) -> list[object]:
    return [
        (
            r.error_message or r.infer_response.id,
            r.infer_response.parameters["triton_final_response"].bool_param,
        )
        for r in responses
    ]


def test_every_response_comes_and_only_the_last_is_final(router: RunningRouter) -> None:
    worker = router.worker(generation=5)
    responses = router.stream(iter([add_sub_request(id="a")]))
    worker.next_batch()
    send(worker, streamed(0, "one"), streamed(0, "two"), streamed(0, "3", final=True))
    end(worker, 1)
    assert outcomes(responses) == [("one", False), ("two", False), ("3", True)]


def test_an_execution_may_end_before_its_replies_do(router: RunningRouter) -> None:
    worker = router.worker(generation=5)
    responses = router.stream(iter([add_sub_request(id="a")]))
    worker.next_batch()
    end(worker, 1)
    second = router.stream(iter([add_sub_request(id="b")]))
    worker.next_batch()
    send(worker, streamed(0, "late", final=True), streamed(0, "b", final=True, batch=1))
    end(worker, 1)
    assert outcomes(responses) == [("late", True)]
    assert outcomes(second) == [("b", True)]


@pytest.mark.parametrize("wanted", [False, True])
def test_an_empty_final_response_comes_to_who_asked_for_it(
    router: RunningRouter, wanted: bool
) -> None:
    worker = router.worker(generation=5)
    request = add_sub_request(id="a")
    if wanted:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    responses = router.stream(iter([request]))
    worker.next_batch()
    send(worker, streamed(0, "one"), streamed(0, final=True))
    end(worker, 1)
    expected = [("one", False), ("a", True)] if wanted else [("one", False)]
    assert outcomes(responses) == expected


def test_a_request_without_any_response_is_over_all_the_same(
    router: RunningRouter,
) -> None:
    worker = router.worker(generation=5)
    responses = router.stream(iter([add_sub_request()]))
    worker.next_batch()
    send(worker, streamed(0, final=True))
    end(worker, 1)
    assert outcomes(responses) == []


def test_an_error_is_a_message_and_need_not_be_the_last(router: RunningRouter) -> None:
    worker = router.worker(generation=5)
    responses = router.stream(iter([add_sub_request(id="a")]))
    worker.next_batch()
    error = streamed(0)
    error.reply.error.code = 3
    error.reply.error.message = "boom"
    send(worker, streamed(0, "one"), error, streamed(0, "two", final=True))
    end(worker, 1)
    assert outcomes(responses) == [("one", False), ("boom", False), ("two", True)]


def test_plain_inference_refuses_a_decoupled_model(router: RunningRouter) -> None:
    router.worker(generation=5)
    with pytest.raises(grpc.RpcError) as caught:
        router.infer(add_sub_request()).result(timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.details() == (
        "ModelInfer RPC doesn't support models with decoupled transaction policy"
    )


def test_a_client_that_leaves_is_reported_to_the_model(router: RunningRouter) -> None:
    worker = router.worker(generation=5)
    waiting: SimpleQueue[pb.ModelInferRequest] = SimpleQueue()
    waiting.put(add_sub_request(id="a"))
    responses = router.stream(iter(waiting.get, None))
    worker.next_batch()
    end(worker, 1)
    responses.cancel()
    note = worker_pb2.BatchRequest.FromString(worker.messages.get(timeout=5))
    while not note.cancelled:
        note = worker_pb2.BatchRequest.FromString(worker.messages.get(timeout=5))
    assert [(place.batch, place.request) for place in note.cancelled] == [(0, 0)]
    send(worker, streamed(0, "nobody hears this", final=True))
    other = router.stream(iter([add_sub_request(id="b")]))
    worker.next_batch()
    send(worker, streamed(0, "b", final=True, batch=1))
    end(worker, 1)
    assert outcomes(other) == [("b", True)]


def next_notice(worker: PuppetWorker) -> dict[str, tuple[int, int]]:
    """Return the next places that the router names, by the field."""
    while True:
        message = worker_pb2.BatchRequest.FromString(worker.messages.get(timeout=30))
        found = {
            field: (place.batch, place.request)
            for field in ("cancelled", "paused", "resumed")
            for place in getattr(message, field)
        }
        if found:
            return found


# More than a client takes that does not read, and its router for it.
LARGE = "x" * (1 << 20)
TOO_MUCH = 64


def stream_too_much(worker: PuppetWorker) -> None:
    """Stream until the router says that it is too much; go on all the same."""
    for _ in range(TOO_MUCH):
        send(worker, streamed(0, LARGE))
    assert next_notice(worker) == {"paused": (0, 0)}


def test_a_model_is_paused_while_a_client_does_not_read(router: RunningRouter) -> None:
    worker = router.worker(generation=5)
    requests: SimpleQueue[pb.ModelInferRequest] = SimpleQueue()
    requests.put(add_sub_request(id="a"))
    responses = router.stream(iter(requests.get, None), timeout=60)
    worker.next_batch()
    end(worker, 1)
    stream_too_much(worker)
    seen = [next(responses).infer_response.id for _ in range(TOO_MUCH)]
    assert seen == [LARGE] * TOO_MUCH
    assert next_notice(worker) == {"resumed": (0, 0)}
    send(worker, streamed(0, "last", final=True))
    assert next(responses).infer_response.id == "last"
    responses.cancel()


def test_who_leaves_while_its_model_is_paused_is_reported(
    router: RunningRouter,
) -> None:
    worker = router.worker(generation=5)
    responses = router.stream(iter([add_sub_request()]), timeout=60)
    worker.next_batch()
    end(worker, 1)
    stream_too_much(worker)
    responses.cancel()
    assert next_notice(worker) == {"cancelled": (0, 0)}


def test_a_model_is_paused_while_nobody_reads_its_events(router: RunningRouter) -> None:
    with ThreadPoolExecutor(1) as pool:
        door = GenerateStreamDoor(
            router.inference, router.reactor, pool, 1 << 30, NO_FORWARDING
        )
        router.serve(GENERATE_STREAM_METHOD, door.accept)
        worker = router.worker(generation=5)
        document = json.dumps({"INPUT0": [0] * 16, "INPUT1": [0] * 16}).encode()
        request = rest_pb2.RestRequest(
            model_name="simple", body=HttpBody(data=document)
        )
        method = router.channel.stream_stream(GENERATE_STREAM_METHOD)
        events = method(iter((request.SerializeToString(),)), timeout=60)
        worker.next_batch()
        end(worker, 1)
        stream_too_much(worker)
        send(worker, streamed(0, final=True))
        found = b"".join(HttpBody.FromString(event).data for event in events)
    assert found.count(LARGE.encode()) == TOO_MUCH


def test_a_worker_lost_in_the_middle_of_the_replies_is_an_error_not_a_repetition(
    router: RunningRouter,
) -> None:
    worker = router.worker(generation=5)
    responses = router.stream(iter([add_sub_request(id="a")]))
    worker.next_batch()
    send(worker, streamed(0, "one"))
    assert next(responses).infer_response.id == "one"
    worker.die()
    (error,) = responses
    assert error.error_message == "the worker was lost before its last response"


def test_a_retired_model_is_let_go_when_its_last_reply_is_out(
    router: RunningRouter,
) -> None:
    worker = router.worker(generation=5)
    responses = router.stream(iter([add_sub_request(id="a")]))
    worker.next_batch()
    end(worker, 1)
    applied = router.apply(RouteTable.of([]))
    send(worker, streamed(0, "one"))
    assert next(responses).infer_response.id == "one"
    assert not applied.is_set()
    send(worker, streamed(0, final=True))
    assert list(responses) == []
    assert applied.wait(30)


def test_responses_are_counted_by_their_index(router: RunningRouter) -> None:
    worker = router.worker(generation=5)
    responses = router.stream(iter([add_sub_request(rows=2)]))
    worker.next_batch()
    send(worker, streamed(0, "one"), streamed(0, "two"), streamed(0, final=True))
    end(worker, 1)
    assert len(list(responses)) == 2
    router.on_loop(lambda: None)
    counted = router.inference.statistics.of("simple", 1)
    taken = counted.take()
    assert taken is not None
    assert taken.counts["success.count"] == 1
    assert taken.counts["inference_count"] == 2
    assert taken.counts["response.1.success.count"] == 1
    assert taken.counts["response.2.empty_response.count"] == 1


def test_a_request_that_its_model_wants_back_goes_on_where_it_was(
    tmp_path: Path,
) -> None:
    iterative = SequenceBatching(iterative_sequence=True)
    model = add_sub(decoupled=True, dynamic_batching=None, sequence_batching=iterative)
    with running_router(tmp_path) as router:
        router.apply(RouteTable.of([route(model, generation=5)]))
        worker = router.worker(generation=5)
        responses = router.stream(iter([add_sub_request(id="a")]))
        again = worker_pb2.BatchResponse(
            timing=worker_pb2.BatchTiming(compute_infer_ns=5),
            reply=[worker_pb2.Reply(rescheduled=True)],
        )
        for batch in range(3):
            worker.next_batch()
            if batch < 2:
                send(worker, streamed(0, f"part {batch}", batch=batch))
                worker.answers.put(again)
            else:
                send(worker, streamed(0, "last", final=True, batch=batch))
                end(worker, 1)
        found = outcomes(responses)
        assert found == [("part 0", False), ("part 1", False), ("last", True)]
