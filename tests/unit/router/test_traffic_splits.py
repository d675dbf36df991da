"""Which version a request without one is sent to."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from services.core.lifecycle import ModelState
from services.core.model_config import SequenceBatching
from services.router.route_table import Route, RouteTable, TrafficSplit
from services.router.traffic_splits import TrafficSplits
from tests.unit.router.routes import add_sub, route

RAW = b"0123456789abcdef"


def table(
    weights: Mapping[int, int],
    *versions: int,
    sticky: str = "",
    header: str = "",
    shadow: int = 0,
) -> RouteTable:
    routes = [route(add_sub(), each, generation=each) for each in versions or (1, 2)]
    split = TrafficSplit(
        weights=weights,
        sticky_parameter=sticky,
        sticky_header=header,
        shadow_version=shadow,
    )
    return RouteTable.of(routes, splits={"simple": split})


def splits(of: RouteTable, *points: float) -> TrafficSplits:
    drawn = iter(points)
    directed = TrafficSplits(lambda: next(drawn))
    directed.apply(of)
    return directed


def request(
    version: str = "", model: str = "simple", **parameters: str
) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(
        model_name=model, model_version=version, id="7", raw_input_contents=[RAW]
    )
    for name, value in parameters.items():
        message.parameters[name].string_param = value
    return message


def directed_body(directed: TrafficSplits, body: bytes) -> bytes:
    return directed.direct(body, dict)[0]


def version_of(body: bytes) -> str:
    return pb.ModelInferRequest.FromString(body).model_version


@pytest.mark.parametrize(
    ("point", "version"),
    [(0.0, "1"), (0.749, "1"), (0.75, "2"), (0.999, "2")],
)
def test_each_version_gets_its_share(point: float, version: str) -> None:
    directed = splits(table({1: 3, 2: 1}), point)
    body = directed_body(directed, request().SerializeToString())
    wanted = request(version).SerializeToString()
    assert body == wanted


def test_a_request_that_names_a_version_gets_it() -> None:
    body = request("2").SerializeToString()
    assert directed_body(splits(table({1: 1})), body) == body


def test_a_model_without_a_split_is_left_alone() -> None:
    body = request(model="other").SerializeToString()
    directed = splits(table({1: 1}))
    assert directed.are_any
    assert directed_body(directed, body) == body


def test_a_version_that_is_not_ready_gets_nothing() -> None:
    ready = route(add_sub(), 1, generation=1)
    loading = Route(
        model="simple", version=2, state=ModelState.LOADING, config=ready.config
    )
    split = TrafficSplit(weights={1: 1, 2: 99})
    directed = splits(RouteTable.of([ready, loading], splits={"simple": split}), 0.9)
    assert version_of(directed_body(directed, request().SerializeToString())) == "1"


def test_a_split_among_versions_that_are_all_gone_is_none() -> None:
    assert not splits(table({7: 1})).are_any
    assert not splits(table({1: 0})).are_any


def test_a_sticky_value_goes_to_one_version_and_values_are_shared_out() -> None:
    directed = splits(table({1: 1, 2: 1}, sticky="user"))
    chosen: dict[str, set[str]] = {}
    for user in map(str, range(200)):
        chosen[user] = {
            version_of(directed_body(directed, request(user=user).SerializeToString()))
            for _ in range(3)
        }
    assert all(len(each) == 1 for each in chosen.values())
    counts = Counter(next(iter(each)) for each in chosen.values())
    assert min(counts["1"], counts["2"]) > 60


def test_without_the_sticky_parameter_a_request_is_drawn_for() -> None:
    directed = splits(table({1: 1, 2: 1}, sticky="user"), 0.9)
    assert version_of(directed_body(directed, request().SerializeToString())) == "2"


def test_a_sequence_stays_together() -> None:
    config = add_sub(dynamic_batching=None, sequence_batching=SequenceBatching())
    routes = [route(config, each, generation=each) for each in (1, 2)]
    split = TrafficSplit(weights={1: 1, 2: 1})
    directed = splits(RouteTable.of(routes, splits={"simple": split}))
    chosen = {
        number: {
            version_of(
                directed_body(directed, request(sequence_id=number).SerializeToString())
            )
            for _ in range(3)
        }
        for number in map(str, range(20))
    }
    assert all(len(each) == 1 for each in chosen.values())
    assert set.union(*chosen.values()) == {"1", "2"}


@given(body=st.binary(max_size=64))
def test_what_is_no_request_passes_as_it_is_or_stays_one(body: bytes) -> None:
    directed = splits(table({1: 1}), *[0.5] * 10)
    directed_body(directed, body)


def test_fields_in_another_order_are_understood() -> None:
    directed = splits(table({1: 1}), 0.5)
    first = pb.ModelInferRequest(id="7").SerializeToString()
    second = pb.ModelInferRequest(model_name="simple").SerializeToString()
    assert version_of(directed_body(directed, first + second)) == "1"
    last = pb.ModelInferRequest(model_version="2").SerializeToString()
    assert version_of(directed_body(directed, first + second + last)) == "2"


def test_a_header_keeps_who_sends_it_at_one_version() -> None:
    directed = splits(table({1: 1, 2: 1}, header="x-user"))
    body = request().SerializeToString()
    chosen = {
        user: {
            version_of(directed.direct(body, lambda: {"x-user": user})[0])  # noqa: B023
            for _ in range(3)
        }
        for user in map(str, range(40))
    }
    assert all(len(each) == 1 for each in chosen.values())
    assert set.union(*chosen.values()) == {"1", "2"}


def test_a_header_and_a_parameter_of_one_value_choose_the_same() -> None:
    by_header = splits(table({1: 1, 2: 1}, header="user"))
    by_parameter = splits(table({1: 1, 2: 1}, sticky="user"))
    for user in map(str, range(20)):
        body = request().SerializeToString()
        chosen = by_header.direct(body, lambda: {"user": user.encode()})[0]  # noqa: B023
        other = request(user=user).SerializeToString()
        assert version_of(chosen) == version_of(directed_body(by_parameter, other))


def test_headers_are_not_looked_at_without_need() -> None:
    def headers() -> Mapping[str, str | bytes]:
        raise AssertionError("nobody asked for them")

    directed = splits(table({1: 1, 2: 1}), 0.1)
    assert version_of(directed.direct(request().SerializeToString(), headers)[0]) == "1"
    other = request(model="other").SerializeToString()
    assert splits(table({1: 1}, header="x")).direct(other, headers) == (other, False)


@pytest.mark.parametrize(
    ("weights", "versions", "version"),
    [({}, (1, 2, 3), "2"), ({1: 1}, (1, 2, 3), "1"), ({1: 1}, (2, 3), "2")],
)
def test_a_shadow_gets_copies_and_is_never_asked_instead(
    weights: Mapping[int, int], versions: tuple[int, ...], version: str
) -> None:
    directed = splits(table(weights, *versions, shadow=3), 0.9)
    body, is_copied = directed.direct(request().SerializeToString(), dict)
    assert (version_of(body), is_copied) == (version, True)


def test_what_names_a_version_is_not_copied() -> None:
    directed = splits(table({}, 1, 2, shadow=2))
    body = request("1").SerializeToString()
    assert directed.direct(body, dict) == (body, False)


def test_a_shadow_that_is_alone_serves_as_without_a_split() -> None:
    assert not splits(table({}, 2, shadow=2)).are_any


def test_what_is_more_than_one_request_and_one_response_is_not_copied() -> None:
    for config in (
        add_sub(dynamic_batching=None, sequence_batching=SequenceBatching()),
        add_sub(decoupled=True),
    ):
        routes = [route(config, each, generation=each) for each in (1, 2)]
        split = TrafficSplit(weights={1: 1}, shadow_version=2)
        directed = splits(RouteTable.of(routes, splits={"simple": split}), 0.5)
        assert not directed.direct(request().SerializeToString(), dict)[1]
