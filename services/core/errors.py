"""Everything that can go wrong on purpose, without a word about transport.

``services.core.status`` maps each class to a gRPC code, once. A message is for
the client: it names the model, the tensor and both values that disagree, in
Triton's wording where Triton has one.
"""


class ServingError(Exception):
    """An error that a client is meant to read."""


class InvalidRequestError(ServingError):
    """The request contradicts the protocol or the model's configuration."""


class ConfigError(InvalidRequestError):
    """A model configuration that cannot be served."""


class AlreadyExistsError(ServingError):
    """A name that is taken."""


class ModelNotFoundError(ServingError):
    """No such model, or no such version of it."""


class ModelNotReadyError(ServingError):
    """The model is known, but nothing serves it now."""


class OverloadedError(ServingError):
    """A queue is full, or a request waited longer than it may."""


class StoppingError(ServingError):
    """The server no longer accepts requests."""


class RequestCancelledError(ServingError):
    """The client gave the request up."""


class DeadlineExceededError(ServingError):
    """The client's deadline passed first."""


class UnsupportedError(ServingError):
    """A feature that this server or this model does not have."""


class BackendError(ServingError):
    """The runtime failed on a request that was in order."""


class ExhaustedError(ServingError):
    """A batch did not fit on its device; a smaller one might."""


class InternalError(ServingError):
    """A failure the protocol reports as internal, told in full."""
