"""Where a remote repository lies, and how it is reached. Pure.

Source: the forms of locations, the environment's variables and the credential file
(TRITON_CLOUD_CREDENTIAL_PATH) are Triton's, of its cloud storage documentation.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# The scheme of a location, and fsspec's name of what reads it. The last one keeps
# files in the process's memory: for tests.
_PROTOCOLS: Final = {"s3": "s3", "gs": "gs", "as": "abfs", "memory": "memory"}
_LOCATION: Final = re.compile(r"(s3|gs|as|memory)://(.*)", re.DOTALL)
# s3://[https://]host:port/bucket/path: a store that is not the vendor's own.
_ENDPOINT: Final = re.compile(r"(?:(https?)://)?([\w.-]+:\d+)/(.*)", re.DOTALL)
CREDENTIAL_PATH: Final = "TRITON_CLOUD_CREDENTIAL_PATH"
_CACHE_VARIABLES: Final = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "as": "TRITON_AZURE_MOUNT_DIRECTORY",
}
_ENVIRONMENT: Final = {
    "s3": {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "AWS_PROFILE": "profile",
    },
    "gs": {"GOOGLE_APPLICATION_CREDENTIALS": "token"},
    "as": {
        "AZURE_STORAGE_ACCOUNT": "account_name",
        "AZURE_STORAGE_KEY": "account_key",
    },
    "memory": {},
}
_REGION: Final = "AWS_DEFAULT_REGION"
# In the credential file, by scheme.
_FILE_FIELDS: Final = {
    "s3": {
        "key_id": "key",
        "secret_key": "secret",
        "session_token": "token",
        "profile": "profile",
    },
    "as": {"account_str": "account_name", "account_key": "account_key"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLocation:
    """A repository that is not on this machine.

    Attributes:
        text: As the user wrote it.
        protocol: fsspec's name of the kind of store.
        path: Within the store: bucket or container first.
        options: How fsspec reaches it.
        cache_directory: Where the user wants its files kept; "" if he does not say.
    """

    text: str
    protocol: str
    path: str
    options: Mapping[str, object] = field(default_factory=dict)
    cache_directory: str = ""


def is_remote(location: str) -> bool:
    """Whether ``location`` is of a form that names a store."""
    return _LOCATION.fullmatch(location) is not None


def remote_location(
    location: str, environment: Mapping[str, str], credentials: str = ""
) -> RemoteLocation:
    """Return where ``location`` lies and how it is reached.

    Args:
        location: ``s3://bucket/path``, ``gs://bucket/path`` or
            ``as://account/container/path``.
        environment: The process's variables.
        credentials: What the file that CREDENTIAL_PATH names contains; "": no file.

    Raises:
        ValueError: it is no such location, or the credentials cannot be read.
    """
    match = _LOCATION.fullmatch(location)
    if match is None:
        message = f"'{location}' is no location of a remote repository"
        raise ValueError(message)
    scheme, rest = match[1], match[2]
    options: dict[str, object] = {
        option: environment[name]
        for name, option in _ENVIRONMENT[scheme].items()
        if environment.get(name)
    }
    region = environment.get(_REGION, "") if scheme == "s3" else ""
    if credentials:
        found = _credentials(credentials, scheme, location)
        region = str(found.pop("region", region))
        options |= found
    endpoint = _ENDPOINT.fullmatch(rest) if scheme == "s3" else None
    if endpoint is not None:
        options["endpoint_url"] = f"{endpoint[1] or 'http'}://{endpoint[2]}"
        rest = endpoint[3]
    if region:
        options["client_kwargs"] = {"region_name": region}
    if scheme == "as":
        account, _, rest = rest.partition("/")
        options["account_name"] = account
    path = rest.strip("/")
    if not path:
        message = f"'{location}' names no bucket or container"
        raise ValueError(message)
    return RemoteLocation(
        text=location,
        protocol=_PROTOCOLS[scheme],
        path=path,
        options=options,
        cache_directory=environment.get(_CACHE_VARIABLES.get(scheme, ""), ""),
    )


def _credentials(text: str, scheme: str, location: str) -> dict[str, object]:
    """Return the options of the longest entry that ``location`` begins with.

    Raises:
        ValueError: it is no credential file.
    """
    try:
        entries = json.loads(text).get(scheme, {})
        fitting = [prefix for prefix in entries if location.startswith(prefix)]
        if not fitting:
            return {}
        entry = entries[max(fitting, key=len)]
        if scheme == "gs":
            return {"token": str(entry)}
        fields = {**_FILE_FIELDS.get(scheme, {}), "region": "region"}
        given = dict(entry)
        return {
            option: str(given[name]) for name, option in fields.items() if name in given
        }
    except (AttributeError, TypeError, ValueError) as error:
        message = f"{CREDENTIAL_PATH} names a file that is no credential file: {error}"
        raise ValueError(message) from error
