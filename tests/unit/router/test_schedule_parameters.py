"""The request parameters ``priority`` and ``timeout``, as admission reads them."""

import pytest

from protos import inference_pb2 as pb
from services.router.admission import Admission
from services.router.route_table import RouteTable
from tests.unit.router.routes import add_sub, add_sub_request, route

TABLE = RouteTable.of([route(add_sub())])


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, (0, 0)),
        ({"priority": pb.InferParameter(int64_param=2)}, (2, 0)),
        ({"priority": pb.InferParameter(uint64_param=3)}, (3, 0)),
        ({"priority": pb.InferParameter(int64_param=-1)}, (0, 0)),
        ({"timeout": pb.InferParameter(int64_param=7)}, (0, 7000)),
        ({"timeout": pb.InferParameter(uint64_param=1)}, (0, 1000)),
        ({"timeout": pb.InferParameter(int64_param=-5)}, (0, 0)),
    ],
)
def test_schedule_parameters_are_part_of_the_verdict(
    parameters: dict[str, pb.InferParameter], expected: tuple[int, int]
) -> None:
    admission = Admission(TABLE)
    body = add_sub_request(parameters=parameters).SerializeToString()
    for _ in range(2):  # the second time from the learned header
        verdict, _ = admission.admit(body)
        assert (verdict.priority, verdict.timeout_ns) == expected
