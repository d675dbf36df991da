"""MiniLM sentence embeddings: its graph, written from its weights. Pure.

Source: "Attention Is All You Need" and BERT; the model card of all-MiniLM-L6-v2: the
mean of the last layer's tokens, made a unit vector.
"""

from typing import Final

import numpy as np

from demo.onnx_graph import Array, Graph
from demo.weights import Weights

WIDTH: Final = 384
HEADS: Final = 12
LAYERS: Final = 6
LONGEST: Final = 512
EPSILON: Final = 1e-12
# Big enough to leave a masked token without weight, small enough to be a float.
MASKED: Final = -1e9

_CONFIG: Final = f"""\
name: "minilm"
platform: "onnxruntime_onnx"
max_batch_size: 32
input [
  {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }}
]
output [ {{ name: "embedding" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
instance_group [ {{ kind: KIND_AUTO count: INSTANCES }} ]
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
dynamic_batching {{ }}
parameters {{
  key: "nereid_padding"
  value {{ string_value:
    '{{ "inputs": {{"input_ids": {{"dims": [0], "value": 0}}}},'
    '  "buckets": [8, 16, 32, 64, 128, 256, 512],'
    '  "mask": {{"name": "attention_mask", "of": "input_ids"}} }}'
  }}
}}
"""


def config(instances: int) -> str:
    """Return config.pbtxt: so many instances, each on a thread of its own.

    Batches side by side need not wait for each other's threads after each operator.
    """
    return _CONFIG.replace("INSTANCES", str(instances))


def minilm_model(weights: Weights) -> bytes:
    """Return the model: token ids and a mask in, a unit vector a row out."""
    graph = Graph("minilm")
    ids = graph.take("input_ids", "int64", ("batch", "length"))
    mask = graph.take("attention_mask", "int64", ("batch", "length"))
    graph.give("embedding", "float32", ("batch", WIDTH))
    real = graph.node("Cast", mask, to=1)
    bias = _mask_bias(graph, real)
    hidden = _embed(graph, weights, ids)
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        attended = _attend(graph, weights, prefix, hidden, bias)
        hidden = _norm(
            graph, weights, f"{prefix}attention.output.LayerNorm", hidden, attended
        )
        widened = _dense(graph, weights, f"{prefix}intermediate.dense", hidden)
        narrowed = _dense(
            graph, weights, f"{prefix}output.dense", graph.node("Gelu", widened)
        )
        hidden = _norm(graph, weights, f"{prefix}output.LayerNorm", hidden, narrowed)
    _pool(graph, hidden, real)
    return graph.model()


def _scalar(value: float) -> Array:
    return np.array(value, np.float32)


def _mask_bias(graph: Graph, real: str) -> str:
    """Return what is added to the scores: 0 for real tokens, else far below."""
    padded = graph.node("Sub", graph.weight(_scalar(1)), real)
    bias = graph.node("Mul", padded, graph.weight(_scalar(MASKED)))
    return graph.node("Unsqueeze", bias, graph.shape(1, 2))


def _embed(graph: Graph, weights: Weights, ids: str) -> str:
    words = graph.weight(weights["embeddings.word_embeddings.weight"])
    # All tokens are of the first sentence.
    places = (
        weights["embeddings.position_embeddings.weight"]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    length = graph.node("Shape", ids, start=1, end=2)
    place = graph.node(
        "Slice", graph.weight(places), graph.shape(0), length, graph.shape(0)
    )
    tokens = graph.node("Gather", words, ids)
    return _norm(graph, weights, "embeddings.LayerNorm", tokens, place)


def _attend(graph: Graph, weights: Weights, prefix: str, hidden: str, bias: str) -> str:
    size = WIDTH // HEADS
    apart = graph.shape(0, 0, HEADS, size)
    query, key, value = (
        graph.node(
            "Reshape",
            _dense(graph, weights, f"{prefix}attention.self.{name}", hidden),
            apart,
        )
        for name in ("query", "key", "value")
    )
    scores = graph.node(
        "MatMul",
        graph.node("Transpose", query, perm=(0, 2, 1, 3)),
        graph.node("Transpose", key, perm=(0, 2, 3, 1)),
    )
    scale = graph.weight(_scalar(size**0.5))
    shares = graph.node(
        "Softmax", graph.node("Add", graph.node("Div", scores, scale), bias), axis=-1
    )
    mixed = graph.node(
        "MatMul", shares, graph.node("Transpose", value, perm=(0, 2, 1, 3))
    )
    together = graph.node(
        "Reshape",
        graph.node("Transpose", mixed, perm=(0, 2, 1, 3)),
        graph.shape(0, 0, WIDTH),
    )
    return _dense(graph, weights, f"{prefix}attention.output.dense", together)


def _dense(graph: Graph, weights: Weights, name: str, hidden: str) -> str:
    turned = graph.weight(weights[f"{name}.weight"].T)
    bias = graph.weight(weights[f"{name}.bias"])
    return graph.node("Add", graph.node("MatMul", hidden, turned), bias)


def _norm(graph: Graph, weights: Weights, name: str, one: str, other: str) -> str:
    """Return the sum of two, normalised."""
    return graph.node(
        "LayerNormalization",
        graph.node("Add", one, other),
        graph.weight(weights[f"{name}.weight"]),
        graph.weight(weights[f"{name}.bias"]),
        epsilon=EPSILON,
    )


def _pool(graph: Graph, hidden: str, real: str) -> None:
    """Give the unit vector in the direction of the mean of the real tokens."""
    share = graph.node("Unsqueeze", real, graph.shape(2))
    total = graph.node(
        "ReduceSum", graph.node("Mul", hidden, share), graph.shape(1), keepdims=0
    )
    length = graph.node("ReduceL2", total, graph.shape(1), keepdims=1)
    least = graph.weight(_scalar(EPSILON))
    graph.node("Div", total, graph.node("Max", length, least), output="embedding")
