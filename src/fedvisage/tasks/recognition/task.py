"""Face recognition as a task: who is it, for everybody and for the people of one site?"""

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
from fedvisage.nn.precision import Compute
from fedvisage.progress import Say
from fedvisage.recipe import Recipe, tree_of
from fedvisage.tasks.asking import collect_histograms
from fedvisage.tasks.model import SavedModel
from fedvisage.tasks.opened import Benchmark, Opened
from fedvisage.tasks.overlap import PUBLIC
from fedvisage.tasks.recognition import heldout, judge
from fedvisage.tasks.recognition.benchmarks import judge_benchmarks, open_benchmarks
from fedvisage.tasks.recognition.data import check_recognition, filled, open_data
from fedvisage.tasks.recognition.personal import collect_personal
from fedvisage.tasks.recognition.pretraining import pretrained
from fedvisage.tasks.recognition.summary import summary_lines
from fedvisage.tasks.scoring import Scorer
from fedvisage.tasks.task import Trained


@dataclass(frozen=True)
class Recognising:
    """Recognition: its data, its first model, what sites say of a finished one, its judgement."""

    name: TaskName = "recognition"
    seen: tuple[str, ...] = ("train", "test")

    def check(self, recipe: Recipe, method: Declared) -> None:
        """Refuse what is for attack detection, and choices by what the personal figures are about."""
        check_recognition(recipe, method)

    def check_real(self, recipe: Recipe) -> None:
        """Refuse to show sites each other's people."""
        if recipe.evaluation.people.impostors == "pooled":
            raise UserError(
                "recipe.evaluation.recognition.impostors", "pooled shows sites each other's people; use public"
            )

    def filled(self, recipe: Recipe, cache: Path, say: Say) -> Recipe:
        """Return the recipe with the number of public identities, from which networks are built."""
        return filled(recipe, cache, say)

    def open(self, recipe: Recipe, method: Declared, cache: Path, say: Say) -> Opened:
        """Open the identity sets of sites, benchmark and public people."""
        return open_data(recipe, method, cache, say)

    def first(self, recipe: Recipe, data: Opened, compute: Compute, cache: Path, say: Say) -> Message:
        """Return the model that is pre-trained on the public people."""
        if recipe.training.pretrain is None:
            return {}
        if data.people is None or data.people.public is None:
            raise UserError("recipe.training.pretrain", "needs data.public, the identities to pre-train on")
        return pretrained(recipe, data.people.public, data.digests[PUBLIC], compute, cache, say)

    def uploads(self, method: Declared) -> Mapping[str, tuple[Upload, ...]]:
        """Return the fields of histograms and personal figures."""
        return heldout.uploads(method)

    def calls(self, scorer: Scorer) -> dict[str, Call]:
        """Return the calls for histograms and personal figures."""
        return heldout.calls(scorer)

    def settle(self, server: Server, finished: Message) -> Trained:
        """Choose the threshold of a yes or no, and ask sites about their own models if they have anybody to reject."""
        recipe, method = server.recipe, server.method
        histograms = collect_histograms(server, finished)
        thresholds = judge.choose_thresholds(method, recipe, histograms)
        saved = SavedModel(tree_of(recipe), finished, thresholds, {}, self.name)
        strangers = recipe.data.public is not None or recipe.evaluation.people.impostors == "pooled"
        personal = collect_personal(server, finished) if strangers and not method.pooled else {}
        return Trained(saved, server.round, judge.heldout_table(histograms), histograms, personal)

    def judge(self, scorer: Scorer, trained: Trained, data: Opened, out: Path) -> dict[str, Any]:
        """Judge the generic model on the benchmark, and put the sites' figures beside it."""
        return judge.judge_run(scorer, trained, data, out)

    def check_set(self, found: PreparedSet, recipe: Recipe, entry: str) -> None:
        """Refuse a set without identities, and adaptation."""
        if found.rows.group is None:
            raise UserError(entry, "is no identity set, and this model recognises people")
        if recipe.evaluation.adapt is not None:
            raise UserError("--adapt", "is for attack detection; leave it out")

    def rejudge(self, scorer: Scorer, saved: SavedModel, view: View, name: str, out: Path | None) -> dict[str, Any]:
        """Judge the generic model on another identity set."""
        figures = {"task": self.name, **judge.threshold_figures(scorer.recipe, saved.thresholds)}
        return figures | judge.judge(out, scorer, saved.finished, view, saved.thresholds)

    def without_threshold(self, scorer: Scorer, saved: SavedModel, data: Opened) -> dict[str, Any]:
        """Return the rates of verification and identification at the recipe's error rates, and those of benchmarks."""
        generic = judge.judge(None, scorer, saved.finished, data.user, {}).get("generic") or {}
        found: dict[str, Any] = {"generic": {key: generic[key] for key in judge.RATES if key in generic}}
        if data.benchmarks:
            found["benchmarks"] = judge_benchmarks(scorer, saved.finished, data.benchmarks, {})
        return found

    def open_benchmarks(
        self, entries: Mapping[str, str], recipe: Recipe, cache: Path, say: Say
    ) -> dict[str, Benchmark]:
        """Open identity sets, with the lists that lie beside them."""
        return open_benchmarks(entries, recipe, cache, say)

    def on_benchmarks(self, scorer: Scorer, saved: SavedModel, benchmarks: Mapping[str, Benchmark]) -> dict[str, Any]:
        """Judge the generic model by the lists of each."""
        figures = {"task": self.name, **judge.threshold_figures(scorer.recipe, saved.thresholds)}
        judged = judge_benchmarks(scorer, saved.finished, benchmarks, saved.thresholds)
        return figures | {"benchmarks": judged}

    def summary(self, figures: Mapping[str, Any]) -> list[str]:
        """Return verification and identification rates, generic and personal."""
        return summary_lines(figures)
