"""Export of a finished or adapted model: graph, comparison with torch, description and card, all of it or nothing."""

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
from fedvisage.base.files import (
    disk_full_is_failure,
    json_key,
    read_json,
    replaced_when_complete,
    write_json,
    write_tensors,
)
from fedvisage.base.onnx_graphs import open_session
from fedvisage.base.progress import Say, discard, format_count
from fedvisage.base.streams import torch_rng
from fedvisage.base.version import VERSION
from fedvisage.data.overlap import TARGET
from fedvisage.device.exported import (
    AGAIN,
    CARD,
    GRAPH,
    INT8_GRAPH,
    PARITY,
    WEIGHTS,
    AdaptationOrigin,
    Config,
    Description,
    Exported,
    check_free,
    point_of,
    without_rates,
    write_export,
)
from fedvisage.faces.cropping import detector_of, record_of
from fedvisage.federation.method import Member
from fedvisage.federation.server import join_members, members_of
from fedvisage.federation.wire.message import Message, digest_of, load_parts
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.metrics.threshold import Threshold
from fedvisage.nn.inputs import prepare
from fedvisage.recipe import Adapt
from fedvisage.recipe.recipe import rename_places
from fedvisage.runs.directory import DATA, METRICS
from fedvisage.runs.export.card import write_card
from fedvisage.runs.export.graph import (
    COSINE,
    SCORE,
    Graph,
    Parity,
    mean_direction,
    measure,
    require_parity,
    write_graph,
)
from fedvisage.runs.export.quantised import (
    PLACE,
    QuantisationEffect,
    evaluate_graph,
    quantise,
    splits,
    to_compare,
    view_of,
)
from fedvisage.runs.predict import weights_of
from fedvisage.tasks.finished_model import FinishedModel
from fedvisage.tasks.pad.adaptation import adapt_weights
from fedvisage.tasks.pad.evaluation import sources_of
from fedvisage.tasks.scoring import as_logits, mean_score

# Selection of the exported weights, and torch's reference outputs for the comparison.


@dataclass(frozen=True, eq=False)
class ExportedWeights:
    """The members that one graph is built from, the name of their model, and its threshold."""

    weights: list[Message]
    name: str
    threshold: Threshold | None


def choose_weights(model: FinishedModel, name: str) -> ExportedWeights:
    """Return the exported weights of a run: its only model, all members whose scores are averaged, or the named one."""
    members = members_of(weights_of(model, name))
    threshold = model.thresholds.get(name)
    if threshold is None and model.task == "pad":
        raise UserError(
            "threshold",
            "the model was evaluated with target-eer, an oracle; a device needs a threshold that the sites chose",
        )
    return ExportedWeights([weights for _, weights in sorted(members.items())], name, threshold)


def description_of(model: FinishedModel, chosen: ExportedWeights) -> Description:
    """Return the description that is stored in the graph's metadata."""
    method, threshold = model.setup.method, chosen.threshold
    return Description(
        task=method.task,
        method=method.name,
        member=chosen.name,
        size=model.recipe.input.size,
        model_sha256=digest_of(model.saved.finished),
        recipe_sha256=hashlib.sha256(json_key(model.saved.recipe).encode()).hexdigest(),
        threshold=None if threshold is None else point_of(threshold),
        crop=record_of(
            "face", aligned=method.task == "recognition", margin=model.margin, detector=detector_of(model.saved.crops)
        ),
        trained_on=() if model.saved.origin else model.saved.crops,
        drawn=method.prediction.draw_spread is not None,
        version=VERSION,
    )


def reference(model: FinishedModel, chosen: ExportedWeights, crops: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return torch's logits or unit embeddings of crops (N×S×S×3), computed in float32 on the CPU."""
    method, recipe = model.setup.method, model.recipe
    # A graph cannot draw: for a prediction that samples, the reference is the mean over draws.
    prediction = method.prediction
    predict = prediction.predict if prediction.draw_spread is None else prediction.exportable_predict
    assert predict is not None
    net = copy.deepcopy(model.scorer.net).cpu().eval()
    ready = prepare(torch.from_numpy(crops).permute(0, 3, 1, 2), recipe.input.colour, torch.device("cpu"))
    outputs = []
    for weights in chosen.weights:
        load_parts(net, weights)
        with torch.inference_mode():
            outputs.append(predict(Member(net, ready, torch_rng(recipe.runtime.seed, "inference"), recipe)).float())
    if method.task == "recognition":
        return np.asarray(mean_direction([output.double() for output in outputs]).numpy())
    logits = [as_logits(output) for output in outputs]
    return mean_score(logits) if len(logits) > 1 else logits[0]


@dataclass(frozen=True)
class ExportResult:
    """The result of an export: its directory, its configuration, and its difference from torch."""

    directory: Path
    config: Config
    parity: list[Parity]
    compared_on: str
    notices: tuple[str, ...] = ()
    moved: QuantisationEffect | None = None

    def as_values(self) -> dict[str, Any]:
        """Return the result as plain values, for programs."""
        task = self.config.float32.description.task
        parity = parity_values(self.parity, self.compared_on, self.moved, task)
        return {"directory": str(self.directory), **self.config.model_dump(mode="json"), "parity": parity}

    def lines(self) -> list[str]:
        """Return the result as lines of text, for people."""
        worst = [
            f"{parity.score_difference:.1e} in score" if parity.cosine is None else f"cosine {parity.cosine:.7f}"
            for parity in self.parity
        ]
        sizes = ", ".join(
            f"{format_count(parity.batch, 'crop')} at a time: {difference}"
            for parity, difference in zip(self.parity, worst, strict=True)
        )
        adapted = self.config.float32.description.adapted
        lines = [f"adapted to {format_count(adapted.images, 'image')}, without labels"] if adapted else []
        lines += [
            f"{self.directory / GRAPH}: {self.config.float32.file.bytes / 1e6:.1f} MB",
            f"graph and torch on crops of {self.compared_on}, {sizes}",
        ]
        if self.config.int8 is not None and self.moved is not None:
            pad, moved = self.config.int8.description.task == "pad", self.moved
            rates = [
                f"{evaluated.error if pad else 1 - evaluated.error:.2%}" for evaluated in (moved.float32, moved.int8)
            ]
            lines += [
                f"{self.directory / INT8_GRAPH}: {self.config.int8.file.bytes / 1e6:.1f} MB",
                f"{'HTER' if pad else 'TAR'} on {moved.set}: {rates[0]} in float32, {rates[1]} in int8",
            ]
        return lines


def export(
    model: FinishedModel,
    out: Path,
    *,
    data: str | None = None,
    member: str = "",
    calibrate: str | None = None,
    cache: Path,
    say: Say = discard,
    adapted: AdaptationOrigin | None = None,
) -> ExportResult:
    """Export a finished model for devices into a new directory; leave nothing behind if a step fails.

    The graph is compared with torch on crops of ``data``, by default the run's target. ``calibrate`` names a set with
    the splits of a site; with it, the export also contains an int8 graph.
    """
    check_free(out)
    # Open all sets before anything is written, so that a mistake in an option is reported early.
    chosen = choose_weights(model, member)
    description = description_of(model, chosen)
    if adapted is not None:
        threshold_alone = without_rates(description.threshold)
        description = description.model_copy(update={"adapted": adapted, "threshold": threshold_alone})
    if calibrate is not None and chosen.threshold is not None and chosen.threshold.estimates:
        raise UserError("--at", "does not apply to an int8 graph, which has its own threshold; leave --int8 out")
    crops, compared_on = to_compare(model, data, cache, say)
    source, rule = None, "" if chosen.threshold is None else chosen.threshold.rule
    if calibrate is not None:
        view = view_of(model, calibrate, PLACE, cache, say)
        recorded = model.directory / DATA
        digests = rename_places(read_json(recorded)) if recorded.is_file() else {}
        target = digests.pop(TARGET, None)
        if target == view.slices[0].set.digest and target not in digests.values():
            raise UserError(PLACE, "is the run's target, whose labels must not choose a threshold; name a site's set")
        source = splits(view, model.task, rule)
    say("writing the graph")
    with replaced_when_complete(out) as directory:
        config = with_graph(directory, model, chosen, description)
        description = config.float32.description
        exported = Exported.open(directory)
        say("comparing it with torch")
        parity = measure(exported.run, lambda part: reference(model, chosen, part), crops, model.task)
        require_parity(parity)
        int8, moved = None, None
        if source is not None:
            say("writing the int8 graph")
            calibration, heldout = source
            path = directory / INT8_GRAPH
            quantise(directory / GRAPH, path, calibration)
            before = evaluate_graph(exported, heldout, model.recipe, rule)
            session = open_session(str(path), path.read_bytes(), 1, remedy=AGAIN)
            after = evaluate_graph(replace(exported, session=session), heldout, model.recipe, rule)
            moved = QuantisationEffect(heldout.slices[0].set.name, len(heldout), before, after)
            moved.require(model.task)
            own = {"arithmetic": "int8", "threshold": point_of(after.threshold)}
            int8 = exported.description.model_copy(update=own)
        notices = _notices(model, description)
        write_json(directory / PARITY, parity_values(parity, compared_on, moved, model.task))
        # Where several members are averaged, numbers replace the names of their sites.
        members = {f"member{number}": weights for number, weights in enumerate(chosen.weights, 1)}
        write_tensors(directory / WEIGHTS, join_members(members if len(members) > 1 else {"": chosen.weights[0]}))
        # The graphs state the digests of these two files, so they are described again after them.
        config = write_export(directory, description, int8, curves=config.curves)
        for arithmetic in (False, True) if int8 else (False,):
            Exported.open(directory, int8=arithmetic)
        written = ExportResult(out, config, parity, compared_on, (*model.notices, *notices), moved)
        path = model.directory / METRICS
        figures = read_metrics(path) if path.exists() else Metrics()
        write_card(directory / CARD, model, config, figures, notices)
    return written


def parity_values(
    parities: list[Parity], compared_on: str, moved: QuantisationEffect | None, task: str
) -> dict[str, Any]:
    """Return the difference between graph and torch in the format of `parity.json`."""
    return {
        "compared_on": compared_on,
        "batches": [parity.as_values() for parity in parities],
        "allowed": {"score_difference": SCORE, "cosine": COSINE},
        "torch": torch.__version__,
        "onnxruntime": version("onnxruntime"),
        **({} if moved is None else {"int8": moved.as_values(task)}),
    }


def with_graph(directory: Path, model: FinishedModel, chosen: ExportedWeights, description: Description) -> Config:
    """Write a model's graph and its description into a directory, without comparing the graph with torch."""
    path = directory / GRAPH
    path.parent.mkdir()
    with disk_full_is_failure(path):
        norms = write_graph(Graph(model, chosen.weights), path, description.size)
        description = description.model_copy(update={"batch_norms": norms})
        # The curves are those before adaptation.
        return write_export(directory, description, curves=model.saved.curves if description.adapted is None else None)


def _notices(model: FinishedModel, description: Description) -> list[str]:
    notices = []
    if description.threshold is None:
        notices.append(
            "The model has no threshold, because the sites' held-out people gave too few pairs for the false match "
            "rate in evaluation.recognition.fmr; predict, serve and gallery refuse it. Train with more held-out "
            "people, or with a higher rate, and export again."
        )
    if description.drawn:
        notices.append(
            "The method samples blocks for each prediction; the exported graph is deterministic: the mean over "
            "all blocks."
        )
    if description.adapted is not None:
        notices.append(
            f"The model was adapted to {format_count(description.adapted.images, 'image')} of its target without "
            "labels; its threshold is still the one that the sites chose, and the metrics of the run are those "
            "before adaptation."
        )
    elif model.recipe.evaluation.adapt is not None:
        notices.append(
            "The run adapted the model to its target's images before it was evaluated; the graph is not adapted."
        )
    return notices


# Adaptation before export. Exported models cannot learn, so this step runs where torch is installed.


def adapt_and_export(
    model: FinishedModel, out: Path, data: str, *, member: str = "", cache: Path, say: Say = discard
) -> ExportResult:
    """Adapt a model to an unlabelled dataset and export it; write nothing if the gate rejects the adaptation."""
    check_free(out)
    if model.task != "pad":
        raise UserError(str(model.directory), "recognises people; only attack detection is adapted")
    view = view_of(model, data, "--data", cache, say)
    say(f"adapting to {format_count(len(view), 'image')}")
    configured = model.recipe.evaluation.adapt
    settings = configured if configured is not None and configured.loop == "settled" else Adapt()
    sources = sources_of(model.setup.method, model.saved)
    finished, outcomes = adapt_weights(model.scorer, model.saved.finished, view, settings, sources)
    # If no member was adapted, the source model must not be exported as an adapted one.
    if not any(outcome.adapted and not outcome.taken_back for outcome in outcomes.values()):
        reasons = {reason for outcome in outcomes.values() for reason in (*outcome.skipped, *outcome.taken_back)}
        raise RunFailed(f"the gate rejected the adaptation ({', '.join(sorted(reasons))}); nothing was written")
    source = digest_of(model.saved.finished)
    adaptation = AdaptationOrigin(from_sha256=source, how="gated", images=len(view))
    adapted = replace(model, saved=replace(model.saved, finished=finished))
    return export(adapted, out, data=data, member=member, cache=cache, say=say, adapted=adaptation)
