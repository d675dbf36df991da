"""What a router says of its services, and to whom it goes on listening."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_reflection.v1alpha import reflection_pb2

from services.core.completion_queue import NativeCall, NativeMetadata, StreamCall
from services.router.reflection import REFLECTION_METHODS, reflection_calls
from tests.unit.router.running import RunningRouter, running_router

SERVICE = "inference.GRPCInferenceService"
LIST = reflection_pb2.ServerReflectionRequest(list_services="")
FILE = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RunningRouter]:
    with running_router(tmp_path) as router:
        yield router


@pytest.mark.parametrize("method", REFLECTION_METHODS)
def test_questions_are_answered_in_turn(router: RunningRouter, method: str) -> None:
    router.serve(method, reflection_calls((SERVICE,)))
    questions = iter((LIST.SerializeToString(), FILE.SerializeToString()))
    listed, described = router.channel.stream_stream(method)(questions, timeout=10)
    read = reflection_pb2.ServerReflectionResponse.FromString
    names = [each.name for each in read(listed).list_services_response.service]
    assert names == [SERVICE]
    assert read(described).file_descriptor_response.file_descriptor_proto


def test_who_asks_without_reading_is_not_listened_to(router: RunningRouter) -> None:
    calls: list[StreamCall] = []
    factory = reflection_calls((SERVICE,))

    def accept(call: NativeCall, method: str, metadata: NativeMetadata) -> object:
        answering = factory(call, method, metadata)
        calls.append(answering)
        return answering

    method = REFLECTION_METHODS[0]
    router.serve(method, accept)
    questions = (FILE.SerializeToString() for _ in range(500))
    answers, kept = 0, []
    for _ in router.channel.stream_stream(method)(questions, timeout=30):
        answers += 1
        router.on_loop(lambda: kept.append(calls[0].unsent))
    assert answers == 500
    assert max(kept) <= 1
