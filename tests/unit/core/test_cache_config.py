import pytest

from services.core.cache_config import CacheConfig, RedisCache, read_cache_config


def test_without_a_setting_there_is_no_cache() -> None:
    assert read_cache_config([]) == CacheConfig()


def test_the_last_size_counts() -> None:
    config = read_cache_config(["local,size=10", "local,size=1048576"])
    assert config == CacheConfig(local_bytes=1048576)


@pytest.mark.parametrize(
    "flags",
    [
        ["redis,host=h", "redis,port=6379", "redis,password=a=b,c"],  # as Triton's
        ["redis,host=h,port=6379,password=a=b,c"],
    ],
)
def test_settings_of_redis_may_come_apart_or_together(flags: list[str]) -> None:
    connection = {"host": "h", "port": "6379", "password": "a=b,c"}
    assert read_cache_config(flags).redis == RedisCache(connection=connection)


def test_without_a_host_it_is_controls_own_redis() -> None:
    cache = read_cache_config(["redis,size=1000,ttl=60"]).redis
    assert cache == RedisCache(size_bytes=1000, lifetime_s=60)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["local"], "is not of the form CACHE,KEY=VALUE"),
        (["local,size"], "is not of the form CACHE,KEY=VALUE"),
        (["size=5"], "is not of the form CACHE,KEY=VALUE"),
        (["disk,size=5"], "there is no cache 'disk', only 'local' and 'redis'"),
        (["local,host=x"], "the cache 'local' has no setting 'host'"),
        (["redis,sni=x"], "the cache 'redis' has no setting 'sni'"),
        (["local,size=0"], "the size of the cache is a number > 0, not '0'"),
        (["local,size=-5"], "the size of the cache is a number > 0, not '-5'"),
        (["local,size=1k"], "the size of the cache is a number > 0, not '1k'"),
        (["redis,host=x"], "the cache 'redis' needs a host and a port"),
        (["redis,host=x,port=y"], "the port of the cache is a number > 0, not 'y'"),
        (["local,size=5", "redis,ttl=5"], "there can be only one cache"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(
    flags: list[str], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        read_cache_config(flags)
