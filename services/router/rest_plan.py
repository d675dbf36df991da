"""A REST inference request and its answer, as the parts of the codec agree on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from services.core.model_config import ModelConfig

# Part of a body: a slice of it, where that saves a copy.
Piece: TypeAlias = bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """What the codec knows of the model that the path names.

    Attributes:
        name: As in the path.
        version: As in the path; "" if it names none.
        config: Of the version that will answer.
    """

    name: str
    version: str
    config: ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPlan:
    """How the client wants its answer.

    Attributes:
        binary_by_default: Whether outputs that ``binary`` does not name go as raw
            bytes behind the JSON.
        binary: The same for the outputs named in the request.
        in_shared_memory: Outputs that the client reads elsewhere.
        encoding: gzip, deflate, or "" for an answer as it is.
    """

    binary_by_default: bool = False
    binary: Mapping[str, bool] = field(default_factory=dict)
    in_shared_memory: frozenset[str] = frozenset()
    encoding: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestInfer:
    """A request as its door hands it on.

    Attributes:
        request: A serialized ``inference.ModelInferRequest`` with raw contents.
        reply: What to do with the answer.
    """

    request: bytes
    reply: ReplyPlan
