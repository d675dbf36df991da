"""`simple` as an API of LitServe, in the JSON of the V2 protocol.

LitServe has no protocol of its own beyond JSON; its routes are those that perf_analyzer
asks for, and so are its documents.
"""

import sys

import litserve
import numpy as np


class Simple(litserve.LitAPI):
    """Adds and subtracts."""

    def setup(self, device):
        del device

    def decode_request(self, request):
        tensors = [
            np.array(one["data"], np.int32).reshape(one["shape"])
            for one in request["inputs"]
        ]
        return request.get("id", ""), *tensors

    def predict(self, request):
        request_id, a, b = request
        return request_id, a + b, a - b

    def encode_response(self, answer):
        request_id, *arrays = answer
        outputs = [
            {
                "name": f"OUTPUT{number}",
                "datatype": "INT32",
                "shape": list(array.shape),
                "data": array.reshape(-1).tolist(),
            }
            for number, array in enumerate(arrays)
        ]
        return {
            "id": request_id,
            "model_name": "simple",
            "model_version": "1",
            "outputs": outputs,
        }


TENSOR = {"datatype": "INT32", "shape": [-1, 16]}
METADATA = {
    "name": "simple",
    "versions": ["1"],
    "platform": "litserve",
    "inputs": [{"name": name, **TENSOR} for name in ("INPUT0", "INPUT1")],
    "outputs": [{"name": name, **TENSOR} for name in ("OUTPUT0", "OUTPUT1")],
}
CONFIG = {"name": "simple", "platform": "litserve", "max_batch_size": 64}
CONFIG["input"] = [
    {"name": name, "data_type": "TYPE_INT32", "dims": [16]}
    for name in ("INPUT0", "INPUT1")
]
CONFIG["output"] = [
    {"name": name, "data_type": "TYPE_INT32", "dims": [16]}
    for name in ("OUTPUT0", "OUTPUT1")
]

if __name__ == "__main__":
    server = litserve.LitServer(Simple(api_path="/v2/models/simple/infer"))

    @server.app.get("/v2")
    async def about():
        return {"name": "litserve", "version": "1", "extensions": []}

    @server.app.get("/v2/models/simple")
    async def metadata():
        return METADATA

    @server.app.get("/v2/models/simple/config")
    async def config():
        return CONFIG

    @server.app.get("/v2/models/simple/ready")
    @server.app.get("/v2/health/ready")
    async def ready():
        return {}

    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        generate_client_file=False,
        log_level="error",
    )
