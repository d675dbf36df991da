"""The ONNX model that adds and subtracts. Pure."""

from demo.onnx_graph import Graph


def add_sub_model(*, width: int) -> bytes:
    """Return a model with OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1.

    Args:
        width: All four are INT32 of shape ``(batch, width)``.
    """
    graph = Graph("simple")
    inputs = [
        graph.take(name, "int32", ("batch", width)) for name in ("INPUT0", "INPUT1")
    ]
    for operator, output in (("Add", "OUTPUT0"), ("Sub", "OUTPUT1")):
        graph.node(operator, *inputs, output=output)
        graph.give(output, "int32", ("batch", width))
    return graph.model()
