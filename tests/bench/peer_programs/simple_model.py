"""`simple` as a Python model, for Triton and for Nereid."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Adds and subtracts."""

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            tensors = [
                pb_utils.Tensor("OUTPUT0", a + b),
                pb_utils.Tensor("OUTPUT1", a - b),
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
