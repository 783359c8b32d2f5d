"""Put a published model into the cache: MiniFASNets as exports that need no torch, other files as their authors wrote.

The checkpoint of a MiniFASNet becomes an ONNX graph layer by layer. Channels and kernels follow from the shapes of its
tensors, strides from the names of its layers. Nothing is left behind if a step fails.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.extensions import missing_extra
from fedvisage.base.files import json_key, lock_directory, replaced_when_complete, write_atomically
from fedvisage.base.progress import Say, discard, in_steps
from fedvisage.base.version import VERSION
from fedvisage.device.exported import (
    CARD,
    CONFIG,
    GRAPH,
    INPUT,
    OUTPUTS,
    Description,
    Exported,
    OperatingPoint,
    entry_of,
    write_export,
)
from fedvisage.device.fused import FusedConfig, FusedMember, digest_of, folder_of, open_export, write_fused
from fedvisage.faces.cropping import record_of
from fedvisage.metrics.threshold import FIXED
from fedvisage.starts.checkpoint import read_state
from fedvisage.starts.download import download, find_given
from fedvisage.starts.published import DetectorPart, PublishedFile, PublishedModel

if TYPE_CHECKING:
    from onnx import ModelProto

START = "start.safetensors"
"""The file of a model that is converted to a start."""


def get_model(model: PublishedModel, cache: Path, *, given: Sequence[Path] = (), say: Say = discard) -> Path:
    """Return a published model's directory in the cache; download it, or take the user's files, if it is not there."""
    check_installed(model)
    out = model.directory(cache)
    downloads = cache / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    with lock_directory(downloads):
        if out.is_dir():
            return out
        sources = []
        for file in model.files:
            if given:
                sources.append(find_given(file, given))
            else:
                with in_steps(f"bytes of {file.name}", say) as steps:
                    sources.append(download(file, downloads, steps=steps))
        with replaced_when_complete(out) as directory:
            if model.task == "pad":
                _write_detector(directory, model, sources)
            elif model.network:
                from fedvisage.starts.convert import convert

                source = directory / model.files[0].name  # conversion reads the format from the name
                shutil.copyfile(sources[0], source)
                convert(source, model.network, directory / START, licence=model.weights_licence)
                source.unlink()
            else:
                shutil.copyfile(sources[0], directory / model.files[0].name)
            if model.task != "pad":
                _write_card(directory, model, model.files, [])
        if not given:
            for source in sources:
                source.unlink()
    return out


def check_installed(model: PublishedModel) -> None:
    """Refuse a model that is converted with torch, if torch is not installed."""
    if model.network and find_spec("torch") is None:
        raise missing_extra("train", "torch")


def _write_detector(directory: Path, model: PublishedModel, sources: Sequence[Path]) -> None:
    """Write one export, or for several files a fused model, and open it with all its checks."""
    if len(model.files) == 1:
        _write_member(directory, model, model.files[0], model.parts[0], sources[0])
        open_export(directory)
        return
    members, digests = [], []
    for number, (file, part, source) in enumerate(zip(model.files, model.parts, sources, strict=True), 1):
        place = folder_of(directory, number)
        place.mkdir(parents=True)
        _write_member(place, model, file, part, source)
        members.append(FusedMember(config=entry_of(place / CONFIG), weight=1.0, scale=part.scale))
        digests.append(Exported.open(place).digest)
    point = OperatingPoint(value=FIXED, rule="fixed")
    digest = digest_of(members, digests)
    write_fused(directory, FusedConfig(members=tuple(members), model_sha256=digest, threshold=point, version=VERSION))
    sums = [f"{file.name}: log-odds / {part.scale:g}" for file, part in zip(model.files, model.parts, strict=True)]
    _write_card(directory, model, model.files, [f"The score is the sum over the members: {'; '.join(sums)}."])
    open_export(directory)


def _write_member(
    directory: Path, model: PublishedModel, file: PublishedFile, part: DetectorPart, source: Path
) -> None:
    graph, size = graph_of(read_state(source), source)
    path = directory / GRAPH
    path.parent.mkdir()
    write_atomically(path, graph.SerializeToString(deterministic=True))
    described = {"file": asdict(file), "margin": part.margin, "size": size}
    description = Description(
        task="pad",
        method="minifasnet",
        size=size,
        model_sha256=file.sha256,
        recipe_sha256=hashlib.sha256(json_key(described).encode()).hexdigest(),
        threshold=OperatingPoint(value=FIXED, rule="fixed"),
        crop=record_of("face", margin=part.margin),
        version=VERSION,
    )
    write_export(directory, description)
    lines = [
        f"Crops: {part.margin:g} times the longer side of the face box, at {size} pixels. The graph `{GRAPH}` takes"
        f" `{INPUT}`, uint8 N×{size}×{size}×3 in RGB, and gives `score`, the probability of a living face, and `logit`."
    ]
    _write_card(directory, model, [file], lines)


def _write_card(directory: Path, model: PublishedModel, files: Sequence[PublishedFile], lines: Sequence[str]) -> None:
    """Write the card: origin, digests, licences, training data and limits."""
    text = [
        "---",
        "library_name: fedvisage",
        f"tags: [face, onnx, {'presentation-attack-detection, liveness' if model.task == 'pad' else model.task}]",
        "---",
        "",
        f"# {model.title if len(files) == len(model.files) else files[0].name}",
        "",
        "A published model, converted and not trained further.",
        *lines,
        "",
        "## Origin",
        *(f"- {file.address}, {file.bytes:,} bytes, SHA-256 `{file.sha256}`" for file in files),
        f"- Licence of the code: {model.code_licence}",
        f"- Licence of the weights: {model.weights_licence}",
        f"- Training data: {model.training_data}",
        "",
        "## Limits",
        *(f"- {limit}" for limit in model.limits),
        "- A decision is a probability, not proof. Do not refuse or admit anybody on it alone.",
    ]
    write_atomically(directory / CARD, ("\n".join(text) + "\n").encode())


# The graph of a MiniFASNet.

OPSET, IR_VERSION = 20, 10
LIMIT = 40.0
"""The largest absolute logit, as in graphs of trained models."""

REDUCTION = 16
"""The side of a picture over that of the last map, which the last kernel covers."""

LEFT_OUT = ("FTGenerator.",)
"""The branch of the authors' training that predicts Fourier spectra."""


def graph_of(state: Mapping[str, NDArray[Any]], source: Path) -> tuple[ModelProto, int]:
    """Return the graph of a MiniFASNet from crops to score and logit, and the side of its crops in pixels."""
    layers = _Layers(state, source)
    size = REDUCTION * layers.kernel("conv_6_dw.conv")
    values = layers.add("Cast", [INPUT], to=1)
    values = layers.add("Transpose", [values], perm=[0, 3, 1, 2])
    values = layers.convolve("conv1", values, stride=2)
    values = layers.convolve("conv2_dw", values)
    for first, rest in (("conv_23", "conv_3"), ("conv_34", "conv_4"), ("conv_45", "conv_5")):
        values = layers.bottleneck(first, values, stride=2)
        for number in count():
            block = f"{rest}.model.{number}"
            if not layers.has(f"{block}.conv.conv.weight"):
                break
            values = layers.add("Add", [values, layers.bottleneck(block, values, stride=1)])
    values = layers.convolve("conv_6_sep", values)
    values = layers.convolve("conv_6_dw", values, padded=False)
    # Linear layers are convolutions of one pixel here.
    values = layers.normalise("bn", layers.linear("linear", values))
    classes = layers.add("Flatten", [layers.linear("prob", values)])
    # The log-odds of class 1, a living face, against the two kinds of attack.
    live, attacks = (
        layers.add("Gather", [classes, layers.constant(np.array(which))], axis=1) for which in ([1], [0, 2])
    )
    axis = layers.constant(np.array([1]))
    odds = layers.add("Sub", [live, layers.add("ReduceLogSumExp", [attacks, axis], keepdims=1)])
    limits = [layers.constant(np.array(limit, np.float32)) for limit in (-LIMIT, LIMIT)]
    score, logit = OUTPUTS["pad"]
    layers.add("Clip", [layers.add("Squeeze", [odds, axis]), *limits], output=logit)
    layers.add("Sigmoid", [logit], output=score)
    return layers.model(size), size


class _Layers:
    """Collects the nodes and constants of a graph, and the tensors of the checkpoint that it used."""

    def __init__(self, state: Mapping[str, NDArray[Any]], source: Path) -> None:
        # The authors trained on several GPUs, which prefixes every name.
        plain = {name.removeprefix("module."): value for name, value in state.items()}
        self._state = {name: value for name, value in plain.items() if not name.startswith(LEFT_OUT)}
        self._source, self._used = source, set[str]()
        self._nodes, self._constants = list[Any](), list[Any]()

    def has(self, name: str) -> bool:
        return name in self._state

    def kernel(self, layer: str) -> int:
        return int(self._tensor(f"{layer}.weight").shape[-1])

    def add(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        from onnx import helper

        output = output or f"value{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, values: NDArray[Any], name: str = "") -> str:
        from onnx import numpy_helper

        name = name or f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def convolve(self, block: str, values: str, *, stride: int = 1, padded: bool = True) -> str:
        """Add a convolution with its BatchNorm and, if the checkpoint has one, its PReLU."""
        weight = self._tensor(f"{block}.conv.weight")
        if block == "conv1":
            weight = weight[:, ::-1]  # the authors' pictures are BGR, the graph's RGB
        values = self._convolution(f"{block}.conv", weight, values, stride, weight.shape[-1] // 2 if padded else 0)
        values = self.normalise(f"{block}.bn", values)
        if not self.has(f"{block}.prelu.weight"):
            return values
        slope = self._tensor(f"{block}.prelu.weight").reshape(-1, 1, 1)
        return self.add("PRelu", [values, self.constant(slope, f"{block}.prelu.weight")])

    def bottleneck(self, block: str, values: str, *, stride: int) -> str:
        """Add a block: expand, convolve each channel, project, and scale the channels if it has a gate."""
        values = self.convolve(f"{block}.conv", values)
        values = self.convolve(f"{block}.conv_dw", values, stride=stride)
        values = self.convolve(f"{block}.project", values)
        gate = f"{block}.se_module"
        if not self.has(f"{gate}.fc1.weight"):
            return values
        means = self.add("GlobalAveragePool", [values])
        inner = self.add("Relu", [self.normalise(f"{gate}.bn1", self.linear(f"{gate}.fc1", means))])
        outer = self.add("Sigmoid", [self.normalise(f"{gate}.bn2", self.linear(f"{gate}.fc2", inner))])
        return self.add("Mul", [values, outer])

    def linear(self, layer: str, values: str) -> str:
        weight = self._tensor(f"{layer}.weight")
        return self._convolution(layer, weight.reshape(*weight.shape[:2], 1, 1), values, 1, 0)

    def normalise(self, layer: str, values: str) -> str:
        names = [f"{layer}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        constants = [self.constant(self._tensor(name), name) for name in names]
        return self.add("BatchNormalization", [values, *constants], epsilon=1e-5)

    def model(self, size: int) -> ModelProto:
        """Return the graph; refuse a checkpoint with tensors that it did not use."""
        from onnx import TensorProto, helper

        unused = [name for name in self._state if name not in self._used and not name.endswith("num_batches_tracked")]
        if unused:
            raise UserError(str(self._source), f"is not a MiniFASNet: it has {', '.join(unused[:4])}")
        images = helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["batch", size, size, 3])
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in OUTPUTS["pad"]]
        graph = helper.make_graph(self._nodes, "minifasnet", [images], outputs, self._constants)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="fedvisage")

    def _convolution(self, layer: str, weight: NDArray[Any], values: str, stride: int, padding: int) -> str:
        # A kernel with one input channel belongs to a convolution of each channel by itself.
        groups = weight.shape[0] if weight.shape[1] == 1 else 1
        inputs = [values, self.constant(weight, f"{layer}.weight")]
        return self.add("Conv", inputs, group=groups, pads=[padding] * 4, strides=[stride] * 2)

    def _tensor(self, name: str) -> NDArray[np.float32]:
        if name not in self._state:
            raise UserError(str(self._source), f"is not a MiniFASNet: it lacks {name}")
        self._used.add(name)
        values = self._state[name].astype(np.float32)
        if not np.isfinite(values).all():
            raise UserError(str(self._source), f"{name} contains NaN or infinite values")
        return values
