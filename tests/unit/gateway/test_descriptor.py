from google.protobuf import descriptor_pb2

from protos import rest_pb2
from services.gateway.descriptor import transcoder_descriptor


def files() -> list[descriptor_pb2.FileDescriptorProto]:
    text = transcoder_descriptor()
    return list(descriptor_pb2.FileDescriptorSet.FromString(text).file)


def test_every_file_comes_after_what_it_imports_and_once() -> None:
    seen: set[str] = set()
    for file in files():
        assert set(file.dependency) <= seen
        assert file.name not in seen
        seen.add(file.name)
    assert "protos/rest.proto" in seen


def test_the_message_of_a_status_is_called_error() -> None:
    (status,) = (file for file in files() if file.package == "google.rpc")
    (message,) = status.message_type
    (field,) = message.field
    assert (message.name, field.name, field.number) == ("Status", "error", 2)
    assert field.type == field.TYPE_STRING


def test_the_services_keep_their_http_rules() -> None:
    (rest,) = (file for file in files() if file.name == "protos/rest.proto")
    wanted = descriptor_pb2.FileDescriptorProto()
    rest_pb2.DESCRIPTOR.CopyToProto(wanted)
    assert rest == wanted
    assert all(method.options.ByteSize() for s in rest.service for method in s.method)
