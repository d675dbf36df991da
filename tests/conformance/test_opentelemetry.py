"""OpenTelemetry mode through NVIDIA's clients: a caller's trace goes on in ours."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.otel_collector import Collector, attributes_of, running_collector
from tests.support.stack import Stack, build_demo, running_stack

pytestmark = pytest.mark.timeout(120)

HTTP, GRPC = tritonclient.http, tritonclient.grpc
RARELY = 100_000


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


@pytest.fixture(scope="module")
def stack(
    collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("models")
    build_demo(folder, "--only", "simple")
    settings = [
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        f"rate={RARELY}",
        f"opentelemetry,url={collector.url}",
        "opentelemetry,resource=service.name=tested",
        "opentelemetry,bsp_schedule_delay=20",
    ]
    flags = [f"--trace-config={setting}" for setting in settings]
    with running_stack(folder, *flags) as running:
        yield running


def infer(module: Any, port: int, **how: Any) -> None:  # noqa: ANN401 - untyped clients
    client = module.InferenceServerClient(f"127.0.0.1:{port}")
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
        tensors.append(tensor)
    client.infer("simple", tensors, **how)


@pytest.mark.parametrize(
    ("module", "through_envoy"), [(HTTP, True), (GRPC, False), (GRPC, True)]
)
def test_a_request_of_a_traced_caller_is_traced_whatever_the_rate(
    stack: Stack,
    collector: Collector,
    module: Any,  # noqa: ANN401
    *,
    through_envoy: bool,
) -> None:
    port = stack.http if through_envoy else stack.grpc
    digit = "1" if module is HTTP else "2" if through_envoy else "3"
    trace_id = digit * 32
    unsampled = f"00-{'9' * 32}-{'a' * 16}-00"
    infer(module, port, headers={"traceparent": unsampled})
    traceparent = f"00-{trace_id}-{'b' * 16}-01"
    infer(module, port, headers={"traceparent": traceparent}, request_id="mine")

    def ours(spans: list[Any]) -> dict[str, Any]:
        return {s.name: s for s in spans if s.trace_id.hex() == trace_id}

    spans = ours(collector.when(lambda spans: len(ours(spans)) == 3))
    assert spans["InferRequest"].parent_span_id.hex() == "b" * 16
    assert spans["simple"].parent_span_id == spans["InferRequest"].span_id
    assert spans["compute"].parent_span_id == spans["simple"].span_id
    attributes = attributes_of(spans["simple"])
    assert attributes["triton.request_id"] == "mine"
    names = [event.name for event in spans["InferRequest"].events]
    assert names[0] == ("HTTP_RECV_START" if module is HTTP else "GRPC_WAITREAD_START")
    assert {span.trace_id.hex() for span in collector.spans(0)} <= {
        digit * 32 for digit in "123"
    }
    assert collector.resources["service.name"] == "tested"


@pytest.mark.parametrize("module", [HTTP, GRPC])
def test_settings_are_shown_and_fixed(stack: Stack, module: Any) -> None:  # noqa: ANN401
    port = stack.http if module is HTTP else stack.grpc
    client = module.InferenceServerClient(f"127.0.0.1:{port}")
    as_dict = {"as_json": True} if module is GRPC else {}
    settings = client.get_trace_settings(**as_dict)
    shown = settings.get("settings", settings)
    assert "opentelemetry" in str(shown["trace_mode"])
    assert "trace_file" not in shown
    with pytest.raises(InferenceServerException, match="opentelemetry mode"):
        client.update_trace_settings(settings={"trace_rate": "2"})
