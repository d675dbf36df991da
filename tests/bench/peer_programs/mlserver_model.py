"""`simple` as a model of MLServer."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Simple(MLModel):
    """Adds and subtracts."""

    async def load(self):
        return True

    async def predict(self, payload):
        a, b = (NumpyCodec.decode_input(one) for one in payload.inputs)
        outputs = [
            NumpyCodec.encode_output(name, array)
            for name, array in (("OUTPUT0", a + b), ("OUTPUT1", a - b))
        ]
        return InferenceResponse(model_name=self.name, outputs=outputs)
