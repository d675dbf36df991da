"""The first inferences that a newcomer sees, sent through the public doors."""

import json
import struct
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc

from protos import inference_pb2 as pb
from protos.inference_pb2_grpc import GRPCInferenceServiceStub
from services.stack.file_features import features
from services.stack.readiness import reachable_host, url_of
from services.stack.settings import Door, StackSettings

TIMEOUT_S: Final = 30.0
WIDTH: Final = 16
ROOT: Final = Path(__file__).resolve().parents[2]
SAMPLES: Final = (
    "services/stack/quickstart.py",
    "README.md",
    "pyproject.toml",
    "scripts/serve",
    "protos/inference.proto",
)


def show(settings: StackSettings) -> None:
    """Send one inference through each door, classify a few files, say what is next.

    A failure is told, not raised: the stack serves on.
    """
    try:
        if settings.rest:
            _say(f"REST  simple: {_shown(*_infer_rest(settings.rest))}")
        if settings.grpc:
            with grpc.insecure_channel(_target(settings.grpc)) as channel:
                stub = GRPCInferenceServiceStub(channel)
                _say(f"gRPC  simple: {_shown(*_infer_grpc(stub))}")
                _classify(stub, settings.model_repositories)
    except (OSError, grpc.RpcError) as error:
        _say(f"the quickstart failed: {error}")
    _say(_what_next(settings))


def _infer_rest(door: Door) -> tuple[Sequence[int], Sequence[int]]:
    """Return 0..15 plus and minus 1, as the server answers in JSON.

    Raises:
        OSError: no answer, or an error.
    """
    tensors = {"INPUT0": list(range(WIDTH)), "INPUT1": [1] * WIDTH}
    body = {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [1, WIDTH], "data": data}
            for name, data in tensors.items()
        ]
    }
    request = urllib.request.Request(  # noqa: S310  http, by url_of
        f"{url_of(door)}/v2/models/simple/infer", data=json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
        answer = json.load(response)
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    return outputs["OUTPUT0"], outputs["OUTPUT1"]


def _infer_grpc(
    stub: "GRPCInferenceServiceStub",
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the same as raw tensors over gRPC.

    Raises:
        grpc.RpcError: no answer, or an error.
    """
    layout = struct.Struct(f"<{WIDTH}i")
    request = pb.ModelInferRequest(
        model_name="simple",
        inputs=[
            pb.ModelInferRequest.InferInputTensor(
                name=name, datatype="INT32", shape=[1, WIDTH]
            )
            for name in ("INPUT0", "INPUT1")
        ],
        raw_input_contents=[layout.pack(*range(WIDTH)), layout.pack(*[1] * WIDTH)],
    )
    answer = stub.ModelInfer(request, timeout=TIMEOUT_S)
    by_name = {
        output.name: layout.unpack(raw)
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
    return by_name["OUTPUT0"], by_name["OUTPUT1"]


def _classify(stub: "GRPCInferenceServiceStub", repositories: Sequence[str]) -> None:
    """Tell the type of a few files of this repository, if ``magika`` is served.

    Raises:
        grpc.RpcError: no answer, or an error.
    """
    labels_files = [Path(folder) / "magika" / "labels.txt" for folder in repositories]
    files = [ROOT / name for name in SAMPLES if (ROOT / name).is_file()]
    found = [path for path in labels_files if path.is_file()]
    if not found or not files:
        return
    labels = found[0].read_text().split()
    rows = [number for file in files for number in features(file.read_bytes())]
    shape = [len(files), len(rows) // len(files)]
    request = pb.ModelInferRequest(
        model_name="magika",
        inputs=[
            pb.ModelInferRequest.InferInputTensor(
                name="bytes", datatype="INT32", shape=shape
            )
        ],
        raw_input_contents=[struct.pack(f"<{len(rows)}i", *rows)],
    )
    answer = stub.ModelInfer(request, timeout=TIMEOUT_S)
    scores = memoryview(answer.raw_output_contents[0]).cast("f")
    for index, file in enumerate(files):
        row = scores[index * len(labels) : (index + 1) * len(labels)].tolist()
        score = max(row)
        label = labels[row.index(score)]
        _say(f"gRPC  magika: {file.relative_to(ROOT)} is {label} ({score:.0%})")


def _shown(added: Sequence[int], subtracted: Sequence[int]) -> str:
    return f"0..15 plus 1 = {list(added)}, minus 1 = {list(subtracted)}"


def _what_next(settings: StackSettings) -> str:
    """Return commands to try."""
    lines = ["try next:"]
    if settings.rest:
        url = url_of(settings.rest)
        data = ",".join(str(number) for number in range(WIDTH))
        tensors = ",".join(
            f'{{"name":"{name}","datatype":"INT32","shape":[1,{WIDTH}],"data":[{data}]}}'
            for name in ("INPUT0", "INPUT1")
        )
        lines += [
            f"  curl {url}/v2",
            f"  curl {url}/v2/models/simple/config",
            f"  curl {url}/v2/models/simple/infer -d '{{\"inputs\":[{tensors}]}}'",
        ]
    if settings.grpc:
        call = f"  grpcurl -plaintext {_target(settings.grpc)}"
        service = "inference.GRPCInferenceService"
        lines += [f"{call} list", f"{call} {service}/ServerMetadata"]
    if settings.metrics:
        lines.append(f"  curl {url_of(settings.metrics)}/metrics")
    return "\n".join(lines)


def _target(door: Door) -> str:
    host = reachable_host(door.host)
    return f"[{host}]:{door.port}" if ":" in host else f"{host}:{door.port}"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
