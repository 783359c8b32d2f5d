"""An exported model adapted on a device, without torch and without gradients: BatchNorm's statistics are counted again.

The images are not labelled. They pass in mixed batches, every layer normalising with its batch; the mean of what layers
saw, to a quarter mixed with the sites' statistics, becomes the new graph. That is the `settled` loop of
``tasks/pad/adapt`` without its steps down the entropy, and the same gate stands before and behind it. What it cannot
know here is how far the sites' own batches lie apart, so it does not ask whether anything has moved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.device.batchnorm import (
    COUNT,
    MEAN,
    VARIANCE,
    Collected,
    Layer,
    collect,
    layers_of,
    mixed,
    settled,
    watching,
)
from fedvisage.device.config import (
    AGAIN,
    CARD,
    CONFIG,
    GRAPH,
    INPUT,
    WEIGHTS,
    Adapted,
    Config,
    Description,
    Graphs,
    as_values,
)
from fedvisage.device.exported import Exported
from fedvisage.device.writing import beside, check_free, entry_of, files_beside
from fedvisage.errors import RunFailed, UserError
from fedvisage.files import needing_room, write_atomically, write_json
from fedvisage.graphs.checks import parse_graph
from fedvisage.graphs.session import open_session
from fedvisage.tasks.pad.adapt.gate import Glimpse, closed, collapsed

KEPT = 0.25
"""The share of the sites' statistics, which was chosen on the sites' held-out subjects (docs/adaptation.md)."""

BATCH = 64
RECORD = "adaptation.json"

Crops = NDArray[np.uint8]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Outcome:
    """What was adapted to how many images, and how many decisions have changed on them."""

    directory: Path
    images: int
    passed_over: int
    layers: int
    live_before: int
    live_after: int
    changed: int

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values, for programs."""
        return {
            "images": self.images, "passed_over": self.passed_over, "layers": self.layers, "kept": KEPT,
            "live": {"before": self.live_before, "after": self.live_after}, "changed": self.changed,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Return it as lines, for people."""
        said = f"{self.directory}: statistics of {self.layers} layers from {self.images} images, without labels"
        said += f"; {self.passed_over} pictures had no face to use" if self.passed_over else ""
        return [said, f"live before {self.live_before}, after {self.live_after}; {self.changed} decisions changed"]


def adapt(model: Exported, crops: Crops, out: Path, *, threads: int = 1, passed_over: int = 0) -> Outcome:
    """Write a model with statistics of these crops into a new directory; if the gate keeps the model, write nothing."""
    check_free(out)
    threshold = _refused_if_not_adaptable(model)
    before = model.run(crops).astype(np.float64)
    if reason := closed(Glimpse(before, len(crops), None), threshold, 0.0):
        raise RunFailed(f"the gate keeps the model as it is ({reason}); nothing was written")
    graph, weights = _graph(model), _weights(model.directory / WEIGHTS)
    layers = layers_of(graph.graph, weights)
    collected = collected_on(graph, layers, crops, threads)
    with beside(out) as place:
        _write(place, model, settled(graph, layers, collected, KEPT), _with(weights, layers, collected), len(crops))
        after = Exported.open(place, threads=threads).run(crops).astype(np.float64)
        if reason := collapsed(before, after, threshold):
            raise RunFailed(f"the adaptation is taken back ({reason}); nothing was written")
        live, now = before >= threshold, after >= threshold
        outcome = Outcome(
            out, len(crops), passed_over, len(layers), int(live.sum()), int(now.sum()), int((live != now).sum())
        )
        write_json(place / RECORD, outcome.as_values())
    return outcome


def collected_on(graph: Any, layers: list[Layer], crops: Crops, threads: int = 1) -> list[Collected]:
    """Show crops to a graph in mixed batches and return what its layers saw."""
    session = open_session(GRAPH, watching(graph, layers).SerializeToString(), threads, remedy=AGAIN)
    names = [f"{kind}/{number}" for number in range(len(layers)) for kind in (MEAN, VARIANCE, COUNT)]
    order = np.random.default_rng(0).permutation(len(crops))
    batches = np.array_split(order, min(max(2, -(-len(crops) // BATCH)), len(crops)))
    return collect([session.run(names, {INPUT: np.ascontiguousarray(crops[batch])}) for batch in batches])


def _refused_if_not_adaptable(model: Exported) -> float:
    description = model.description
    if model.task != "pad" or model.threshold is None:
        raise UserError(str(model.directory), "only models of attack detection with a threshold are adapted")
    if description.arithmetic != "float32":
        raise UserError("--int8", "an int8 graph is not adapted; adapt the float32 one")
    if description.adapted is not None:
        raise UserError(str(model.directory), "was adapted already; begin with what it was adapted from")
    return model.threshold.value


def _graph(model: Exported) -> Any:
    return parse_graph(str(model.directory / GRAPH), model.graph(), AGAIN)


def _weights(path: Path) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise UserError(str(path), "does not exist; layers are known by the weights as they were trained") from None
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(str(path), f"is not a whole safetensors file ({error})") from None


def _with(weights: Arrays, layers: list[Layer], collected: list[Collected]) -> dict[str, NDArray[Any]]:
    """Return the weights with the new statistics, so that both files of the directory are of one model."""
    changed = dict(weights)
    for layer, seen in zip(layers, collected, strict=True):
        for kind, values in zip(("running_mean", "running_var"), mixed(layer, seen, KEPT), strict=True):
            changed[f"{layer.name}.{kind}"] = values.astype(np.float32)
    return changed


def _write(place: Path, model: Exported, graph: Any, weights: Arrays, images: int) -> None:
    from safetensors.numpy import save

    said = Adapted(from_sha256=model.digest, how="statistics", images=images)
    description = model.description.model_copy(update={"model_sha256": _digest(weights), "adapted": said})
    path = place / GRAPH
    path.parent.mkdir()
    del graph.metadata_props[:]
    for name, value in description.metadata().items():
        graph.metadata_props.add(key=name, value=value)
    with needing_room(path):
        write_atomically(path, graph.SerializeToString(deterministic=True))
        write_atomically(place / WEIGHTS, save({name: np.asarray(one, order="C") for name, one in weights.items()}))
    config = Config(float32=Graphs(file=entry_of(path), description=description), files=files_beside(place))
    write_json(place / CONFIG, as_values(config))
    write_atomically(place / CARD, _card(description).encode())


def _digest(weights: Arrays) -> str:
    """Return SHA-256 over names, types, shapes and values, as a run's weights have it."""
    total = hashlib.sha256()
    for name, values in sorted(weights.items()):
        total.update(f"{name}|torch.{values.dtype}|{values.shape}|".encode())
        total.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _card(description: Description) -> str:
    assert description.adapted is not None
    return (
        f"# {description.method}, adapted on a device\n\nBatchNorm's statistics were counted again on"
        f" {description.adapted.images} images of its user, without labels; the model was"
        f" `{description.adapted.from_sha256}` before, and is `{description.model_sha256}` now. The threshold is still"
        f" the one that the sites chose. `{RECORD}` says how many decisions changed. What the model is for, and its"
        " limits, stand in the card of what it was adapted from.\n"
    )
