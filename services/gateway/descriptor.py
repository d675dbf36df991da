"""The descriptor set Envoy's transcoder reads.

It is the compiled schema with one stand-in: ``google.rpc.Status``. Envoy prints a
gRPC error through that message; here its field 2, the message, is called ``error``,
so a client reads ``{"error": "..."}`` with the HTTP status of the gRPC code. It is
a trick: Envoy is pinned, and tests/e2e/test_gateway.py keeps watch.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor

from protos import rest_pb2

_STATUS_FILE: Final = "google/rpc/status.proto"
_MESSAGE_FIELD: Final = 2


def transcoder_descriptor() -> bytes:
    """Return a serialized FileDescriptorSet of RestService and MetricsService."""
    files = {file.name: file for file in _with_imports(rest_pb2.DESCRIPTOR)}
    result = descriptor_pb2.FileDescriptorSet()
    for name, file in files.items():
        if name != _STATUS_FILE:
            file.CopyToProto(result.file.add())
    result.file.append(_status_file())
    return result.SerializeToString()


def _with_imports(file: FileDescriptor) -> Iterator[FileDescriptor]:
    """Yield what ``file`` imports, each before its importer, and ``file``."""
    for imported in file.dependencies:
        yield from _with_imports(imported)
    yield file


def _status_file() -> descriptor_pb2.FileDescriptorProto:
    field = descriptor_pb2.FieldDescriptorProto
    return descriptor_pb2.FileDescriptorProto(
        name=_STATUS_FILE,
        package="google.rpc",
        syntax="proto3",
        message_type=[
            descriptor_pb2.DescriptorProto(
                name="Status",
                field=[
                    field(
                        name="error",
                        json_name="error",
                        number=_MESSAGE_FIELD,
                        type=field.TYPE_STRING,
                        label=field.LABEL_OPTIONAL,
                    )
                ],
            )
        ],
    )
