"""Judging a finished run's model again: on other data, or as another method judges the same members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fedvisage import recipe as recipes
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import select, without_selection
from fedvisage.datasets.sources import resolve, without_part
from fedvisage.errors import UserError
from fedvisage.files import write_atomically
from fedvisage.methods import find, options
from fedvisage.metrics.scores import write_scores
from fedvisage.nn.precision import choose
from fedvisage.recipe import Recipe
from fedvisage.tasks import model
from fedvisage.tasks.pad import judge as evaluation
from fedvisage.tasks.recognition import judge as recognition
from fedvisage.tasks.recognition.data import share_of
from fedvisage.tasks.scoring import Scorer


def open_model(
    directory: Path, adapt: str | None = None, pairs: Path | None = None
) -> tuple[Recipe, model.SavedModel, Scorer]:
    """Read a finished model and build its scorer, without touching any training data."""
    saved = model.load(directory)
    # Where a model was trained does not matter for using it.
    tree = {**saved.recipe, "runtime": {**saved.recipe["runtime"], "device": "auto"}}
    if adapt is not None:
        tree["evaluation"] = {**saved.recipe["evaluation"], "adapt": adapt}
    if pairs is not None and saved.task != "recognition":
        raise UserError("--pairs", "this model detects attacks; leave --pairs out")
    if pairs is not None:
        settings = saved.recipe["evaluation"].get("recognition") or {}
        tree["evaluation"] = {**tree["evaluation"], "recognition": {**settings, "pairs": str(pairs)}}
    recipe = recipes.validate(tree, options())
    torch.set_num_threads(recipe.runtime.threads)
    compute = choose(recipe.runtime.device, recipe.runtime.precision)
    return recipe, saved, Scorer(find(recipe.method.name), recipe, compute)


def evaluate_run(
    run: Path,
    data: str | None,
    out: Path | None,
    cache: Path,
    console: Console,
    *,
    adapt: str | None,
    as_json: bool,
    pairs: Path | None = None,
) -> dict[str, Any]:
    """Judge a run's model on a set, print the figures, and write them with the scores when asked to."""
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(str(out), "is not empty; give a new directory, so that no result is written over")
    recipe, saved, scorer = open_model(run, adapt, pairs)
    entry = data or recipe.data.user
    if entry is None:
        raise UserError("--data", "the run has no user; name a prepared set")
    name, part = without_part(entry)
    source, meant = without_selection(name)
    found = PreparedSet.open(resolve(source, cache, workers=recipe.runtime.threads))
    if found.size != recipe.input.size:
        raise UserError(entry, f"images are {found.size}×{found.size}, the model wants {recipe.input.size}")
    if saved.task == "recognition" and found.rows.group is None:
        raise UserError(entry, "is no identity set, and this model recognises people")
    if saved.task == "recognition" and recipe.evaluation.adapt is not None:
        raise UserError("--adapt", "is for attack detection; leave it out")
    view = View.of(found, None if data or recipe.data.user_split == "all" else recipe.data.user_split)
    view = select(share_of(view, part), meant, entry)
    figures = {"method": recipe.method.name, "user": found.name, "seed": recipe.runtime.seed}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    if saved.task == "recognition":
        figures |= {"task": saved.task, **recognition.threshold_figures(recipe, saved.thresholds)}
        figures |= recognition.judge(out, scorer, saved.finished, view, saved.thresholds)
    else:
        judged = evaluation.judge(scorer, saved, view, found.name)
        figures |= judged.figures
        if out is not None:
            write_scores(out / "scores.csv", judged.scores)
    if out is not None:
        write_atomically(out / "metrics.json", (json.dumps(figures, indent=2, ensure_ascii=False) + "\n").encode())
    if as_json:
        print(json.dumps(figures, indent=2, ensure_ascii=False))
    else:
        console.print(summary(figures), highlight=False, markup=False, soft_wrap=True)
    return figures


def summary(figures: dict[str, Any]) -> str:
    """Return the headline figures as a few lines."""
    if figures.get("task") == "recognition":
        return "\n".join(recognition_lines(figures))
    lines = [
        f"{figures['method']} at user {figures['user']} ({figures['level']} level, threshold "
        f"{figures['threshold']:.3f} by rule {figures['threshold_rule']})"
    ]
    for level in ("frame", "video"):
        found = figures if level == figures["level"] else figures[level]
        rates = [f"{name.upper():6}{_percent(found[name])}" for name in ("hter", "eer", "auc", "acer")]
        lines.append(f"  {level:6}" + "  ".join(rates) + f"  TPR@FPR=1% {_percent(found['tpr_at_fpr_1pct'])}")
    species = "  ".join(f"{name} {_percent(value)}" for name, value in figures["apcer"].items())
    lines.append(f"  APCER {species}  BPCER {_percent(figures['bpcer'])}")
    lines += [f"  adaptation of {name}: {_adaptation(found)}" for name, found in figures.get("adaptation", {}).items()]
    return "\n".join(lines)


def recognition_lines(figures: dict[str, Any]) -> list[str]:
    """Return the headline figures of a recognition model."""
    generic, personal = figures.get("generic") or {}, figures.get("personalised") or {}
    lines = [f"{figures['method']} on benchmark {figures['user']}"]
    if figures.get("threshold") is not None:
        lines[0] += f" (threshold {figures['threshold']:.4f} by rule {figures['threshold_rule']})"
    for name, found in (("generic", generic), (f"personal, {personal.get('model')} model", personal)):
        for kind, title in (("tar_at_far", "TAR@FAR"), ("tpir_at_fpir", "TPIR@FPIR")):
            rates = [
                f"{rate} {_percent(value)}" for rate, value in (found.get(kind) or {}).items() if value is not None
            ]
            lines += [f"  {name}: {title} {'  '.join(rates)}"] if rates else []
    if generic.get("accuracy_on_ten_folds") is not None:
        lines.append(f"  ten folds: {_percent(generic['accuracy_on_ten_folds'])}")
    if (listed := generic.get("listed_pairs")) is not None:
        said = f"{listed['pairs']} pairs of {listed['list']} ({listed['left_out']} left out: no such image)"
        lines.append(f"  {said}: {_percent(listed['accuracy'])} on {listed['folds']} folds")
    return lines


def _adaptation(found: dict[str, Any]) -> str:
    """Say what became of an adaptation, in images."""
    said = [f"{found['adapted']} images adapted to"]
    said += [f"{count} skipped ({reason})" for reason, count in found["skipped"].items()]
    said += [f"{count} taken back ({reason})" for reason, count in found["taken_back"].items()]
    return ", ".join(said)


def _percent(value: float | None) -> str:
    return "   –  " if value is None else f"{100 * value:6.2f} %"
