"""Adapt an exported model on a device, without torch or gradients, by re-estimating its BatchNorm statistics.

The images are unlabelled. They pass in mixed batches, and every layer normalises with its batch statistics; the mean of
these, with a quarter of the sites' statistics mixed in, becomes the new graph. This is the `settled` loop of
:mod:`fedvisage.tasks.pad.adaptation` without its entropy minimisation, with the same gate before and after. The spread
of the sites' own batches is unknown here, so there is no test for a shift of the statistics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import (
    disk_full_is_failure,
    read_arrays,
    replaced_when_complete,
    write_arrays,
    write_atomically,
    write_json,
)
from fedvisage.base.onnx_graphs import open_session, parse_graph
from fedvisage.device.exported import (
    AGAIN,
    CARD,
    GRAPH,
    INPUT,
    WEIGHTS,
    AdaptationOrigin,
    Description,
    Exported,
    check_free,
    without_rates,
    write_export,
)
from fedvisage.metrics.gate import SourcePredictions, collapse_reason, refusal_reason
from fedvisage.metrics.threshold import OF_PICTURES

# BatchNorm inside exported graphs: find the layers, collect statistics on other images, and replace them.
#
# Exporters fold BatchNorm into the preceding convolution: W becomes W·γ/σ, the bias β − μ·γ/σ. The graph states which
# layer was folded into which operation, and the exported directory has the trained weights. The layer's output is
# y = γ·t + β, where t has mean 0 and variance 1 under the stored statistics.
#
# To collect statistics, every layer normalises with those of its batch, as in training: t becomes
# (t − m)/√(v + ε/σ²). Their mean over the batches, mixed with the stored ones, changes a folded convolution by one
# factor and one offset.


Values = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]

_FLAT = 1e-6
MEAN, VARIANCE, COUNT = "collected_mean", "collected_variance", "collected_count"


@dataclass(frozen=True, eq=False)
class NormLayer:
    """A BatchNorm layer: its name among the weights, the node that computes it, and its stored values."""

    name: str
    node: str
    scale: Values
    shift: Values
    mean: Values
    variance: Values
    epsilon: float

    @property
    def spread(self) -> Values:
        """The stored variance plus epsilon, the value under the layer's square root."""
        return np.asarray(self.variance + self.epsilon)


@dataclass(frozen=True, eq=False)
class LayerStatistics:
    """Mean and variance of a layer's input."""

    mean: Values
    variance: Values


def layers_of(model: Exported, graph: Any, weights: Arrays) -> list[NormLayer]:
    """Return the BatchNorm layers that an exported graph states, with their stored values."""
    recorded = model.description.batch_norms
    if recorded is None:
        raise UserError(str(model.directory), f"does not state its BatchNorm layers, as earlier exports; {AGAIN}")
    if not recorded:
        raise UserError("--data", "this model has no BatchNorm layers whose statistics could be collected")
    sizes = {tensor.name: tensor.dims for tensor in graph.initializer}
    inputs = {node.name: list(node.input) for node in graph.node}
    layers = []
    for record in recorded:
        weight, bias = [tuple(sizes.get(name, ())) for name in inputs.get(record.node, [])[1:3]] or [(), ()]
        missing, size = np.zeros(0), bias[:1]
        defaults = {"weight": np.ones(size), "bias": np.zeros(size), "running_mean": missing, "running_var": missing}
        values = [weights.get(f"{record.layer}.{part}", default) for part, default in defaults.items()]
        # A directory may come from anywhere, so its two files may have different layers.
        if not weight or weight[:1] != bias or any(value.shape != bias for value in values):
            raise UserError(str(model.directory / WEIGHTS), f"does not fit the graph at {record.layer}; {AGAIN}")
        scale, shift, mean, variance = (value.astype(np.float64) for value in values)
        layers.append(NormLayer(record.layer, record.node, scale, shift, mean, variance, record.epsilon))
    return layers


def with_statistics_outputs(model: Any, layers: Sequence[NormLayer]) -> Any:
    """Return a copy of a model whose layers normalise with their batch, and output its statistics."""
    from onnx import ModelProto, TensorProto, helper

    copy = ModelProto()
    copy.CopyFrom(model)
    numbers = {layer.node: number for number, layer in enumerate(layers)}
    nodes = []
    for node in copy.graph.node:
        if node.name not in numbers:
            nodes.append(node)
            continue
        number = numbers[node.name]
        output = node.output[0]
        node.output[0] = f"{output}/folded"
        nodes += [node, *_normalise(copy.graph, layers[number], number, node.output[0], output, node.op_type == "Conv")]
        copy.graph.output.extend(
            helper.make_tensor_value_info(f"{kind}/{number}", type_, None)
            for kind, type_ in ((MEAN, TensorProto.FLOAT), (VARIANCE, TensorProto.FLOAT), (COUNT, TensorProto.INT64))
        )
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def _normalise(graph: Any, layer: NormLayer, number: int, source: str, out: str, channels_second: bool) -> list[Any]:
    """Write (t − m)/√(v + ε/σ²) · γ + β, where t = (y − β)/γ comes from the folded y; flat channels are β."""
    from onnx import helper, numpy_helper

    shape = (1, -1, 1, 1) if channels_second else (1, -1)
    axes = np.array([0, 2, 3] if channels_second else [0], np.int64)
    # A channel of scale 0 gives β whatever its statistics are; 1 only keeps the division finite.
    flat = np.abs(layer.scale) < _FLAT
    scale = np.where(flat, 1.0, layer.scale)
    constants: dict[str, NDArray[Any]] = {
        "shift": layer.shift.reshape(shape).astype(np.float32),
        "inverse": (1 / scale).reshape(shape).astype(np.float32),
        "scale": np.where(flat, 0.0, scale).reshape(shape).astype(np.float32),
        "epsilon": (layer.epsilon / layer.spread).reshape(shape).astype(np.float32),
        "axes": axes,
    }
    name = {key: f"statistics/{number}/{key}" for key in (*constants, "a", "t", "c", "q", "e", "d", "n", "s")}
    graph.initializer.extend(numpy_helper.from_array(value, name[key]) for key, value in constants.items())
    mean, variance = f"{MEAN}/{number}", f"{VARIANCE}/{number}"
    # c is t less its mean, q its square, and n = c/√(variance + ε/σ²); COUNT is the number of values behind the mean.
    steps = (
        ("Sub", (source, name["shift"]), name["a"]),
        ("Mul", (name["a"], name["inverse"]), name["t"]),
        ("ReduceMean", (name["t"], name["axes"]), mean),
        ("Sub", (name["t"], mean), name["c"]),
        ("Mul", (name["c"], name["c"]), name["q"]),
        ("ReduceMean", (name["q"], name["axes"]), variance),
        ("Add", (variance, name["epsilon"]), name["e"]),
        ("Sqrt", (name["e"],), name["d"]),
        ("Div", (name["c"], name["d"]), name["n"]),
        ("Mul", (name["n"], name["scale"]), name["s"]),
        ("Add", (name["s"], name["shift"]), out),
        ("Size", (name["t"],), f"{COUNT}/{number}"),
    )
    return [helper.make_node(kind, list(inputs), [output]) for kind, inputs, output in steps]


def with_statistics(model: Any, layers: Sequence[NormLayer], statistics: Sequence[LayerStatistics]) -> Any:
    """Return a copy of a model with new statistics."""
    from onnx import ModelProto, numpy_helper

    copy = ModelProto()
    copy.CopyFrom(model)
    initializers = {tensor.name: tensor for tensor in copy.graph.initializer}
    nodes = {node.name: node for node in copy.graph.node}
    for layer, new in zip(layers, statistics, strict=True):
        node = nodes[layer.node]
        factor = np.sqrt(layer.spread / (new.variance + layer.epsilon))
        offset = layer.scale * (layer.mean - new.mean) / np.sqrt(new.variance + layer.epsilon)
        weight, bias = (numpy_helper.to_array(initializers[name]).astype(np.float64) for name in node.input[1:3])
        changed = weight * factor.reshape(-1, *([1] * (weight.ndim - 1)))
        moved = layer.shift + (bias - layer.shift) * factor + offset
        for position, values in ((1, changed), (2, moved)):  # under new names, because nodes may share a constant
            name = f"{layer.node}/settled/{position}"
            copy.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
            node.input[position] = name
    used = {name for node in copy.graph.node for name in node.input}
    for unused in [tensor for tensor in copy.graph.initializer if tensor.name not in used]:
        copy.graph.initializer.remove(unused)
    return copy


KEPT = 0.25
"""The share of the sites' statistics, chosen on the sites' held-out subjects (docs/results/adaptation.md)."""


def mix_statistics(layer: NormLayer, collected: LayerStatistics) -> LayerStatistics:
    """Return a layer's new statistics from its stored ones and those of :func:`measure_statistics`.

    The latter are in units of the stored ones. A channel with zero scale keeps the stored ones.
    """
    mean = layer.mean + collected.mean * np.sqrt(layer.spread)
    variance = collected.variance * layer.spread
    flat = np.abs(layer.scale) < _FLAT
    return LayerStatistics(
        np.where(flat, layer.mean, KEPT * layer.mean + (1 - KEPT) * mean),
        np.where(flat, layer.variance, KEPT * layer.variance + (1 - KEPT) * variance),
    )


BATCH = 64
RECORD = "adaptation.json"

Crops = NDArray[np.uint8]


@dataclass(frozen=True)
class AdaptationResult:
    """The result of an adaptation: the number of images, and the decisions on them before and after."""

    directory: Path
    images: int
    passed_over: int
    layers: int
    live_before: int
    live_after: int
    changed: int

    def as_values(self) -> dict[str, Any]:
        """Return the result as plain values, for programs."""
        return {
            "images": self.images,
            "passed_over": self.passed_over,
            "layers": self.layers,
            "kept": KEPT,
            "live": {"before": self.live_before, "after": self.live_after},
            "changed": self.changed,
        }

    def lines(self) -> list[str]:
        """Return the result as lines, for people."""
        summary = f"{self.directory}: statistics of {self.layers} layers from {self.images} images, without labels"
        summary += f"; {self.passed_over} images had no usable face" if self.passed_over else ""
        return [summary, f"live before {self.live_before}, after {self.live_after}; {self.changed} decisions changed"]


def adapt(model: Exported, crops: Crops, out: Path, *, threads: int = 1, passed_over: int = 0) -> AdaptationResult:
    """Write a model with the statistics of these crops into a new directory; write nothing if the gate refuses."""
    check_free(out)
    if model.task != "pad" or model.threshold is None:
        raise UserError(str(model.directory), "only models of attack detection with a threshold are adapted")
    if model.arithmetic != "float32":
        raise UserError("--int8", "an int8 graph is not adapted; adapt the float32 one")
    if model.description.adapted is not None:
        raise UserError(str(model.directory), "is already adapted; start from the model that it was adapted from")
    if OF_PICTURES in model.threshold.estimates:
        remedy = "adapt the export that it was made from, and calibrate the result"
        raise UserError(str(model.directory), f"was calibrated with its present weights; {remedy}")
    threshold = model.threshold.value
    before = model.run(crops).astype(np.float64)
    if reason := refusal_reason(SourcePredictions(before, len(crops), None), threshold, 0.0):
        raise RunFailed(f"the gate rejected the adaptation ({reason}); nothing was written")
    graph = parse_graph(str(model.directory / GRAPH), model.graph(), AGAIN)
    weights, _ = read_arrays(model.directory / WEIGHTS)
    layers = layers_of(model, graph.graph, weights)
    collected = measure_statistics(graph, layers, crops, threads)
    statistics = [mix_statistics(*pair) for pair in zip(layers, collected, strict=True)]
    # The new statistics go into the weights as well, so that both files of the directory hold the same model.
    for layer, new in zip(layers, statistics, strict=True):
        weights[f"{layer.name}.running_mean"] = new.mean.astype(np.float32)
        weights[f"{layer.name}.running_var"] = new.variance.astype(np.float32)
    with replaced_when_complete(out) as directory:
        adapted = AdaptationOrigin(from_sha256=model.digest, how="statistics", images=len(crops))
        threshold_alone = without_rates(model.description.threshold)
        update = {"model_sha256": _digest(weights), "adapted": adapted, "threshold": threshold_alone}
        description = model.description.model_copy(update=update)
        _write(directory, with_statistics(graph, layers, statistics), weights, description)
        # Evaluate the model from its files, as a device will load it, before they get their final place.
        after = Exported.open(directory, threads=threads).run(crops).astype(np.float64)
        if reason := collapse_reason(before, after, threshold):
            raise RunFailed(f"the adaptation was reverted ({reason}); nothing was written")
        live, live_now = before >= threshold, after >= threshold
        counts = int(live.sum()), int(live_now.sum()), int((live != live_now).sum())
        outcome = AdaptationResult(out, len(crops), passed_over, len(layers), *counts)
        write_json(directory / RECORD, outcome.as_values())
    return outcome


def measure_statistics(graph: Any, layers: list[NormLayer], crops: Crops, threads: int) -> list[LayerStatistics]:
    """Run a graph on crops in mixed batches, and return the statistics of its layers, averaged over the batches.

    Variances are unbiased, as BatchNorm stores them.
    """
    session = open_session(GRAPH, with_statistics_outputs(graph, layers).SerializeToString(), threads, remedy=AGAIN)
    order = np.random.default_rng(0).permutation(len(crops))
    batches = np.array_split(order, min(max(2, -(-len(crops) // BATCH)), len(crops)))
    names = [f"{kind}/{number}" for number in range(len(layers)) for kind in (MEAN, VARIANCE, COUNT)]
    rows = [session.run(names, {INPUT: np.ascontiguousarray(crops[batch])}) for batch in batches]
    averages = []
    for number in range(0, len(names), 3):
        means, variances = [], []
        for row in rows:
            mean, variance = (np.asarray(values, np.float64).ravel() for values in row[number : number + 2])
            count = int(row[number + 2]) / len(mean)
            means.append(mean)
            variances.append(variance * count / max(count - 1, 1))
        averages.append(LayerStatistics(np.mean(means, axis=0), np.mean(variances, axis=0)))
    return averages


def _digest(weights: Arrays) -> str:
    """Return the SHA-256 over names, types, shapes and values, the same as for the weights of a run."""
    total = hashlib.sha256()
    for name, values in sorted(weights.items()):
        total.update(f"{name}|torch.{values.dtype}|{values.shape}|".encode())
        total.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _write(place: Path, graph: Any, weights: Arrays, description: Description) -> None:
    path, adapted = place / GRAPH, description.adapted
    assert adapted is not None
    path.parent.mkdir()
    with disk_full_is_failure(path):
        write_atomically(path, graph.SerializeToString(deterministic=True))
        write_arrays(place / WEIGHTS, weights)
    write_export(place, description)
    card = (
        f"# {description.method}, adapted on a device\n\nBatchNorm statistics were recomputed on "
        f"{adapted.images} images of its target, without labels. Source weights: `{adapted.from_sha256}`; adapted "
        f"weights: `{description.model_sha256}`. The threshold is still the one that the sites chose; its error rates "
        f"with the new statistics are not known. `{RECORD}` states how many decisions changed. The card of the source "
        "model describes its purpose and limits.\n"
    )
    write_atomically(place / CARD, card.encode())
