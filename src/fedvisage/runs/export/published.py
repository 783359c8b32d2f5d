"""Put a published model into the cache: MiniFASNets as exports that need no torch, other files as their authors wrote.

The checkpoint of a MiniFASNet becomes an ONNX graph layer by layer. Channels and kernels follow from the shapes of its
tensors, strides from the names of its layers. Nothing is left behind if a step fails.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
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
    OperatingPoint,
    entry_of,
    write_export,
)
from fedvisage.device.fused import FusedConfig, FusedMember, digest_of, folder_of, open_export, write_fused
from fedvisage.faces.cropping import record_of
from fedvisage.metrics.threshold import FIXED
from fedvisage.starts.checkpoint import read_state
from fedvisage.starts.download import download, find_given
from fedvisage.starts.published import PublishedModel

if TYPE_CHECKING:
    from onnx import ModelProto

START = "start.safetensors"
"""The file of a model that is converted to a start."""

POINT = OperatingPoint(value=FIXED, rule="fixed")


def get_model(model: PublishedModel, cache: Path, *, given: Sequence[Path] = (), say: Say = discard) -> Path:
    """Return a published model's directory in the cache; download it, or take the user's files, if it is not there."""
    if model.network and find_spec("torch") is None:
        raise missing_extra("train", "torch")
    out, downloads = model.directory(cache), cache / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    with lock_directory(downloads):
        # Another process may have written the model while this one waited for the lock.
        if out.is_dir():
            return out
        sources = []
        for file in model.files:
            with in_steps(f"bytes of {file.name}", say) as steps:
                sources.append(find_given(file, given) if given else download(file, downloads, steps=steps))
        with replaced_when_complete(out) as directory:
            if model.margins:
                _write_detector(directory, model, sources)
            elif model.network:
                from fedvisage.starts.convert import convert

                convert(sources[0], model.network, directory / START, licence=model.weights_licence)
            else:
                shutil.copyfile(sources[0], directory / model.files[0].name)
            _write_card(directory, model, model.title)
        # Downloads are no longer needed; the user's files stay.
        for source in sources if not given else ():
            source.unlink()
    return out


def _write_detector(directory: Path, model: PublishedModel, sources: Sequence[Path]) -> None:
    """Write one export, or for several files a fused model, and open it with all its checks."""
    members = []
    for number, (file, margin, source) in enumerate(zip(model.files, model.margins, sources, strict=True), 1):
        place = folder_of(directory, number) if model.scales else directory
        (place / GRAPH).parent.mkdir(parents=True)
        graph, size = graph_of(read_state(source), source)
        write_atomically(place / GRAPH, graph.SerializeToString(deterministic=True))
        description = Description(
            task="pad",
            method="minifasnet",
            size=size,
            model_sha256=file.sha256,
            recipe_sha256=hashlib.sha256(json_key([file.model_dump(), margin]).encode()).hexdigest(),
            threshold=POINT,
            crop=record_of("face", margin=margin),
            version=VERSION,
        )
        write_export(place, description)
        if model.scales:
            _write_card(place, model, f"{file.name}, a member of the detector `{model.name}`")
            scale = model.scales[number - 1]
            members.append(FusedMember(config=entry_of(place / CONFIG), weight=1.0, scale=scale))
    if members:
        digest = digest_of(members, [file.sha256 for file in model.files])
        config = FusedConfig(members=tuple(members), model_sha256=digest, threshold=POINT, version=VERSION)
        write_fused(directory, config)
    open_export(directory)


def _write_card(directory: Path, model: PublishedModel, title: str) -> None:
    """Write the card: origin, digests, licences, training data and limits."""
    lines = ["---", "library_name: fedvisage", f"tags: [face, {model.task}]", "---", "", f"# {title}", ""]
    lines += ["A published model, not trained further.", "", *(f"- {line}" for line in model.terms())]
    lines += ["- A decision is a probability, not proof. Do not refuse or admit anybody on it alone."]
    write_atomically(directory / CARD, ("\n".join(lines) + "\n").encode())


# The graph of a MiniFASNet.

OPSET, IR_VERSION = 20, 10
LIMIT = 40.0
"""The largest absolute logit, as in graphs of trained models."""

REDUCTION = 16
"""The side of a picture over that of the last map, which the last kernel covers."""


def graph_of(state: Mapping[str, NDArray[Any]], source: Path) -> tuple[ModelProto, int]:
    """Return the graph of a MiniFASNet from crops to score and logit, and the side of its crops in pixels."""
    from onnx import TensorProto, helper

    layers = _Layers(state, source)
    size = REDUCTION * layers.tensor("conv_6_dw.conv.weight").shape[-1]
    values = layers.add("Transpose", layers.add("Cast", INPUT, to=TensorProto.FLOAT), perm=[0, 3, 1, 2])
    values = layers.block("conv2_dw", layers.block("conv1", values, stride=2))
    for first, rest in (("conv_23", "conv_3"), ("conv_34", "conv_4"), ("conv_45", "conv_5")):
        values = layers.bottleneck(first, values, stride=2)
        for number in count():
            name = f"{rest}.model.{number}"
            if f"{name}.conv.conv.weight" not in layers.state:
                break
            values = layers.add("Add", values, layers.bottleneck(name, values))
    values = layers.block("conv_6_dw", layers.block("conv_6_sep", values), padding=0)
    values = layers.normalise("bn", layers.convolve("linear", values))
    classes = layers.add("Flatten", layers.convolve("prob", values))
    # The log-odds of class 1, a living face, against the two kinds of attack.
    live, attacks = (layers.add("Gather", classes, np.array(columns), axis=1) for columns in ([1], [0, 2]))
    odds = layers.add("Sub", live, layers.add("ReduceLogSumExp", attacks, np.array([1]), keepdims=1))
    score, logit = OUTPUTS["pad"]
    limits = np.array(-LIMIT, np.float32), np.array(LIMIT, np.float32)
    layers.add("Clip", layers.add("Squeeze", odds, np.array([1])), *limits, output=logit)
    layers.add("Sigmoid", logit, output=score)
    layers.check_complete()
    images = helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["batch", size, size, 3])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in (score, logit)]
    graph = helper.make_graph(layers.nodes, "minifasnet", [images], outputs, layers.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION), size


class _Layers:
    """Collects the nodes and constants of a graph, and the names of the tensors that it used."""

    def __init__(self, state: Mapping[str, NDArray[Any]], source: Path) -> None:
        # The authors trained on several GPUs, which prefixes every name, with a branch for Fourier spectra.
        plain = {name.removeprefix("module."): value for name, value in state.items()}
        self.state = {name: value for name, value in plain.items() if not name.startswith("FTGenerator.")}
        self.source, self.used = source, set[str]()
        self.nodes, self.constants = list[Any](), list[Any]()

    def tensor(self, name: str) -> NDArray[np.float32]:
        if name not in self.state:
            raise UserError(str(self.source), f"is not a MiniFASNet: it lacks {name}")
        self.used.add(name)
        values = self.state[name].astype(np.float32)
        if not np.isfinite(values).all():
            raise UserError(str(self.source), f"{name} contains NaN or infinite values")
        return values

    def check_complete(self) -> None:
        unused = [name for name in self.state if name not in self.used and not name.endswith("num_batches_tracked")]
        if unused:
            raise UserError(str(self.source), f"is not a MiniFASNet: it has {', '.join(unused[:4])}")

    def add(self, kind: str, *inputs: str | NDArray[Any], output: str = "", **attributes: Any) -> str:
        """Add a node, with arrays as constants, and return the name of its output."""
        from onnx import helper, numpy_helper

        names = []
        for value in inputs:
            if not isinstance(value, str):
                name = f"constant{len(self.constants)}"
                self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name))
            names.append(value if isinstance(value, str) else name)
        output = output or f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [output], **attributes))
        return output

    def convolve(self, layer: str, values: str, *, stride: int = 1, padding: int | None = None) -> str:
        """Add a convolution, or a linear layer as one of a single pixel; it keeps the size or divides it."""
        weight = self.tensor(f"{layer}.weight")
        weight = weight.reshape(*weight.shape, 1, 1) if weight.ndim == 2 else weight
        if layer == "conv1.conv":
            weight = weight[:, ::-1]  # the authors' pictures are BGR, the graph's RGB
        # A kernel with one input channel belongs to a convolution of each channel by itself.
        groups = weight.shape[0] if weight.shape[1] == 1 else 1
        padding = weight.shape[-1] // 2 if padding is None else padding
        return self.add("Conv", values, weight, group=groups, pads=[padding] * 4, strides=[stride] * 2)

    def normalise(self, layer: str, values: str) -> str:
        parts = (self.tensor(f"{layer}.{part}") for part in ("weight", "bias", "running_mean", "running_var"))
        return self.add("BatchNormalization", values, *parts, epsilon=1e-5)

    def block(self, name: str, values: str, **options: int) -> str:
        """Add a convolution with its BatchNorm and, if the checkpoint has one, its PReLU."""
        values = self.normalise(f"{name}.bn", self.convolve(f"{name}.conv", values, **options))
        if f"{name}.prelu.weight" not in self.state:
            return values
        return self.add("PRelu", values, self.tensor(f"{name}.prelu.weight").reshape(-1, 1, 1))

    def bottleneck(self, name: str, values: str, stride: int = 1) -> str:
        """Expand, convolve each channel, project, and scale the channels if the block has a gate."""
        values = self.block(f"{name}.conv_dw", self.block(f"{name}.conv", values), stride=stride)
        values = self.block(f"{name}.project", values)
        gate = f"{name}.se_module"
        if f"{gate}.fc1.weight" not in self.state:
            return values
        inner = self.normalise(f"{gate}.bn1", self.convolve(f"{gate}.fc1", self.add("GlobalAveragePool", values)))
        outer = self.normalise(f"{gate}.bn2", self.convolve(f"{gate}.fc2", self.add("Relu", inner)))
        return self.add("Mul", values, self.add("Sigmoid", outer))
