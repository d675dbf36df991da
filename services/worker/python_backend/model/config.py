"""What ``auto_complete_config`` may change, and what reads a configuration."""

import copy
import json
from typing import Any, TypeAlias

Properties: TypeAlias = dict[str, Any]


class ModelConfig:
    """A configuration that is being completed."""

    def __init__(self, config: str | Properties) -> None:
        """Begin with what is written, JSON or its objects."""
        found = json.loads(config) if isinstance(config, str) else config
        self._config: Properties = copy.deepcopy(found)

    def as_dict(self) -> Properties:
        """Return a copy; changing it changes nothing."""
        return copy.deepcopy(self._config)

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set it, unless the file says less than it would be set to.

        Raises:
            ValueError: the file says more than the model can.
        """
        written = self._config.get("max_batch_size", 0)
        if written > max_batch_size:
            raise ValueError(
                "configuration specified max_batch_size"
                f" {written}, but in auto-complete-config function for model"
                f" '{self._config['name']}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Have requests batched, unless another scheduler is configured.

        Raises:
            ValueError: another one is.
        """
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._config:
                raise ValueError(
                    f"Configuration specified {other}, but in auto-complete-config"
                    f" function for model '{self._config['name']}' tried to set"
                    " dynamic_batching"
                )
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, policy: Properties) -> None:
        """Say whether the model is decoupled.

        Raises:
            ValueError: the file says otherwise, or ``policy`` says more.
        """
        if set(policy) != {"decoupled"}:
            raise ValueError(
                "model transaction property in auto-complete-config function for model"
                f" '{self._config['name']}' contains property other than 'decoupled'."
            )
        written = self._config.get("model_transaction_policy")
        if written and written.get("decoupled", False) != policy["decoupled"]:
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model"
                f" '{self._config['name']}', which is already set to"
                f" '{written['decoupled']}'."
            )
        self._config["model_transaction_policy"] = dict(policy)

    def add_input(self, properties: Properties) -> None:
        """Add an input, or check the one of this name that is configured.

        Raises:
            ValueError: a property is missing, unknown or contradicted.
        """
        self._add("input", properties, ("name", "data_type", "dims", "optional"))

    def add_output(self, properties: Properties) -> None:
        """Add an output, or check the one of this name that is configured.

        Raises:
            ValueError: a property is missing, unknown or contradicted.
        """
        self._add("output", properties, ("name", "data_type", "dims"))

    def _add(self, kind: str, properties: Properties, known: tuple[str, ...]) -> None:
        model = self._config["name"]
        where = f"{kind} in auto-complete-config function for model '{model}'"
        for key in properties:
            if key not in known:
                raise ValueError(
                    f"{where} contains property other than"
                    f" {', '.join(repr(one) for one in known)}."
                )
        for key in ("name", "data_type", "dims"):
            if key not in properties:
                raise ValueError(f"{where} is missing '{key}' property.")
        tensors = self._config.setdefault(kind, [])
        for tensor in tensors:
            if tensor["name"] == properties["name"]:
                _check_agreement(model, kind, tensor, properties)
                return
        tensors.append(dict(properties))


def _check_agreement(
    model: str, kind: str, written: Properties, properties: Properties
) -> None:
    for key in ("data_type", "dims"):
        ours, theirs = written.get(key), properties[key]
        if key == "dims":
            ours, theirs = [int(one) for one in ours or ()], list(theirs)
        if ours != theirs:
            raise ValueError(
                f"model '{model}', {kind} '{properties['name']}': the model expects"
                f" {key} {theirs} but the model configuration specifies {ours}"
            )


def get_input_config_by_name(model_config: Properties, name: str) -> Properties | None:
    """Return an input's part of a configuration; None if there is none."""
    return _by_name(model_config, "input", name)


def get_output_config_by_name(model_config: Properties, name: str) -> Properties | None:
    """Return an output's part of a configuration; None if there is none."""
    return _by_name(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config: Properties) -> bool:
    """Return whether a configuration says that the model is decoupled."""
    policy = model_config.get("model_transaction_policy", {})
    return bool(policy.get("decoupled", False))


def _by_name(model_config: Properties, kind: str, name: str) -> Properties | None:
    for tensor in model_config.get(kind, ()):
        if tensor["name"] == name:
            found: Properties = tensor
            return found
    return None
