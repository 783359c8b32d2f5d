"""The task of face recognition: one generic model, and personal models for the people of each site."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say, percent
from fedvisage.data.batches import View
from fedvisage.data.overlap import PUBLIC
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message
from fedvisage.metrics.groups import PLACE as BY
from fedvisage.metrics.groups import Groups
from fedvisage.metrics.recorded import Metrics
from fedvisage.nn.compute import Compute
from fedvisage.recipe import Recipe, tree_of
from fedvisage.tasks.asking import call_with_model, choose_kept, collect_histograms
from fedvisage.tasks.opened import Benchmark, RunData
from fedvisage.tasks.pad.heldout import SCORES, keeps_curves
from fedvisage.tasks.recognition import benchmarks, evaluation, heldout
from fedvisage.tasks.recognition.data import check_recognition, open_data, with_public_identities
from fedvisage.tasks.recognition.heldout import collect_personal
from fedvisage.tasks.recognition.pretraining import pretrain
from fedvisage.tasks.saved_model import SavedModel
from fedvisage.tasks.scoring import Scorer
from fedvisage.tasks.task import Task, TrainingResult


def summarise(metrics: Metrics) -> list[str]:
    """Return the headline metrics as lines: verification and identification rates, generic and personal."""
    generic, personal = metrics.part("generic"), metrics.part("personal")
    target = metrics.get("target")
    lines = [f"{metrics['method']} on {'benchmarks' if target is None else f'benchmark {target}'}"]
    if metrics.get("threshold") is not None:
        lines[0] += f" (threshold {metrics['threshold']:.4f} by rule {metrics['threshold_rule']})"
    lines += [f"  {metrics['operating_point']}"] if "operating_point" in metrics else []
    lines += _rate_lines("  generic", generic) + _rate_lines(f"  personal, {personal.get('model')} model", personal)
    if generic.get("accuracy") is not None:
        lines.append(f"  ten folds: {percent(generic['accuracy'])}")
    if listed := generic.part("listed_pairs"):
        pairs = f"{listed['pairs']} pairs of {listed['list']} ({listed['left_out']} left out: no such image)"
        lines.append(f"  {pairs}: {percent(listed['accuracy'])} on {listed['folds']} folds")
    for name, benchmark in metrics.parts("benchmarks").items():
        lines += [f"  {name}: {line}" for line in _benchmark_lines(benchmark)]
    return lines


def _rate_lines(name: str, rates: Metrics) -> list[str]:
    """Return a line per kind of rate that was measured."""
    lines = []
    for kind, title in (("tar", "TAR@FAR"), ("tpir", "TPIR@FPIR"), ("rank", "rank")):
        values = [f"{rate} {percent(value)}" for rate, value in rates.rates(kind).items() if value is not None]
        lines += [f"{name}: {title} {'  '.join(values)}"] if values else []
    return lines


def _benchmark_lines(benchmark: Metrics) -> list[str]:
    """Return the headline metrics of one benchmark as lines."""
    lines = []
    for name, listed in benchmark.parts("lists").items():
        pairs = f"{name}, {listed['pairs']} pairs ({listed['left_out']} left out)"
        lines.append(f"{pairs}: {percent(listed['accuracy'])} on {listed['folds']} folds")
    if spread := benchmark.part("spread"):
        ratio = spread.number("skewed_error_ratio")
        means = f"mean of the groups {percent(spread['mean'])}, standard deviation {percent(spread['std'])}"
        lines.append(means + ("" if ratio is None else f", skewed error ratio {ratio:.2f}"))
    for reading, rates in benchmark.parts("readings").items():
        lines += _rate_lines(reading, rates)
    return lines + _rate_lines("all images", benchmark.part("generic"))


def check_real(recipe: Recipe) -> None:
    """Refuse settings that show sites each other's people."""
    if recipe.evaluation.people.impostors == "pooled":
        raise UserError(
            "recipe.evaluation.recognition.impostors", "pooled shows sites the people of other sites; use public"
        )


def pretrain_model(recipe: Recipe, data: RunData, compute: Compute, cache: Path, say: Say) -> Message:
    """Return the model that is pre-trained on the public people, if the recipe asks for it."""
    if recipe.training.pretrain is None:
        return {}
    if data.people is None or data.people.public is None:
        raise UserError("recipe.training.pretrain", "needs data.public, the identities to pre-train on")
    return pretrain(recipe, data.people.public, data.digests[PUBLIC], compute, cache, say)


def choose_thresholds(server: Server, finished: Message) -> TrainingResult:
    """Choose the decision threshold, and request metrics of the sites' own models if the sites have impostors."""
    recipe, method = server.recipe, server.method
    finished, kept = choose_kept(
        server, finished, lambda model: evaluation.unseen_table(collect_histograms(server, model, heldout.UNSEEN))
    )
    replies = call_with_model(server, SCORES, finished)
    histograms = {name: reply["histogram"].numpy() for name, reply in replies.items()}
    thresholds = evaluation.choose_thresholds(method, recipe, histograms)
    curves = evaluation.average_pair_curves(server, replies) if keeps_curves(recipe, method) else None
    saved = SavedModel(tree_of(recipe), finished, thresholds, {}, "recognition", curves=curves)
    strangers = recipe.data.public is not None or recipe.evaluation.people.impostors == "pooled"
    personal = collect_personal(server, finished) if strangers and not method.pooled else {}
    return TrainingResult(saved, server.round, evaluation.heldout_table(histograms), histograms, personal, kept)


def evaluate_snapshot(scorer: Scorer, saved: SavedModel, data: RunData) -> dict[str, Any]:
    """Return verification and identification rates at the recipe's error rates, and those of benchmarks."""
    generic = evaluation.evaluate_recognition(None, scorer, saved.finished, data.target, {}).get("generic", {})
    figures: dict[str, Any] = {"generic": {name: value for name, value in generic.items() if "@" in name}}
    if data.benchmarks:
        figures["benchmarks"] = benchmarks.evaluate_benchmarks(scorer, saved.finished, data.benchmarks, {})
    return figures


def check_set(prepared: PreparedSet, recipe: Recipe, entry: str) -> None:
    """Refuse a set without identities, and adaptation."""
    if prepared.rows.group is None:
        raise UserError(entry, "is not an identity set, which a recognition model requires")
    if recipe.evaluation.adapt is not None:
        raise UserError("--adapt", "is for attack detection; leave it out")


def evaluate_saved(
    scorer: Scorer, saved: SavedModel, view: View, name: str, out: Path | None, groups: Groups | None = None
) -> dict[str, Any]:
    """Evaluate the generic model on another identity set."""
    if groups is not None and not saved.thresholds:
        raise UserError(BY, "needs a threshold, and this model has none; train it with a higher recognition.fmr")
    figures = {"task": "recognition", **evaluation.threshold_figures(scorer.recipe, saved.thresholds)}
    return figures | evaluation.evaluate_recognition(out, scorer, saved.finished, view, saved.thresholds, groups)


def evaluate_benchmarks(scorer: Scorer, saved: SavedModel, opened: Mapping[str, Benchmark]) -> dict[str, Any]:
    """Evaluate the generic model with the lists of each benchmark."""
    figures = {"task": "recognition", **evaluation.threshold_figures(scorer.recipe, saved.thresholds)}
    return figures | {"benchmarks": benchmarks.evaluate_benchmarks(scorer, saved.finished, opened, saved.thresholds)}


TASK = Task(
    name="recognition",
    splits=("train", "test"),
    check=check_recognition,
    check_real=check_real,
    fill_recipe=with_public_identities,
    open=open_data,
    pretrain=pretrain_model,
    uploads=heldout.uploads,
    calls=heldout.calls,
    choose_thresholds=choose_thresholds,
    evaluate=evaluation.evaluate_run,
    evaluate_snapshot=evaluate_snapshot,
    check_set=check_set,
    evaluate_saved=evaluate_saved,
    open_benchmarks=benchmarks.open_benchmarks,
    evaluate_benchmarks=evaluate_benchmarks,
    summarise=summarise,
)
