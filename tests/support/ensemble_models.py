"""A repository of ensembles and what they are made of, written for tests.

Imports neither protos nor services, so that tests with tritonclient may use it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from onnx import TensorProto, helper

_INPUT: Final = 'input {{ name: "{}" data_type: TYPE_INT32 dims: [ 16 ] }}'
_OUTPUT: Final = 'output {{ name: "{}" data_type: TYPE_INT32 dims: [ 16 ] }}'

# Adds 100 if the second input is left out; refuses negative numbers.
_PLUS: Final = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            first = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            second = pb_utils.get_input_tensor_by_name(request, "INPUT1")
            if first.min() < 0:
                code = pb_utils.TritonError.INVALID_ARG
                error = pb_utils.TritonError("negative", code)
                responses.append(pb_utils.InferenceResponse([], error=error))
                continue
            total = first + (100 if second is None else second.as_numpy())
            output = pb_utils.Tensor("OUTPUT0", total.astype("int32"))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""

# Responds with 0, 1, 2, ... as often as the first element says; -1 is an error
# after two.
_COUNT: Final = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            sender, count = request.get_response_sender(), int(given.flat[0])
            for i in range(2 if count < 0 else count):
                output = pb_utils.Tensor("OUTPUT0", np.full_like(given, i))
                sender.send(pb_utils.InferenceResponse([output]))
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            if count < 0:
                error = pb_utils.TritonError("negative")
                sender.send(pb_utils.InferenceResponse([], error=error), final)
            else:
                sender.send(flags=final)
"""

# Adds up what a sequence sends.
_SUM: Final = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            get = lambda name: pb_utils.get_input_tensor_by_name(request, name)
            given = get("INPUT0").as_numpy()
            key = int(get("CORRID").as_numpy().flat[0])
            before = 0 if get("START").as_numpy().flat[0] else self.sums[key]
            self.sums[key] = before + given
            output = pb_utils.Tensor("OUTPUT0", self.sums[key].astype("int32"))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""
_SEQUENCE: Final = """
sequence_batching { oldest { max_candidate_sequences: 32 } control_input [
  { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } },
  { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
] }
"""


def write_add_sub(root: Path, name: str, extra: str = "") -> None:
    """Write an ONNX model: OUTPUT0 is the sum, OUTPUT1 the difference."""
    infos = [
        helper.make_tensor_value_info(tensor, TensorProto.INT32, ["b", 16])
        for tensor in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    ]
    nodes = [
        helper.make_node(operator, ["INPUT0", "INPUT1"], [output])
        for operator, output in (("Add", "OUTPUT0"), ("Sub", "OUTPUT1"))
    ]
    graph = helper.make_graph(nodes, name, infos[:2], infos[2:])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    _write(root, name, "model.onnx", model.SerializeToString())
    tensors = [_INPUT.format(f"INPUT{i}") for i in (0, 1)]
    tensors += [_OUTPUT.format(f"OUTPUT{i}") for i in (0, 1)]
    config = "\n".join(tensors)
    (root / name / "config.pbtxt").write_text(
        f'backend: "onnxruntime" max_batch_size: 8 dynamic_batching {{}}\n{config}\n'
        f"instance_group {{ kind: KIND_CPU count: 1 }}\n{extra}"
    )


def write_plus(root: Path, name: str) -> None:
    """Write a Python model: the sum, 100 if INPUT1 is left out, no negatives."""
    _write(root, name, "model.py", _PLUS.encode())
    optional = _INPUT.format("INPUT1").replace("}", "optional: true }")
    config = "\n".join((_INPUT.format("INPUT0"), optional, _OUTPUT.format("OUTPUT0")))
    (root / name / "config.pbtxt").write_text(
        f'backend: "python" max_batch_size: 8 dynamic_batching {{}}\n{config}\n'
        "instance_group { kind: KIND_CPU count: 1 }\n"
    )


def write_count(root: Path, name: str) -> None:
    """Write a decoupled Python model: as many responses as INPUT0 says."""
    _write_python(root, name, _COUNT, "model_transaction_policy { decoupled: true }\n")


def write_sum(root: Path, name: str) -> None:
    """Write a Python model of sequences: the sum so far."""
    _write_python(root, name, _SUM, _SEQUENCE)


def _write_python(root: Path, name: str, text: str, extra: str) -> None:
    _write(root, name, "model.py", text.encode())
    config = "\n".join((_INPUT.format("INPUT0"), _OUTPUT.format("OUTPUT0")))
    (root / name / "config.pbtxt").write_text(
        f'backend: "python" max_batch_size: 8\n{config}\n'
        f"instance_group {{ kind: KIND_CPU count: 1 }}\n{extra}"
    )


def write_ensemble(
    root: Path,
    name: str,
    steps: Sequence[tuple[str, Mapping[str, str], Mapping[str, str]]],
    *,
    inputs: str = "A",
    outputs: str = "Z",
    optional: str = "",
    extra: str = "",
) -> None:
    """Write an ensemble; a step is (model, input map, output map)."""
    (root / name / "1").mkdir(parents=True)
    tensors = [
        _INPUT.format(each).replace(
            "}", "optional: true }" if each in optional else "}"
        )
        for each in inputs
    ]
    tensors += [_OUTPUT.format(each) for each in outputs]
    graph = "\n".join(
        f'step {{ model_name: "{model}" model_version: -1'
        f" {_map('input_map', reads)} {_map('output_map', writes)} }}"
        for model, reads, writes in steps
    )
    config = "\n".join(tensors)
    (root / name / "config.pbtxt").write_text(
        f'platform: "ensemble" max_batch_size: 8\n{config}\n'
        f"ensemble_scheduling {{\n{graph}\n}}\n{extra}"
    )


def _map(field: str, pairs: Mapping[str, str]) -> str:
    return " ".join(
        f'{field} {{ key: "{key}" value: "{value}" }}' for key, value in pairs.items()
    )


def _write(root: Path, name: str, filename: str, content: bytes) -> None:
    directory = root / name / "1"
    directory.mkdir(parents=True)
    (directory / filename).write_bytes(content)
