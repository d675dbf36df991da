"""Text in, embedding out: tokenizes, then calls the model ``minilm``."""

import asyncio
import sys
from pathlib import Path

import numpy as np

# Beside this folder, since the worker's environment need not have it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packages"))

import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

LONGEST = 512


class TritonPythonModel:
    """One instance."""

    def initialize(self, args):
        """Read the vocabulary."""
        file = Path(args["model_repository"]) / "tokenizer.json"
        self.tokenizer = Tokenizer.from_file(str(file))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(LONGEST)

    async def execute(self, requests):
        """Answer all requests at once: ``minilm`` makes batches of their texts."""
        return await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        """Return the embeddings of one request's texts."""
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
        try:
            decoded = [text.decode() for text in texts.reshape(-1)]
        except UnicodeDecodeError as error:
            return failure(f"a text is not UTF-8: {error}")
        encoded = self.tokenizer.encode_batch(decoded)
        responses = await asyncio.gather(*(embed(one.ids, request) for one in encoded))
        for response in responses:
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
        rows = [
            pb_utils.get_output_tensor_by_name(response, "embedding").as_numpy()
            for response in responses
        ]
        embedding = pb_utils.Tensor("embedding", np.concatenate(rows))
        return pb_utils.InferenceResponse([embedding])


async def embed(ids, received):
    """Return what ``minilm`` answers for one text; it pads and masks itself."""
    row = pb_utils.Tensor("input_ids", np.array([ids], np.int64))
    request = pb_utils.InferenceRequest(
        model_name="minilm",
        requested_output_names=["embedding"],
        inputs=[row],
        trace=received.trace(),
    )
    return await request.async_exec()


def failure(text):
    """Return a response that blames the client."""
    error = pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG)
    return pb_utils.InferenceResponse(error=error)
