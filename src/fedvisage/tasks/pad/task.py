"""Presentation attack detection as a task: is this a living face, or a print, a replay, a mask?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.errors import UserError
from fedvisage.federation.declared import Call, Declared, TaskName
from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.upload import Upload
from fedvisage.metrics.scores import write_scores
from fedvisage.metrics.threshold import ON_TRAINING
from fedvisage.nn.precision import Compute
from fedvisage.progress import Say
from fedvisage.recipe import Recipe, tree_of
from fedvisage.tasks.asking import collect_histograms
from fedvisage.tasks.model import SavedModel
from fedvisage.tasks.opened import Benchmark, Opened
from fedvisage.tasks.pad import heldout, judge
from fedvisage.tasks.pad.data import open_data
from fedvisage.tasks.pad.features import write_features
from fedvisage.tasks.pad.summary import summary_lines
from fedvisage.tasks.scoring import Scorer
from fedvisage.tasks.task import Trained

SCORES = "scores.csv"


@dataclass(frozen=True)
class Pad:
    """Attack detection: its data, what sites say of a finished model, its judgement."""

    name: TaskName = "pad"
    seen: tuple[str, ...] = ("train", "heldout")

    def check(self, recipe: Recipe, method: Declared) -> None:
        """Refuse what is for recognition."""
        if recipe.data.public is not None or recipe.training.pretrain is not None or recipe.evaluation.recognition:
            raise UserError("recipe.method", f"{method.name} detects attacks; data.public, training.pretrain and "
                            "evaluation.recognition are for recognition")  # fmt: skip
        if recipe.data.benchmarks is not None:
            raise UserError("recipe.data.benchmarks", f"are for recognition, and {method.name} detects attacks; use "
                            "`fedvisage evaluate RUN --data SET`")  # fmt: skip

    def check_real(self, recipe: Recipe) -> None:
        """Accept all: nothing of this task needs to see two sites at once."""

    def filled(self, recipe: Recipe, cache: Path, say: Say) -> Recipe:
        """Return the recipe as it is."""
        return recipe

    def open(self, recipe: Recipe, method: Declared, cache: Path, say: Say) -> Opened:
        """Open the sites' sets and the user's."""
        return open_data(recipe, method, cache, say)

    def first(self, recipe: Recipe, data: Opened, compute: Compute, cache: Path, say: Say) -> Message:
        """Return nothing: training begins with the initial weights."""
        return {}

    def uploads(self, method: Declared) -> Mapping[str, tuple[Upload, ...]]:
        """Return the fields of histograms and scatter."""
        return {call: (upload,) for call, upload in heldout.UPLOADS.items()}

    def calls(self, scorer: Scorer) -> dict[str, Call]:
        """Return the calls for histograms and scatter."""
        return heldout.calls(scorer)

    def settle(self, server: Server, finished: Message) -> Trained:
        """Choose thresholds by held-out scores, and ask for the scatter that adaptation takes for chance."""
        histograms = collect_histograms(server, finished)
        thresholds = judge.choose_thresholds(server.method, server.recipe.evaluation.threshold, histograms)
        scatter = judge.collect_scatter(server, finished)
        on_training = {}
        if heldout.counts_training(server.recipe):
            trained = collect_histograms(server, finished, heldout.TRAINING)
            on_training = judge.choose_thresholds(server.method, ON_TRAINING, trained)
        saved = SavedModel(
            tree_of(server.recipe), finished, thresholds, scatter, self.name, on_training=on_training
        )  # fmt: skip
        return Trained(saved, server.round, judge.heldout_table(histograms, thresholds), histograms)

    def judge(self, scorer: Scorer, trained: Trained, data: Opened, out: Path) -> dict[str, Any]:
        """Score the user's data, if there is a user."""
        figures: dict[str, Any] = {}
        if data.user is not None:
            figures = self.rejudge(scorer, trained.saved, data.user, scorer.recipe.data.user_name, out)
            if scorer.recipe.evaluation.features:
                write_features(out, scorer, trained.saved.finished, data)
        judged_on = "sites_training" if scorer.recipe.evaluation.threshold == ON_TRAINING else "sites_heldout"
        return figures | {judged_on: trained.heldout}

    def check_set(self, found: PreparedSet, recipe: Recipe, entry: str) -> None:
        """Refuse a way to judge that is for recognition."""
        if recipe.evaluation.recognition is not None:
            raise UserError("--pairs", "this model detects attacks; leave --pairs out")

    def rejudge(self, scorer: Scorer, saved: SavedModel, view: View, name: str, out: Path | None) -> dict[str, Any]:
        """Score a view, and write a line a frame."""
        judged = judge.judge(scorer, saved, view, name)
        if out is not None:
            write_scores(out / SCORES, judged.scores)
        return judged.figures

    def without_threshold(self, scorer: Scorer, saved: SavedModel, data: Opened) -> dict[str, Any]:
        """Return the equal error rate and the area under the curve; the mean over members where there are several."""
        if data.user is None:
            return {}
        figures = judge.judge(scorer, saved, data.user, scorer.recipe.data.user_name).figures
        return {name: figures[name] for name in ("eer", "auc")}

    def open_benchmarks(
        self, entries: Mapping[str, str], recipe: Recipe, cache: Path, say: Say
    ) -> dict[str, Benchmark]:
        """Refuse what is for recognition."""
        raise UserError("--benchmark", "this model detects attacks; judge it on one set after another, with --data")

    def on_benchmarks(self, scorer: Scorer, saved: SavedModel, benchmarks: Mapping[str, Benchmark]) -> dict[str, Any]:
        """Return nothing: none is ever opened."""
        return {}

    def summary(self, figures: Mapping[str, Any]) -> list[str]:
        """Return error rates by level and species."""
        return summary_lines(figures)
