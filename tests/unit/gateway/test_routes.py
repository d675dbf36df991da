import re

import pytest

from services.gateway.dispatch import METRICS, REST
from services.gateway.routes import either, path_patterns

PATTERNS = path_patterns(REST)
GET = re.compile(either(PATTERNS, "GET"))
POST = re.compile(either(PATTERNS, "POST"))


@pytest.mark.parametrize(
    "path",
    [
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/m",
        "/v2/models/m/versions/1",
        "/v2/models/m/ready",
        "/v2/models/m/versions/10/ready",
        "/v2/models/m/config",
        "/v2/models/m/versions/1/config",
        "/v2/models/m/stats",
        "/v2/models/m/versions/1/stats",
        "/v2/models/stats",
        "/v2/models/m/trace/setting",
        "/v2/trace/setting",
        "/v2/logging",
        "/v2/systemsharedmemory/status",
        "/v2/systemsharedmemory/region/r/status",
        "/v2/cudasharedmemory/status",
        "/v2/cudasharedmemory/region/r/status",
    ],
)
def test_what_can_be_got(path: str) -> None:
    assert GET.fullmatch(path)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/m/infer",
        "/v2/models/m/versions/1/infer",
        "/v2/models/m/generate",
        "/v2/models/m/versions/1/generate",
        "/v2/models/m/generate_stream",
        "/v2/models/m/versions/1/generate_stream",
        "/v2/repository/index",
        "/v2/repository/r/index",
        "/v2/repository/models/m/load",
        "/v2/repository/r/models/m/load",
        "/v2/repository/models/m/unload",
        "/v2/repository/r/models/m/unload",
        "/v2/models/m/trace/setting",
        "/v2/trace/setting",
        "/v2/logging",
        "/v2/systemsharedmemory/region/r/register",
        "/v2/systemsharedmemory/region/r/unregister",
        "/v2/systemsharedmemory/unregister",
        "/v2/cudasharedmemory/region/r/register",
        "/v2/cudasharedmemory/region/r/unregister",
        "/v2/cudasharedmemory/unregister",
    ],
)
def test_what_can_be_posted(path: str) -> None:
    assert POST.fullmatch(path)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v2/",
        "/v1",
        "/v2/models",
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/m/versions/x",
        "/v2/models/m/versions/1x/infer",
        "/v2/models/m/versions//infer",
        "/v2/models/m/versions/1/trace/setting",
        "/v2/models/m/n/infer",
        "/v2/health/livex",
        "/v2/systemsharedmemory/register",
        "/metrics",
    ],
)
def test_what_there_is_not(path: str) -> None:
    assert not GET.fullmatch(path)
    assert not POST.fullmatch(path)


def test_metrics_are_one_page_and_one_for_each_process() -> None:
    pages = either(path_patterns(METRICS))
    assert pages == "(?:/metrics)|(?:/metrics/[^/]+)|(?:/metrics/[^/]+/[^/]+)"
