"""Models written in Python, each instance in a process of its own."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from services.core.errors import BackendError
from services.core.model_config import InstanceKind
from services.worker.backend import (
    CompletedConfig,
    InstancePlace,
    ModelSource,
    Runtime,
)
from services.worker.device import DeviceKind
from services.worker.python_backend.frames import Frame, Kind
from services.worker.python_backend.host import environment
from services.worker.python_backend.host.child import Child, ProcessGoneError
from services.worker.python_backend.host.python_model import (
    DecoupledPythonModel,
    PythonModel,
)
from services.worker.python_backend.host.supervised_child import StartChild
from services.worker.signature import (
    TensorSpec,
    input_specs,
    output_names,
    state_specs,
)

_DEFAULT_FILENAME: Final = "model.py"
_AUTO_COMPLETE: Final = b"auto_complete_config"


def runtime() -> Runtime:
    """Return the way to load Python models."""
    return PythonRuntime()


class PythonRuntime:
    """Loads Python models."""

    def load(
        self, source: ModelSource, places: Sequence[InstancePlace]
    ) -> tuple[PythonModel | DecoupledPythonModel, ...]:
        """Load one model version; see Runtime."""
        file = model_file(source)
        python = _interpreter(source)
        kind = DecoupledPythonModel if source.config.decoupled else PythonModel
        instances: list[PythonModel | DecoupledPythonModel] = []
        try:
            for place in places:
                instance = kind(
                    place.name,
                    _starter(python, place.name),
                    initialize_order(source, place, file),
                    [one.datatype for one in _inputs(source)],
                    peers=source.peers,
                    metrics=source.metrics,
                )
                instances.append(instance)
        except BaseException:
            for instance in instances:
                instance.unload()
            raise
        return tuple(instances)

    def inspect(self, source: ModelSource) -> CompletedConfig:
        """Have the model's ``auto_complete_config`` complete the configuration.

        A process is started for it only if the code speaks of that function.
        """
        file = model_file(source)
        if _AUTO_COMPLETE not in Path(file).read_bytes():
            return CompletedConfig(json=source.config_json)
        name = source.config.name
        child = _starter(_interpreter(source), name)(_ignore, _ignore)
        order = json.dumps({"file": file, "config": source.config_json})
        try:
            frame = child.order(Kind.COMPLETE_CONFIG, order.encode())
        except ProcessGoneError as error:
            text = f"the process of '{name}' ended in auto_complete_config"
            raise BackendError(text) from error
        finally:
            child.kill()
        if frame.kind == Kind.FAILED:
            raise BackendError(frame.body.decode(errors="replace"))
        return CompletedConfig(json=frame.body.decode())


def model_file(source: ModelSource) -> str:
    """Return the path of a model's code: in the version's folder or the model's.

    Raises:
        BackendError: there is none.
    """
    name = source.config.default_model_filename or _DEFAULT_FILENAME
    folder = Path(source.directory)
    candidates = (folder / name, folder.parent / name)
    for path in candidates:
        if path.is_file():
            return str(path)
    text = (
        f"Python model file not found in neither '{candidates[0]}' nor"
        f" '{candidates[1]}'"
    )
    raise BackendError(text)


def initialize_order(source: ModelSource, place: InstancePlace, file: str) -> bytes:
    """Return what a process needs to know to initialize the model."""
    config = source.config
    order = {
        "file": file,
        "instance": place.name,
        "inputs": [one.name for one in _inputs(source)],
        "outputs": output_names(config),
        "is_decoupled": config.decoupled,
        "args": {
            "model_config": source.config_json,
            "model_instance_kind": _kind(source, place),
            "model_instance_name": place.name,
            # Of the devices that its process sees: there is no other.
            "model_instance_device_id": "0",
            "model_repository": str(Path(source.directory).parent),
            "model_version": str(source.version),
            "model_name": config.name,
        },
    }
    return json.dumps(order).encode()


def _inputs(source: ModelSource) -> tuple[TensorSpec, ...]:
    return (*input_specs(source.config), *state_specs(source.config))


def _interpreter(source: ModelSource) -> str:
    folder = str(Path(source.directory).parent)
    return environment.interpreter(dict(source.config.parameters), folder)


def _ignore(_child: Child, _: object) -> None:
    """Take no notice of a process that only completes a configuration."""


def _kind(source: ModelSource, place: InstancePlace) -> str:
    groups = source.config.instance_groups
    kind = groups[place.group].kind if place.group < len(groups) else InstanceKind.AUTO
    if kind is InstanceKind.AUTO:
        return "GPU" if source.device.kind is DeviceKind.GPU else "CPU"
    return kind.name.removeprefix("KIND_")


def _starter(python: str, name: str) -> StartChild:
    def start(
        on_event: Callable[[Child, Frame], None], on_end: Callable[[Child, int], None]
    ) -> Child:
        return Child(python, name, on_event, on_end, environment.variables(python))

    return start
