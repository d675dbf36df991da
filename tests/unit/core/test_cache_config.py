import pytest

from services.core.cache_config import cache_size_bytes


def test_without_a_setting_there_is_no_cache() -> None:
    assert cache_size_bytes([]) == 0


def test_the_last_size_counts() -> None:
    assert cache_size_bytes(["local,size=10", "local,size=1048576"]) == 1048576


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("local", "is not of the form CACHE,KEY=VALUE"),
        ("local,size", "is not of the form CACHE,KEY=VALUE"),
        ("size=5", "is not of the form CACHE,KEY=VALUE"),
        ("redis,host=x", "there is no cache 'redis', only 'local'"),
        ("local,host=x", "the cache 'local' has no setting 'host'"),
        ("local,size=0", "the size of the cache is a number > 0, not '0'"),
        ("local,size=-5", "the size of the cache is a number > 0, not '-5'"),
        ("local,size=1k", "the size of the cache is a number > 0, not '1k'"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(setting: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        cache_size_bytes([setting])
