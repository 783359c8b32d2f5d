"""An export from beginning to end: graph, comparison with torch, description, card; all of it or nothing."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import json_key, needing_room, read_json, write_json, write_tensors
from fedvisage.base.onnx_graphs import open_session
from fedvisage.base.progress import Say, counted, unheard
from fedvisage.base.streams import torch_rng
from fedvisage.base.version import VERSION
from fedvisage.data.batches import View
from fedvisage.device.exported import (
    AGAIN,
    CARD,
    CONFIG,
    GRAPH,
    INT8_GRAPH,
    PARITY,
    WEIGHTS,
    Adapted,
    Config,
    Description,
    Exported,
    Graphs,
    OperatingPoint,
    as_values,
    beside,
    check_free,
    entry_of,
    files_beside,
)
from fedvisage.faces.cropping import record_of
from fedvisage.federation.declared import Member
from fedvisage.federation.server import joined, members_of
from fedvisage.federation.wire.message import Message, digest_of, load_parts
from fedvisage.metrics.threshold import Threshold
from fedvisage.nn.inputs import prepare
from fedvisage.recipe import Adapt
from fedvisage.runs.export.card import card, write_card
from fedvisage.runs.export.graph import COSINE, LEAST, SCORE, Graph, Parity, measure, require, write_graph
from fedvisage.runs.export.quantised import PLACE, Moved, describe, judge, pixels, quantise, splits, to_compare, view_of
from fedvisage.tasks.finished_model import FinishedModel
from fedvisage.tasks.pad.adaptation import Outcome, adapted_weights
from fedvisage.tasks.pad.evaluation import sources_of
from fedvisage.tasks.scoring import as_logits, mean_score

# Which weights of a run are exported, as what, and what torch says of crops with them.


PRIVATE = ("data",)
"""Sections of a recipe that name places of the machine that trained."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """The members that become one graph, by which name, and their threshold."""

    weights: list[Message]
    name: str
    threshold: Threshold | None


def choose(model: FinishedModel, name: str) -> Chosen:
    """Return what of a run is exported: its model, all whose scores are averaged, or the one that is named."""
    members, method = members_of(model.saved.finished), model.setup.method
    if method.members == "each":
        if name not in members:
            raise UserError("--member", f"this run has one model a site; choose one of {', '.join(sorted(members))}")
        members = {name: members[name]}
    elif name:
        raise UserError("--member", "this run has one model; leave --member out")
    threshold = model.thresholds.get(name)
    if threshold is None and model.task == "pad":
        raise UserError("threshold", "the model was judged with target-eer, an oracle; a device needs one of the sites")
    return Chosen([one for _, one in sorted(members.items())], name, threshold)


def described(model: FinishedModel, chosen: Chosen) -> Description:
    """Return what the graph will say of itself."""
    method, threshold = model.setup.method, chosen.threshold
    return Description(
        task=method.task,
        method=method.name,
        member=chosen.name,
        size=model.recipe.input.size,
        model_sha256=digest_of(model.saved.finished),
        recipe_sha256=hashlib.sha256(json_key(model.saved.recipe).encode()).hexdigest(),
        threshold=None if threshold is None else point_of(threshold),
        crop=record_of("face", aligned=method.task == "recognition"),
        trained_on=model.saved.crops,
        drawn=method.spread is not None,
        version=VERSION,
    )


def point_of(threshold: Threshold) -> OperatingPoint:
    """Return a threshold as a device reads it."""
    return OperatingPoint(value=threshold.value, rule=threshold.rule, far=threshold.far, frr=threshold.frr)


def reference(model: FinishedModel, chosen: Chosen, crops: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return torch's logits or unit embeddings of crops (N×S×S×3), in float32 on the processor."""
    method, recipe = model.setup.method, model.recipe
    user = method.user if method.as_graph is None or method.spread is None else method.as_graph
    net = copy.deepcopy(model.scorer.net).cpu().eval()
    ready = prepare(torch.from_numpy(crops).permute(0, 3, 1, 2), recipe.input.colour, torch.device("cpu"))
    found = []
    for weights in chosen.weights:
        load_parts(net, weights)
        with torch.inference_mode():
            found.append(user(Member(net, ready, torch_rng(recipe.runtime.seed, "inference"), recipe)).float())
    if method.task == "recognition":
        return np.asarray(torch.nn.functional.normalize(found[0].double()).numpy())
    logits = [as_logits(one) for one in found]
    return mean_score(logits) if len(logits) > 1 else logits[0]


METRICS = "metrics.json"
"""A run's figures, which the card repeats where they are there."""


@dataclass(frozen=True)
class Written:
    """What an export wrote, and how near it is to torch."""

    directory: Path
    config: Config
    parity: list[Parity]
    compared_on: str
    notices: tuple[str, ...] = ()
    moved: Moved | None = None

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values, for programs."""
        return {"directory": str(self.directory), **as_values(self.config), "parity": self._parity()}

    def lines(self) -> list[str]:
        """Return it as lines, for people."""
        worst = [f"{one.score_difference:.1e} in score" if one.cosine is None else f"cosine {one.cosine:.7f}"
                 for one in self.parity]  # fmt: skip
        sizes = ", ".join(
            f"{counted(one.batch, 'crop')} at a time: {said}" for one, said in zip(self.parity, worst, strict=True)
        )
        lines = [
            f"{self.directory / GRAPH}: {self.config.float32.file.bytes / 1e6:.1f} MB",
            f"graph and torch on crops of {self.compared_on}, {sizes}",
        ]
        if self.config.int8 is not None and self.moved is not None:
            pad, moved = self.config.int8.description.task == "pad", self.moved
            rates = [f"{one.error if pad else 1 - one.error:.2%}" for one in (moved.float32, moved.int8)]
            lines += [
                f"{self.directory / INT8_GRAPH}: {self.config.int8.file.bytes / 1e6:.1f} MB",
                f"{'HTER' if pad else 'TAR'} on {moved.set}: {rates[0]} in float32, {rates[1]} in int8",
            ]
        return lines

    def _parity(self) -> dict[str, Any]:
        return parity_values(self.parity, self.compared_on, self.moved, self.config.float32.description.task)


def export(
    model: FinishedModel,
    out: Path,
    *,
    data: str | None = None,
    member: str = "",
    calibrate: str | None = None,
    cache: Path,
    say: Say = unheard,
    threads: int = 1,
    adapted: Adapted | None = None,
) -> Written:
    """Write a finished model for devices into a directory that is not there yet, or leave nothing.

    The graph is compared with torch on crops of ``data``, the run's own user unless one is named. With ``calibrate``, a
    set that a site could train on, there is an int8 graph beside it.
    """
    check_free(out)
    chosen = choose(model, member)
    description = described(model, chosen).model_copy(update={"adapted": adapted})
    crops, compared_on = to_compare(model, data, LEAST, cache, say)
    source = None if calibrate is None else _source(model, chosen, calibrate, cache, say)
    say("writing the graph")
    with beside(out) as directory:
        config = with_graph(directory, model, chosen, description)
        exported = Exported.open(directory, threads=threads)
        say("comparing it with torch")
        found = measure(exported.run, lambda part: reference(model, chosen, part), pixels(crops), model.task)
        require(found)
        moved = None
        if source is not None:
            say("writing the int8 graph")
            config, moved = _with_int8(directory, model, config, exported, source)
        notices = _notices(model, description)
        write_json(directory / PARITY, parity_values(found, compared_on, moved, model.task))
        write_tensors(directory / WEIGHTS, _weights(chosen))
        config = config.model_copy(update={"files": files_beside(directory)})
        write_json(directory / CONFIG, as_values(config))
        written = Written(out, config, found, compared_on, (*model.notices, *notices), moved)
        write_card(directory / CARD, card(model, config, _figures(model), notices))
    return written


def parity_values(found: list[Parity], compared_on: str, moved: Moved | None, task: str) -> dict[str, Any]:
    """Return how near graph and torch are, as `parity.json` holds it."""
    return {
        "compared_on": compared_on,
        "batches": [one.as_values() for one in found],
        "allowed": {"score_difference": SCORE, "cosine": COSINE},
        "torch": torch.__version__,
        "onnxruntime": version("onnxruntime"),
        **({} if moved is None else {"int8": moved.as_values(task)}),
    }


def _source(model: FinishedModel, chosen: Chosen, entry: str, cache: Path, say: Say) -> tuple[View, View]:
    view = view_of(model, entry, PLACE, cache, say)
    return splits(view, model.task, "" if chosen.threshold is None else chosen.threshold.rule)


def _with_int8(
    directory: Path, model: FinishedModel, config: Config, exported: Exported, source: tuple[View, View]
) -> tuple[Config, Moved]:
    """Write the int8 graph with its threshold; its metadata hold that, so they are written when it is chosen."""
    description, path, (calibration, held) = config.float32.description, directory / INT8_GRAPH, source
    rule = "" if description.threshold is None else description.threshold.rule
    quantise(directory / GRAPH, path, calibration)
    before = judge(exported, held, model.recipe, rule)
    session = open_session(str(path), path.read_bytes(), 1, remedy=AGAIN)
    after = judge(replace(exported, session=session), held, model.recipe, rule)
    moved = Moved(held.slices[0].set.name, len(held), before, after)
    moved.require(model.task)
    said = description.model_copy(update={"arithmetic": "int8", "threshold": point_of(after.threshold)})
    describe(path, said)
    config = config.model_copy(update={"int8": Graphs(file=entry_of(path), description=said)})
    write_json(directory / CONFIG, as_values(config))
    Exported.open(directory, int8=True)
    return config, moved


def with_graph(directory: Path, model: FinishedModel, chosen: Chosen, description: Description) -> Config:
    """Write a model's graph, and what it is, into a directory; nothing is compared yet."""
    path = directory / GRAPH
    path.parent.mkdir()
    with needing_room(path):
        write_graph(Graph(model, chosen.weights), path, description.size, description.metadata())
    config = Config(float32=Graphs(file=entry_of(path), description=description))
    write_json(directory / CONFIG, as_values(config))
    return config


def _weights(chosen: Chosen) -> dict[str, torch.Tensor]:
    """Return the weights, without the sites' names where several members were averaged."""
    named = {"" if len(chosen.weights) == 1 else f"member{number}": one for number, one in enumerate(chosen.weights, 1)}
    return joined(named)


def _notices(model: FinishedModel, description: Description) -> list[str]:
    notices = []
    if description.drawn:
        notices.append(
            "The method draws blocks for each prediction; the graph is the mean over all of them, and draws nothing."
        )
    if description.adapted is not None:
        notices.append(
            f"The model was adapted to {counted(description.adapted.images, 'image')} of its user without labels; its"
            " threshold is still the one that the sites chose, and figures of the run are those before."
        )
    elif model.recipe.evaluation.adapt is not None:
        notices.append("The run adapted the model to its user's images before it was judged; the graph is not adapted.")
    return notices


def _figures(model: FinishedModel) -> dict[str, Any]:
    path = model.directory / METRICS
    return read_json(path) if path.exists() else {}


# A finished model adapted to a user's images without labels, and exported: where torch is, so that it can learn.


@dataclass(frozen=True)
class AdaptedExport:
    """What was written, and to how many images the model was adapted."""

    written: Written
    images: int

    def lines(self) -> list[str]:
        """Return it as lines, for people."""
        return [f"adapted to {counted(self.images, 'image')}, without labels", *self.written.lines()]


def adapt_and_export(
    model: FinishedModel, out: Path, data: str, *, member: str = "", cache: Path, say: Say = unheard, threads: int = 1
) -> AdaptedExport:
    """Adapt a model to a prepared set behind the gate, and export it; if the gate keeps the model, write nothing."""
    check_free(out)
    if model.task != "pad":
        raise UserError(str(model.directory), "recognises people; only attack detection is adapted")
    view = view_of(model, data, "--data", cache, say)
    say(f"adapting to {counted(len(view), 'image')}")
    own = model.recipe.evaluation.adapt
    settings = own if own is not None and own.loop == "settled" else Adapt()
    sources = sources_of(model.setup.method, model.saved)
    finished, outcomes = adapted_weights(model.scorer, model.saved.finished, view, settings, sources)
    _require(outcomes)
    source = digest_of(model.saved.finished)
    described = Adapted(from_sha256=source, how="gated", images=len(view))
    adapted = replace(model, saved=replace(model.saved, finished=finished))
    written = export(adapted, out, data=data, member=member, cache=cache, say=say, threads=threads, adapted=described)
    return AdaptedExport(written, len(view))


def _require(outcomes: dict[str, Outcome]) -> None:
    """Refuse to pass the source model off as an adapted one."""
    reasons = sorted({reason for one in outcomes.values() for reason in (*one.skipped, *one.taken_back)})
    if not any(one.adapted and not one.taken_back for one in outcomes.values()):
        raise RunFailed(f"the gate keeps the model as it is ({', '.join(reasons)}); nothing was written")
