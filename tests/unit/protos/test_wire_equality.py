"""Our public schema is Triton's, symbol by symbol.

Both define the package ``inference``, which one process cannot hold twice, so
the client's side is read in a process of its own.
"""

import base64
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from protos import inference_pb2, model_config_pb2

PRINT_CLIENT_SCHEMA = """
import base64
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tritonclient.grpc import model_config_pb2, service_pb2
for module in (model_config_pb2, service_pb2):
    schema = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(schema)
    print(base64.b64encode(schema.SerializeToString()).decode())
"""

Facts = Mapping[str, object]


@pytest.fixture(scope="module")
def theirs() -> Facts:
    run = subprocess.run(
        [sys.executable, "-c", PRINT_CLIENT_SCHEMA],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    return facts(
        *(
            FileDescriptorProto.FromString(base64.b64decode(line))
            for line in run.stdout.split()
        )
    )


def our_schemas() -> tuple[FileDescriptorProto, FileDescriptorProto]:
    config, service = FileDescriptorProto(), FileDescriptorProto()
    model_config_pb2.DESCRIPTOR.CopyToProto(config)
    inference_pb2.DESCRIPTOR.CopyToProto(service)
    return config, service


def facts(*schemas: FileDescriptorProto) -> Facts:
    """Return everything a client could notice, by symbol; no file names."""
    found: dict[str, object] = {}
    for schema in schemas:
        for message in schema.message_type:
            found[f"syntax of {message.name}"] = schema.syntax
            found.update(message_facts(f".{schema.package}", message))
        for enum in schema.enum_type:
            found.update(enum_facts(f".{schema.package}", enum))
        for service in schema.service:
            for method in service.method:
                found[f"rpc /{schema.package}.{service.name}/{method.name}"] = (
                    (method.input_type, method.client_streaming),
                    (method.output_type, method.server_streaming),
                )
    return found


def message_facts(scope: str, message: DescriptorProto) -> Iterator[tuple[str, object]]:
    path = f"{scope}.{message.name}"
    options = message.options.SerializeToString(deterministic=True)
    # The order of the fields is the order of JSON.
    yield (
        f"message {path}",
        (
            options,
            [field.name for field in message.field],
            list(message.reserved_name),
            [(span.start, span.end) for span in message.reserved_range],
            [(span.start, span.end) for span in message.extension_range],
        ),
    )
    for field in message.field:
        yield f"field {path}.{field.name}", field_facts(message, field)
    for enum in message.enum_type:
        yield from enum_facts(path, enum)
    for nested in message.nested_type:
        yield from message_facts(path, nested)


def field_facts(message: DescriptorProto, field: FieldDescriptorProto) -> object:
    member = field.HasField("oneof_index")
    return {
        "number": field.number,
        "type": FieldDescriptorProto.Type.Name(field.type),
        "type_name": field.type_name,
        "label": FieldDescriptorProto.Label.Name(field.label),
        "oneof": message.oneof_decl[field.oneof_index].name if member else None,
        "json_name": field.json_name,
        "proto3_optional": field.proto3_optional,
        "default": field.default_value,
        "options": field.options.SerializeToString(deterministic=True),
    }


def enum_facts(scope: str, enum: EnumDescriptorProto) -> Iterator[tuple[str, object]]:
    options = enum.options.SerializeToString(deterministic=True)
    values = [(value.name, value.number) for value in enum.value]
    yield f"enum {scope}.{enum.name}", (options, values)


def differences(ours: Facts, theirs: Facts) -> list[str]:
    return [
        f"{symbol}: ours {ours.get(symbol, 'missing')},"
        f" theirs {theirs.get(symbol, 'missing')}"
        for symbol in sorted(ours.keys() | theirs.keys())
        if ours.get(symbol) != theirs.get(symbol)
    ]


def test_the_schema_is_that_of_the_client(theirs: Facts) -> None:
    found = differences(facts(*our_schemas()), theirs)
    assert not found, "\n".join(found)


def test_the_client_was_read_whole(theirs: Facts) -> None:
    kinds = [symbol.split(" ", 1)[0] for symbol in theirs]
    assert kinds.count("rpc") == 20
    assert "message .inference.ModelConfig" in theirs
    assert "field .inference.ModelInferRequest.raw_input_contents" in theirs


def _rename_field(config: FileDescriptorProto, _: FileDescriptorProto) -> None:
    config.message_type[0].field[0].name += "_"


def _renumber_field(_: FileDescriptorProto, service: FileDescriptorProto) -> None:
    service.message_type[0].field[0].number = 99


def _retype_field(config: FileDescriptorProto, _: FileDescriptorProto) -> None:
    config.message_type[0].field[0].type = FieldDescriptorProto.TYPE_BYTES


def _repeat_field(config: FileDescriptorProto, _: FileDescriptorProto) -> None:
    config.message_type[0].field[0].label = FieldDescriptorProto.LABEL_REPEATED


def _leave_oneof(config: FileDescriptorProto, _: FileDescriptorProto) -> None:
    message = next(found for found in config.message_type if found.oneof_decl)
    member = next(field for field in message.field if field.HasField("oneof_index"))
    member.ClearField("oneof_index")


def _reorder_fields(config: FileDescriptorProto, _: FileDescriptorProto) -> None:
    config.message_type[0].field.append(config.message_type[0].field.pop(0))


def _add_message(_: FileDescriptorProto, service: FileDescriptorProto) -> None:
    service.message_type.add(name="Superfluous")


def _drop_message(_: FileDescriptorProto, service: FileDescriptorProto) -> None:
    del service.message_type[-1]


def _drop_enum_value(config: FileDescriptorProto, _: FileDescriptorProto) -> None:
    del config.enum_type[0].value[-1]


def _drop_rpc(_: FileDescriptorProto, service: FileDescriptorProto) -> None:
    del service.service[0].method[-1]


def _stream_rpc(_: FileDescriptorProto, service: FileDescriptorProto) -> None:
    service.service[0].method[0].server_streaming = True


@pytest.mark.parametrize(
    "change",
    [
        _rename_field,
        _renumber_field,
        _retype_field,
        _repeat_field,
        _leave_oneof,
        _reorder_fields,
        _add_message,
        _drop_message,
        _drop_enum_value,
        _drop_rpc,
        _stream_rpc,
    ],
)
def test_any_change_would_be_noticed(
    change: Callable[[FileDescriptorProto, FileDescriptorProto], None],
) -> None:
    config, service = our_schemas()
    before = facts(config, service)
    change(config, service)
    assert differences(facts(config, service), before)
    assert differences(before, facts(config, service))
