"""MobileNetV2, an ImageNet classifier: its graph, written from its weights. Pure.

Source: "MobileNetV2: Inverted Residuals and Linear Bottlenecks", table 2; the names of
the weights are torchvision's.
"""

from typing import Final

import numpy as np

from demo.onnx_graph import Graph
from demo.weights import Weights

SIDE: Final = 224
CLASSES: Final = 1000
EPSILON: Final = 1e-5
# How often, and with which stride at first, blocks follow each other.
STAGES: Final = ((1, 1), (2, 2), (3, 2), (4, 2), (3, 1), (3, 2), (1, 1))

_CONFIG: Final = f"""\
name: "mobilenet"
platform: "onnxruntime_onnx"
max_batch_size: 16
input [
  {{
    name: "image"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, {SIDE}, {SIDE} ]
  }}
]
output [
  {{
    name: "probabilities"
    data_type: TYPE_FP32
    dims: [ {CLASSES} ]
    label_filename: "labels.txt"
  }}
]
instance_group [ {{ kind: KIND_AUTO count: INSTANCES }} ]
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
dynamic_batching {{ }}
"""


def config(instances: int) -> str:
    """Return config.pbtxt: so many instances, each on a thread of its own.

    Batches side by side need not wait for each other's threads after each operator.
    """
    return _CONFIG.replace("INSTANCES", str(instances))


def mobilenet_model(weights: Weights) -> bytes:
    """Return the model: normalised images in, the probabilities of classes out."""
    graph = Graph("mobilenet")
    image = graph.take("image", "float32", ("batch", 3, SIDE, SIDE))
    graph.give("probabilities", "float32", ("batch", CLASSES))
    hidden = _convolve(graph, weights, "features.0", image, stride=2)
    block = 1
    for repeats, first_stride in STAGES:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            bottleneck = _block(graph, weights, block, hidden, stride)
            hidden = graph.node("Add", hidden, bottleneck) if repeat else bottleneck
            block += 1
    hidden = _convolve(graph, weights, f"features.{block}", hidden)
    pooled = graph.node("Flatten", graph.node("GlobalAveragePool", hidden))
    logits = graph.node(
        "Gemm",
        pooled,
        graph.weight(weights["classifier.1.weight"]),
        graph.weight(weights["classifier.1.bias"]),
        transB=1,
    )
    graph.node("Softmax", logits, axis=-1, output="probabilities")
    return graph.model()


def _block(
    graph: Graph, weights: Weights, number: int, hidden: str, stride: int
) -> str:
    """Widen (but for the first block), convolve each channel alone, narrow."""
    prefix = f"features.{number}.conv"
    place = 0
    if number > 1:
        hidden = _convolve(graph, weights, f"{prefix}.0", hidden)
        place = 1
    hidden = _convolve(graph, weights, f"{prefix}.{place}", hidden, stride=stride)
    return _convolve(
        graph,
        weights,
        f"{prefix}.{place + 1}",
        hidden,
        norm=f"{prefix}.{place + 2}",
        bounded=False,
    )


def _convolve(
    graph: Graph,
    weights: Weights,
    name: str,
    hidden: str,
    *,
    stride: int = 1,
    norm: str = "",
    bounded: bool = True,
) -> str:
    """Convolve, with the normalisation that follows folded into the weights."""
    kernel = weights[f"{name}.weight" if norm else f"{name}.0.weight"]
    norm = norm or f"{name}.1"
    deviation = np.sqrt(weights[f"{norm}.running_var"] + EPSILON)
    factor = weights[f"{norm}.weight"] / deviation
    bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * factor
    channels, inputs, side, _ = kernel.shape
    found = graph.node(
        "Conv",
        hidden,
        graph.weight((kernel * factor[:, None, None, None]).astype(np.float32)),
        graph.weight(bias.astype(np.float32)),
        kernel_shape=(side, side),
        strides=(stride, stride),
        pads=(side // 2,) * 4,
        group=channels if inputs == 1 else 1,
    )
    if not bounded:
        return found
    low, high = (graph.weight(np.array(bound, np.float32)) for bound in (0, 6))
    return graph.node("Clip", found, low, high)
