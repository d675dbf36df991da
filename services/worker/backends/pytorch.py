"""PyTorch models: TorchScript, exported programs, AOTInductor packages."""

import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from services.core.errors import BackendError, ConfigError, ServingError
from services.core.model_config import InstanceKind, ModelConfig
from services.worker.backend import (
    FoundModel,
    InstancePlace,
    ModelSource,
    Runtime,
    Tensors,
)
from services.worker.backends.pytorch_cuda import CudaModel
from services.worker.backends.pytorch_form import (
    BoundModel,
    ModelForm,
    model_inputs,
    model_outputs,
)
from services.worker.backends.pytorch_modes import THREAD_COUNTS, ExecutionModes
from services.worker.backends.pytorch_options import TorchSettings, torch_settings
from services.worker.backends.pytorch_script import ScriptModel
from services.worker.backends.pytorch_tensors import to_numpy, to_torch
from services.worker.device import DeviceKind

_CPU: Final = "cpu"
_DEFAULT_FILENAME: Final = "model.pt"
_COMPILED_PLATFORM: Final = "torch_aoti"
# What only one form has in the zip archive that each of them is.
_COMPILED_FOLDER: Final = "/data/aotinductor/"
_SCRIPT_FOLDER: Final = "/code/"

# A C++ exception goes on with where it came from.
_ORIGINS: Final = ("\nException raised from ", "\nC++ CapturedTraceback:")


def runtime() -> Runtime:
    """Return the way to load PyTorch models."""
    # Those that write to their inputs get copies.
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    return TorchRuntime()


class TorchRuntime:
    """Loads PyTorch models; their form is told by what is in the file.

    As with Triton, each instance has a model of its own, unless
    ENABLE_WEIGHT_SHARING says that those on one device may share it.
    """

    def load(
        self, source: ModelSource, places: Sequence[InstancePlace]
    ) -> tuple["TorchModel", ...]:
        """Load one model version; see Runtime."""
        config = source.config
        settings = torch_settings(config)
        THREAD_COUNTS.decide(settings, config.name)
        shared: dict[str | None, ModelForm] = {}
        models = []
        for place in places:
            device = _device(source, place)
            if not settings.weight_sharing:
                form = _open(source, device, runners=1)
            elif device in shared:
                form = shared[device]
            else:
                form = shared[device] = _open(source, device, runners=len(places))
            model = form.bind(config)
            if device is not None and device != _CPU:
                model = _on_gpu(model, device, config)
            models.append(TorchModel(model, config, settings))
        return tuple(models)

    def inspect(self, source: ModelSource) -> FoundModel:
        """Read the model's tensors; see Runtime.

        Only exported programs tell. Of the others a configuration has to say all:
        refused with what Triton says of one that does not.
        """
        form = _open(source, None, runners=1)
        found = form.found
        if found is not None:
            return found
        config = source.config
        reason = (
            "model configuration must contain at least one output, none were specified"
            if config.inputs
            else f"unable to load model '{config.name}', configuration expects 0"
            f" inputs, model provides {form.input_count}"
        )
        message = (
            f"{reason}: {_path(source).name} does not tell the datatypes and shapes of"
            " its tensors, config.pbtxt has to"
        )
        raise ConfigError(message)


class TorchModel:
    """One instance of a PyTorch model; see Backend."""

    def __init__(
        self, model: BoundModel, config: ModelConfig, settings: TorchSettings
    ) -> None:
        """Serve ``model``."""
        self._model = model
        self._inputs = {spec.name: spec.datatype for spec in model_inputs(config)}
        self._outputs = {
            output.name: output.datatype for output in model_outputs(config)
        }
        self._modes = ExecutionModes(settings)
        self._cleans_cache = settings.cache_cleaning and torch.cuda.is_available()
        self._without_gradients = (
            torch.inference_mode() if settings.inference_mode else torch.no_grad()
        )

    def execute(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        """Run one batch; see Backend."""
        model = self._model
        try:
            with self._without_gradients:
                values = {
                    name: to_torch(
                        name,
                        array.copy() if name in model.written_inputs else array,
                        self._inputs[name],
                    )
                    for name, array in inputs.items()
                }
                self._modes.apply()
                found = model.call(values)
                return {
                    name: to_numpy(name, found[name], self._outputs[name])
                    for name in output_names
                }
        except ServingError:
            raise
        except KeyError as error:
            message = f"the model or the request has no tensor {error}"
            raise BackendError(message) from error
        except Exception as error:
            message = f"PyTorch execute failure: {_text(error)}"
            raise BackendError(message) from error
        finally:
            if self._cleans_cache:
                torch.cuda.empty_cache()

    def unload(self) -> None:
        """Let go of the model."""
        del self._model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _open(source: ModelSource, device: str | None, *, runners: int) -> ModelForm:
    """Load the file to a device; None: to where it was saved from.

    Args:
        source: The model.
        device: "cpu" or "cuda:0".
        runners: How many instances will call it.

    Raises:
        ConfigError: the file is of another form than the configuration says.
        BackendError: it cannot be loaded.
    """
    path = _path(source)
    try:
        content = _content(path)
        if any(_SCRIPT_FOLDER in name for name in content):
            _refuse_script(source.config, path)
            return ScriptModel(str(path), device)
        from services.worker.backends.pytorch_pt2 import open_pt2

        is_compiled = any(_COMPILED_FOLDER in name for name in content)
        return open_pt2(str(path), device, is_compiled=is_compiled, runners=runners)
    except ServingError:
        raise
    except Exception as error:
        message = f"failed to load model '{source.config.name}': {_text(error)}"
        raise BackendError(message) from error


def _content(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def _refuse_script(config: ModelConfig, path: Path) -> None:
    if config.platform == _COMPILED_PLATFORM:
        message = (
            f"model '{config.name}' has platform {_COMPILED_PLATFORM}, but {path.name}"
            " is a TorchScript file"
        )
        raise ConfigError(message)


def _path(source: ModelSource) -> Path:
    """Return the model's file.

    Raises:
        BackendError: there is none.
    """
    name = source.config.default_model_filename or _DEFAULT_FILENAME
    path = Path(source.directory) / name
    if not path.is_file():
        message = f"unable to find '{path}' for model instance '{source.config.name}'"
        raise BackendError(message)
    return path


def _device(source: ModelSource, place: InstancePlace) -> str | None:
    """Return where an instance is to run; None: where the model itself says."""
    groups = source.config.instance_groups
    kind = groups[place.group].kind if place.group < len(groups) else InstanceKind.AUTO
    has_gpu = source.device.kind is DeviceKind.GPU
    if kind is InstanceKind.MODEL:
        return None
    if kind is InstanceKind.GPU and not has_gpu:
        message = (
            f"instance {place.name} of model '{source.config.name}' has kind KIND_GPU"
            f" but this worker serves {source.device.label}"
        )
        raise ConfigError(message)
    # The only GPU that this process sees.
    return "cuda:0" if has_gpu and kind is not InstanceKind.CPU else _CPU


def _on_gpu(model: BoundModel, device: str, config: ModelConfig) -> BoundModel:
    pins = config.optimization.input_pinned_memory
    return replace(model, call=CudaModel(model, device, pins_inputs=pins).call)


def _text(error: Exception) -> str:
    """Return an error's message without the C++ stack behind it."""
    text = str(error) or type(error).__name__
    for origin in _ORIGINS:
        text = text.partition(origin)[0]
    return text.strip()
