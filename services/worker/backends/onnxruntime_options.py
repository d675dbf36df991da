"""How an ONNX Runtime session computes, as a model configuration says it.

Source:
    The parameters of Triton's ONNX Runtime backend, by the names in its README.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.core.errors import ConfigError
from services.core.model_config import InstanceKind, ModelConfig
from services.worker.backends.parameters import Parameters

# Spinning threads win a few microseconds for one model and burn whole cores that
# the other instances, and the streams' threads, could use.
_ENTRIES: Final[Mapping[str, str]] = {
    "session.intra_op.allow_spinning": "0",
    "session.inter_op.allow_spinning": "0",
    # Which provider executes which node; told after loading.
    "session.record_ep_graph_assignment_info": "1",
}
_ENTRY_PREFIXES: Final = ("session.", "optimization.", "ep.")
_SHRINKAGE: Final = "memory.enable_memory_arena_shrinkage"
_ARENAS: Final = ("cpu", "gpu")

# By ``optimization.graph.level``; anything else, and none, is "all".
_GRAPH_LEVELS: Final[Mapping[int | None, str]] = {
    -1: "basic",
    1: "extended",
    2: "disabled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How a session computes.

    Attributes:
        intra_op_threads: Within one operator; 0: as many as cores.
        inter_op_threads: Across operators, if parallel; 0: as many as cores.
        is_parallel: Independent operators run at the same time.
        graph_level: "disabled", "basic", "extended" or "all".
        has_arena: CPU memory comes from an arena.
        has_pattern: Memory is planned ahead where shapes are known.
        entries: Configuration entries of the session, by name.
        shrunk: Whose arenas give memory back after each run: "cpu", "gpu".
    """

    intra_op_threads: int
    inter_op_threads: int
    is_parallel: bool
    graph_level: str
    has_arena: bool
    has_pattern: bool
    entries: Mapping[str, str]
    shrunk: tuple[str, ...]

    def run_entries(self, kind: InstanceKind) -> dict[str, str]:
        """Return the configuration entries of every run of a CPU or GPU instance.

        The only GPU that a worker sees is its number 0.
        """
        here = _ARENAS if kind is InstanceKind.GPU else _ARENAS[:1]
        shrunk = [f"{arena}:0" for arena in self.shrunk if arena in here]
        return {_SHRINKAGE: ";".join(shrunk)} if shrunk else {}


def session_settings(config: ModelConfig) -> SessionSettings:
    """Read the session's settings from a model configuration.

    Raises:
        ConfigError: a parameter's text is not what it has to be.
    """
    parameters = Parameters(f"model '{config.name}'", config.parameters)
    entries = dict(_ENTRIES)
    entries.update(
        (key, value)
        for key, value in config.parameters.items()
        if key.startswith(_ENTRY_PREFIXES)
    )
    has_arena = parameters.switch("enable_mem_arena", default=True)
    return SessionSettings(
        intra_op_threads=parameters.number("intra_op_thread_count", 0),
        inter_op_threads=parameters.number("inter_op_thread_count", 0),
        is_parallel=parameters.number("execution_mode", 0, most=1) == 1,
        graph_level=_GRAPH_LEVELS.get(config.optimization.graph_level, "all"),
        has_arena=has_arena,
        has_pattern=parameters.switch("enable_mem_pattern", default=True),
        entries=entries,
        shrunk=_shrunk(config, parameters, has_arena=has_arena),
    )


def _shrunk(
    config: ModelConfig, parameters: Parameters, *, has_arena: bool
) -> tuple[str, ...]:
    """Return the arenas to shrink, each once.

    What the runtime cannot shrink would fail every single run.
    """
    shrunk = []
    for place in config.parameters.get(_SHRINKAGE, "").split(";"):
        arena, colon, number = place.strip().partition(":")
        if not arena and not colon:
            continue
        if arena not in _ARENAS or (colon and not number.isdecimal()):
            raise parameters.wrong(_SHRINKAGE, "cpu:0, gpu:0 or cpu:0;gpu:0")
        if arena not in shrunk:
            shrunk.append(arena)
    if "cpu" in shrunk and not has_arena:
        message = (
            f"parameter '{_SHRINKAGE}' of model '{config.name}' shrinks the CPU's"
            " arena, and 'enable_mem_arena' switches it off"
        )
        raise ConfigError(message)
    return tuple(shrunk)
