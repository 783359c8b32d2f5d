"""The task of presentation attack detection: classification of faces as bona fide or as an attack."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say, format_count, percent
from fedvisage.data.batches import View, check_view
from fedvisage.data.crops import CropRecord
from fedvisage.data.overlap import HELD_OUT, SITE, TARGET
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import Selection, select, split_entry, splits_of
from fedvisage.federation.method import Method
from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import Upload
from fedvisage.metrics.groups import Groups
from fedvisage.metrics.recorded import Metrics
from fedvisage.metrics.scores import write_scores
from fedvisage.metrics.threshold import ON_TRAINING, RATES, SOURCE_RULES, warning_of_end
from fedvisage.recipe import Recipe, tree_of
from fedvisage.tasks.asking import choose_kept, collect_histograms
from fedvisage.tasks.opened import Benchmark, RunData, SiteData, check_keep, merge_sites, open_set
from fedvisage.tasks.pad import evaluation, heldout
from fedvisage.tasks.pad.evaluation import write_features
from fedvisage.tasks.saved_model import SavedModel
from fedvisage.tasks.scoring import Scorer
from fedvisage.tasks.task import Task, TrainingResult

SCORES = "scores.csv"
FEW = 30
"""Fewer images of a class give figures without meaning."""


def open_data(recipe: Recipe, method: Method, cache: Path, say: Say) -> RunData:
    """Open or render the sets of a recipe, and check them against the recipe and each other."""
    sites: dict[str, SiteData] = {}
    opened: dict[str, PreparedSet] = {}  # by entry without the selection, as many sites may be parts of one set
    digests: dict[str, str] = {}
    crops: dict[str, CropRecord | None] = {}
    for name, entry in sorted(recipe.data.sites.items()):
        place = f"{SITE}{name}"
        source, selection = split_entry(entry)
        if source not in opened:
            opened[source] = open_set(source, place, recipe, cache, say)
        digests[place], crops[place] = opened[source].digest, opened[source].crop
        sites[name] = _split_site(opened[source], place, selection, recipe.evaluation.threshold)
    _check_heldout(sites, method, recipe.evaluation.threshold)
    target = None
    if recipe.data.target is not None:
        source, selection = split_entry(recipe.data.target)
        prepared = opened.get(source) or open_set(source, TARGET, recipe, cache, say)
        split = recipe.data.target_split
        target = select(View.of(prepared, None if split == "all" else split), selection, TARGET)
        if len(target) == 0:
            raise UserError("data.target_split", f"the target's data has no images in split {split!r}")
        target_set = target.slices[0].set
        digests[TARGET], crops[TARGET] = target_set.digest, target_set.crop
    places = {f"{SITE}{name}": (site.train,) for name, site in sites.items()}
    held_out = {name: site.heldout for name, site in sites.items() if not site.all_trains and len(site.heldout)}
    places |= {f"{SITE}{name}{HELD_OUT}": (view,) for name, view in held_out.items()}
    places |= {} if target is None else {TARGET: (target,)}
    return RunData(merge_sites(sites) if method.pooled else sites, target, digests, crops=crops, places=places)


def _split_site(prepared: PreparedSet, place: str, selection: Selection, rule: str) -> SiteData:
    train, heldout = splits_of(prepared, selection, place)
    check_view(train, place)
    if rule == ON_TRAINING:
        return SiteData(train, train)
    if selection.heldout == ():
        raise UserError(
            place,
            f"holds nothing out (heldout=none), and evaluation.threshold is {rule}; use {ON_TRAINING}, which uses "
            "the scores of the training images",
        )
    if len(heldout):  # frames of one person cannot be held out, and the other sites choose the threshold
        check_view(heldout, f"{place}{HELD_OUT}")
    return SiteData(train, heldout)


def _check_heldout(sites: Mapping[str, SiteData], method: Method, rule: str) -> None:
    """Refuse sites without held-out people if no other site chooses their threshold."""
    without = [name for name, site in sites.items() if not len(site.heldout)]
    if not without or rule not in SOURCE_RULES or rule == "fixed":
        return
    remedy = f"hold people out, or set evaluation.threshold: {ON_TRAINING} or fixed"
    if method.members == "each":
        raise UserError(
            f"{SITE}{without[0]}", f"has no held-out people, and {method.name} has a threshold per site; {remedy}"
        )
    if len(without) == len(sites) > 1:
        raise UserError("recipe.data.sites", f"no site holds people out to choose a threshold; {remedy}")


def summarise(metrics: Metrics) -> list[str]:
    """Return the headline metrics as lines: error rates by level and attack type, and the result of an adaptation."""
    lines = [
        f"{metrics['method']} at target {metrics['target']} ({metrics['level']} level, threshold "
        f"{metrics['threshold']:.3f} by rule {metrics['threshold_rule']})"
    ]
    lines += [f"  {metrics['operating_point']}"] if "operating_point" in metrics else []
    for level in ("frame", "video"):
        at_level = metrics if level == metrics["level"] else metrics.part(level)
        rates = [f"{name.upper():6}{percent(at_level[name])}" for name in ("hter", "eer", "auc", "acer")]
        lines.append(f"  {level:6}" + "  ".join(rates) + f"  TPR@FPR=1% {percent(at_level['tpr_at_fpr_1pct'])}")
    species = "  ".join(f"{name} {percent(value)}" for name, value in metrics.part("apcer").items())
    lines.append(f"  APCER {species or '–'}  BPCER {percent(metrics['bpcer'])}")
    lines += [_amount(metrics), *_threshold_at_sites(metrics)]
    if personal := metrics.part("personal"):
        figures = "  ".join(f"{name.upper()} {percent(personal[name])}" for name in ("eer", "auc"))
        lines.append(f"  sites' own models on their held-out images: {figures}")
    if published := metrics.part("published"):
        rates = [f"{title} {percent(published[name])}" for name, title in RATES.items() if name in published]
        lines.append(f"  as papers calculate it: {'; '.join(rates)}")
    for name, outcome in metrics.parts("adaptation").items():
        parts = [f"{format_count(outcome['adapted'], 'image')} adapted to"]
        parts += [f"{count} skipped ({reason})" for reason, count in outcome.part("skipped").items()]
        parts += [f"{count} taken back ({reason})" for reason, count in outcome.part("taken_back").items()]
        lines.append(f"  adaptation of {name}: {', '.join(parts)}")
    return lines


def _amount(metrics: Metrics) -> str:
    """Return the numbers of images or videos behind the figures, with intervals, and a warning if they are few."""
    unit, live, attacks = metrics["level"], int(metrics["count.bona_fide"]), int(metrics["count.attack"])
    line = f"  {live} live and {format_count(attacks, 'attack')} ({unit}s)"
    bounds = metrics.part(f"intervals.{unit}")
    shown = [
        f"{name.upper()} {100 * bounds[name][0]:.2f} to {100 * bounds[name][1]:.2f} %"
        for name in ("hter", "eer", "auc")
        if name in bounds
    ]
    line += f"; 95 % intervals over subjects: {', '.join(shown)}" if shown else ""
    few = min(live, attacks) < FEW
    return line + (f"; warning: fewer than {FEW} of a class, so the figures are very uncertain" if few else "")


def _threshold_at_sites(metrics: Metrics) -> list[str]:
    """Return the errors of the threshold at the sites, and why they differ from the EER of the rounds."""
    far, frr = metrics.number("threshold_source.far"), metrics.number("threshold_source.frr")
    if metrics["threshold_rule"] not in SOURCE_RULES or far is None or frr is None:
        return []
    images = "training" if metrics["threshold_rule"] == ON_TRAINING else "held-out"
    errors = f"accepts {far:.2%} of {images} attacks and rejects {frr:.2%} of live"
    errors += warning_of_end(metrics["threshold"])
    several = not metrics.part("members") and len(metrics.get("sites", ())) > 1
    return [
        f"  threshold: at the sites it {errors}",
        *["  (the held-out EER of a round is the mean of the sites' EERs, each at its own threshold)"] * several,
    ]


def check(recipe: Recipe, method: Method) -> None:
    """Refuse settings of recognition, and a choice between start and result for one model per site."""
    check_keep(recipe, method)
    if recipe.evaluation.keep == "best" and method.prediction.personal:
        raise UserError(
            "recipe.evaluation.keep",
            f"best delivers an earlier round's model, and sites keep their own models of {method.name} of the last "
            "round only; set last",
        )
    if recipe.data.public is not None or recipe.training.pretrain is not None or recipe.evaluation.recognition:
        raise UserError(
            "recipe.method",
            f"{method.name} detects attacks; data.public, training.pretrain and "
            "evaluation.recognition are for recognition",
        )
    if recipe.data.benchmarks is not None:
        raise UserError(
            "recipe.data.benchmarks",
            f"are for recognition, and {method.name} detects attacks; use `fedvisage evaluate RUN --data SET`",
        )


def uploads(method: Method) -> Mapping[str, tuple[Upload, ...]]:
    """Return the fields of histograms, scatter, counts by attack type and own models."""
    fields: dict[str, tuple[Upload, ...]] = {call: (upload,) for call, upload in heldout.UPLOADS.items()}
    if method.members != "each" and not method.pooled:
        fields[heldout.SCATTER] = (*fields[heldout.SCATTER], *heldout.FOR_CURVES)
    return fields | ({heldout.PERSONAL: (heldout.personal_upload(method),)} if heldout.own_models(method) else {})


def choose_thresholds(server: Server, finished: Message) -> TrainingResult:
    """Choose thresholds by held-out scores, and request the scatter that adaptation treats as chance."""
    finished, kept = choose_kept(
        server, finished, lambda model: evaluation.heldout_table(collect_histograms(server, model), {})
    )
    histograms = collect_histograms(server, finished)
    thresholds = evaluation.choose_thresholds(server.method, server.recipe.evaluation.threshold, histograms)
    scatter, curves = evaluation.collect_scatter_and_curves(server, finished)
    scatter = {name: distance for name, distance in scatter.items() if name not in histograms or histograms[name].sum()}
    on_training = {}
    if heldout.counts_training(server.recipe):
        trained = collect_histograms(server, finished, heldout.TRAINING)
        on_training = evaluation.choose_thresholds(server.method, ON_TRAINING, trained)
    recipe = tree_of(server.recipe)
    saved = SavedModel(recipe, finished, thresholds, scatter, "pad", on_training=on_training, curves=curves)
    table = evaluation.heldout_table(histograms, thresholds)
    if heldout.own_models(server.method):
        evaluation.add_personal(server, finished, table)
    return TrainingResult(saved, server.round, table, histograms, kept=kept)


def evaluate(scorer: Scorer, trained: TrainingResult, data: RunData, out: Path) -> dict[str, Any]:
    """Score the target's data; without a target, only the sites' figures and the threshold are known."""
    figures: dict[str, Any] = {}
    if data.target is not None:
        figures = evaluate_saved(scorer, trained.saved, data.target, scorer.recipe.data.target_name, out)
        if scorer.recipe.evaluation.features:
            write_features(out, scorer, trained.saved.finished, data)
    elif "" in trained.saved.thresholds:  # one threshold for all, not one per member
        figures = evaluation.threshold_figures(trained.saved.thresholds[""])
    place = "sites_training" if scorer.recipe.evaluation.threshold == ON_TRAINING else "sites_heldout"
    figures |= evaluation.personal_figures(scorer.method, trained.heldout)
    return figures | {place: trained.heldout} | ({"kept": trained.kept} if trained.kept else {})


def evaluate_snapshot(scorer: Scorer, saved: SavedModel, data: RunData) -> dict[str, Any]:
    """Return the equal error rate and the area under the curve, as means over members if there are several."""
    if data.target is None:
        return {}
    figures = evaluation.evaluate_pad(scorer, saved, data.target, scorer.recipe.data.target_name).figures
    return {name: figures[name] for name in ("eer", "auc")}


def check_set(prepared: PreparedSet, recipe: Recipe, entry: str) -> None:
    """Refuse evaluation settings of recognition."""
    if recipe.evaluation.recognition is not None:
        raise UserError("--pairs", "this model detects attacks; leave --pairs out")


def evaluate_saved(
    scorer: Scorer, saved: SavedModel, view: View, name: str, out: Path | None, groups: Groups | None = None
) -> dict[str, Any]:
    """Score a view, and write one line per frame."""
    result = evaluation.evaluate_pad(scorer, saved, view, name)
    if out is not None:
        write_scores(out / SCORES, result.scores)
    if groups is None:
        return result.figures
    threshold, level = result.figures["threshold"], result.figures["level"]
    return {**result.figures, "by": evaluation.compare_attacks(result.scores, threshold, level, groups)}


def refuse_benchmarks(entries: Mapping[str, str], recipe: Recipe, cache: Path, say: Say) -> dict[str, Benchmark]:
    """Refuse benchmarks, which are sets of recognition."""
    raise UserError("--benchmark", "this model detects attacks; evaluate it on one set after another, with --data")


def evaluate_no_benchmarks(scorer: Scorer, saved: SavedModel, benchmarks: Mapping[str, Benchmark]) -> dict[str, Any]:
    """Return nothing, because no benchmark can be opened."""
    return {}


TASK = Task(
    name="pad",
    splits=("train", "heldout"),
    check=check,
    open=open_data,
    uploads=uploads,
    calls=heldout.calls,
    choose_thresholds=choose_thresholds,
    evaluate=evaluate,
    evaluate_snapshot=evaluate_snapshot,
    check_set=check_set,
    evaluate_saved=evaluate_saved,
    open_benchmarks=refuse_benchmarks,
    evaluate_benchmarks=evaluate_no_benchmarks,
    summarise=summarise,
)
