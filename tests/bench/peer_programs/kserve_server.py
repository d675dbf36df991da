"""`simple` as a model of KServe's Python server."""

import logging
import sys

import model_config_shim

model_config_shim.install()

import kserve  # noqa: E402 - the shim comes first
import numpy as np  # noqa: E402


def tensors(*names):
    """Describe tensors as its metadata has them."""
    return [{"name": n, "datatype": "INT32", "shape": [-1, 16]} for n in names]


class Simple(kserve.Model):
    """Adds and subtracts."""

    def __init__(self):
        super().__init__("simple")
        self.ready = True

    def get_input_types(self):
        return tensors("INPUT0", "INPUT1")

    def get_output_types(self):
        return tensors("OUTPUT0", "OUTPUT1")

    def predict(self, payload, headers=None, response_headers=None):
        del headers, response_headers
        a, b = (one.as_numpy() for one in payload.inputs)
        outputs = []
        for name, array in (("OUTPUT0", a + b), ("OUTPUT1", a - b)):
            output = kserve.InferOutput(name, list(array.shape), "INT32")
            output.set_data_from_numpy(array.astype(np.int32), binary_data=True)
            outputs.append(output)
        return kserve.InferResponse(payload.id, "simple", outputs)


if __name__ == "__main__":
    rest, inference = map(int, sys.argv[1:])
    # It logs a line for each call otherwise.
    logging.getLogger("kserve").setLevel(logging.WARNING)
    server = kserve.ModelServer(
        http_port=rest, grpc_port=inference, enable_latency_logging=False
    )
    server.start([Simple()])
