"""Snapshots: models of single rounds, saved during training and evaluated on the target after the run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvisage.base.files import read_tensors, tensor_bytes, write_atomically
from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message, plain
from fedvisage.methods.models.frozen_backbone import constant_weights
from fedvisage.metrics.recorded import Metrics
from fedvisage.recipe import Recipe
from fedvisage.runs.directory import SNAPSHOTS
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult

BY_ROUND = "by_round"
"""The key of the snapshots' metrics in metrics.json."""


def snapshot_saver(out: Path, recipe: Recipe) -> Callable[[Server], dict[str, str]]:
    """Return a function that saves the models of the rounds that the recipe selects, and returns a file's digest.

    Papers plot metrics by round (PrivacyFace's Figure 5, FedPAD's curves) and start from models of earlier rounds. Each
    file equals the ``model.safetensors`` of a run that ends at that round, except for exact statistics, which the
    server collects only once. ``training.start`` accepts such a file. A round that is trained again overwrites its
    snapshot.
    """
    every = recipe.evaluation.snapshots

    def keep(server: Server) -> dict[str, str]:
        if every is None or server.round % every:
            return {}
        path = snapshot_path(out, server.round)
        path.parent.mkdir(exist_ok=True)
        content = tensor_bytes(with_constant_weights(server, server.finished()))
        write_atomically(path, content)
        return {str(path.relative_to(out)): hashlib.sha256(content).hexdigest()}

    return keep


def with_constant_weights(server: Server, finished: Message) -> Message:
    """Add the constant weights, which are never sent, to a finished model, so that it needs no other file."""
    return {**finished, **{name: plain(value) for name, value in constant_weights(server.net).items()}}


def snapshot_path(out: Path, number: int) -> Path:
    """Return the path of the model of a round."""
    return out / SNAPSHOTS / f"round-{number}.safetensors"


def snapshot_metrics(setup: Setup, out: Path, trained: TrainingResult, data: RunData) -> dict[str, Any]:
    """Return the target metrics of each saved round, as a part of metrics.json.

    Without a target and benchmarks there are none. Only simulations can evaluate snapshots, because a federation does
    not see its target. The metrics select nothing, and they need no threshold, because the sites choose thresholds only
    for the finished model.
    """
    every = setup.recipe.evaluation.snapshots
    if every is None or (data.target is None and not data.benchmarks):
        return {}
    evaluation = setup.recipe.evaluation.model_copy(update={"resamples": 0, "published": None})
    scorer = replace(setup, recipe=setup.recipe.model_copy(update={"evaluation": evaluation})).scorer()
    figures = []
    for number, path in _saved_rounds(out, every, trained.rounds):
        saved = replace(trained.saved, finished=read_tensors(path)[0])
        figures.append(Metrics.of({"round": number, **setup.task.evaluate_snapshot(scorer, saved, data)}))
    return {BY_ROUND: figures} if figures else {}


def _saved_rounds(out: Path, every: int, rounds: int) -> Iterator[tuple[int, Path]]:
    """Yield the number and the path of each saved round; a run that adopted the model of another run has none."""
    for number in range(every, rounds + 1, every):
        if (path := snapshot_path(out, number)).exists():
            yield number, path
