"""Shared memory over REST: the JSON of requests and answers.

Source: Triton's system and CUDA shared memory extensions, and its messages.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from services.core.errors import InternalError, InvalidRequestError
from services.core.shared_memory_region import SharedMemoryRegion
from services.router import rest_documents, rest_json
from services.router.rest_http_body import RestCall
from services.router.rest_response import HttpReply
from services.router.shared_memory_registry import SharedMemoryRegistry

_CUDA_HANDLE_BYTES: Final = 64


class RestSharedMemory:
    """The shared memory methods of the REST API."""

    def __init__(self, registry: SharedMemoryRegistry) -> None:
        """Answer for ``registry``."""
        self._registry = registry

    def system_status(self, call: RestCall) -> HttpReply:
        """Answer with one region, or all."""
        return rest_documents.document(
            [
                {
                    "name": region.name,
                    "key": region.place.key,
                    "offset": region.place.offset,
                    "byte_size": region.place.byte_size,
                }
                for region in self._registry.status(call.region)
            ]
        )

    def system_register(self, call: RestCall) -> HttpReply:
        """Register one region."""
        self._registry.check_allowed()
        self._registry.register(call.region, read_register_request(call.body))
        return rest_documents.EMPTY_JSON

    def system_unregister(self, call: RestCall) -> HttpReply:
        """Unregister one region, or all."""
        self._registry.unregister(call.region)
        return rest_documents.EMPTY_JSON

    def cuda_status(self, call: RestCall) -> HttpReply:
        """Answer with one region, or all."""
        return rest_documents.document(
            [
                {
                    "name": region.name,
                    "device_id": region.place.device,
                    "byte_size": region.place.byte_size,
                }
                for region in self._registry.status(call.region, is_cuda=True)
            ]
        )

    def cuda_register(self, call: RestCall) -> HttpReply:
        """Register one region."""
        self._registry.check_allowed()
        handle, device, byte_size = read_cuda_request(call.body)
        self._registry.register_cuda(
            call.region, handle=handle, device=device, byte_size=byte_size
        )
        return rest_documents.EMPTY_JSON

    def cuda_unregister(self, call: RestCall) -> HttpReply:
        """Unregister one region, or all."""
        self._registry.unregister(call.region, is_cuda=True)
        return rest_documents.EMPTY_JSON


def read_register_request(body: bytes) -> SharedMemoryRegion:
    """Read POST .../systemsharedmemory/region/NAME/register.

    Raises:
        InternalError: not JSON, or a value of another type.
        InvalidRequestError: no key or no size.
    """
    document = rest_json.parse(body)
    offset = rest_json.optional_member(document, "offset")
    return SharedMemoryRegion(
        key=rest_json.string(_required(document, "key"), "key"),
        offset=0 if offset is None else rest_json.unsigned(offset, "offset"),
        byte_size=rest_json.unsigned(_required(document, "byte_size"), "byte_size"),
    )


def read_cuda_request(body: bytes) -> tuple[bytes, int, int]:
    """Read POST .../cudasharedmemory/region/NAME/register.

    Returns:
        The handle, the device and the size in bytes.

    Raises:
        InternalError: not JSON, or a value of another type.
        InvalidRequestError: no handle, or nothing that could be one.
    """
    document = rest_json.parse(body)
    handle = rest_json.record(_required(document, "raw_handle"), "raw_handle")
    encoded = rest_json.string(rest_json.member(handle, "b64"), "b64")
    byte_size, device = (
        rest_json.unsigned(rest_json.member(document, key), key)
        for key in ("byte_size", "device_id")
    )
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if len(decoded) != _CUDA_HANDLE_BYTES:
        message = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
        raise InvalidRequestError(message)
    return decoded, device, byte_size


def _required(document: object, key: str) -> object:
    if not isinstance(document, Mapping):
        raise InternalError(
            f"Unable to parse '{key}': attempt to access JSON non-object as object"
        )
    if key not in document:
        message = f"Shared memory register request has no '{key}' field"
        raise InvalidRequestError(message)
    return document[key]
