"""Where remote repositories lie, and how they are reached."""

import json

import pytest

from services.control.remote_location import is_remote, remote_location

CREDENTIALS = json.dumps(
    {
        "s3": {
            "": {"key_id": "k0", "secret_key": "s0"},
            "s3://bucket/deep": {
                "key_id": "k1",
                "secret_key": "s1",
                "region": "eu-1",
                "session_token": "t1",
            },
        },
        "gs": {"gs://bucket": "/keys/gs.json"},
        "as": {"as://acc": {"account_str": "acc", "account_key": "ak"}},
    }
)


@pytest.mark.parametrize(
    ("location", "answer"),
    [
        ("s3://b/p", True),
        ("gs://b", True),
        ("as://a/c/p", True),
        ("/models", False),
        ("models", False),
        ("http://b/p", False),
        ("S3://b", False),
    ],
)
def test_what_names_a_store_is_told_by_its_scheme(location: str, answer: bool) -> None:
    assert is_remote(location) is answer


def test_a_bucket_and_a_path_in_it() -> None:
    found = remote_location("s3://bucket/path/to/", {})
    assert (found.protocol, found.path, found.options) == ("s3", "bucket/path/to", {})


@pytest.mark.parametrize(
    ("location", "endpoint"),
    [
        ("s3://localhost:9000/bucket/p", "http://localhost:9000"),
        ("s3://https://store.example:443/bucket/p", "https://store.example:443"),
        ("s3://http://store.example:80/bucket/p", "http://store.example:80"),
    ],
)
def test_a_store_of_ones_own_is_named_before_the_bucket(
    location: str, endpoint: str
) -> None:
    found = remote_location(location, {})
    assert found.options == {"endpoint_url": endpoint}
    assert found.path == "bucket/p"


def test_the_environments_variables_are_tritons() -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "eu-1",
        "TRITON_AWS_MOUNT_DIRECTORY": "/cache",
    }
    found = remote_location("s3://b/p", environment)
    assert found.options == {
        "key": "k",
        "secret": "s",
        "client_kwargs": {"region_name": "eu-1"},
    }
    assert found.cache_directory == "/cache"


def test_an_account_comes_before_the_container() -> None:
    found = remote_location("as://acc/box/p", {"AZURE_STORAGE_KEY": "ak"})
    assert (found.protocol, found.path) == ("abfs", "box/p")
    assert found.options == {"account_name": "acc", "account_key": "ak"}


def test_of_the_credential_file_the_longest_entry_counts() -> None:
    deep = remote_location("s3://bucket/deep/er", {}, CREDENTIALS)
    assert deep.options == {
        "key": "k1",
        "secret": "s1",
        "token": "t1",
        "client_kwargs": {"region_name": "eu-1"},
    }
    other = remote_location("s3://other/p", {"AWS_ACCESS_KEY_ID": "mine"}, CREDENTIALS)
    assert other.options == {"key": "k0", "secret": "s0"}
    cloud = remote_location("gs://bucket/p", {}, CREDENTIALS)
    assert cloud.options == {"token": "/keys/gs.json"}


@pytest.mark.parametrize("location", ["s3://", "s3:///", "as://account", "ftp://b/p"])
def test_what_names_no_bucket_is_refused(location: str) -> None:
    with pytest.raises(ValueError, match=location):
        remote_location(location, {})


@pytest.mark.parametrize("text", ["no json", "[]", '{"s3": {"": "no entry"}}'])
def test_a_file_that_is_no_credential_file_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="TRITON_CLOUD_CREDENTIAL_PATH"):
        remote_location("s3://b/p", {}, text)
