"""Several benchmarks of one model: each set is judged by the lists that lie beside it, one without any as a user is.

Lists of pairs give accuracies; where they are of groups of the set's people, as RFW's are, how far these lie apart.
Lists of templates are those of IJB-B and IJB-C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedvisage.data.batches import View
from fedvisage.data.beside import PAIRS, lists_beside
from fedvisage.data.crops import CropRecord
from fedvisage.data.templates import read_lists
from fedvisage.datasets.sources import resolve, without_part
from fedvisage.errors import RunFailed, UserError
from fedvisage.federation.members import members_of
from fedvisage.federation.wire.message import Message
from fedvisage.metrics.listed_pairs import on_listed_pairs, pairs_among
from fedvisage.metrics.similarity import labelled
from fedvisage.metrics.spread import spread_of
from fedvisage.metrics.threshold import Threshold
from fedvisage.recipe import Recipe
from fedvisage.tasks.checks import Checks
from fedvisage.tasks.crops import check_for_model
from fedvisage.tasks.opened import Benchmark, open_set
from fedvisage.tasks.overlap import USER, Places, check_apart, look_for_overlap
from fedvisage.tasks.recognition.benchmark import judge_generic, listed_figures
from fedvisage.tasks.recognition.heldout import has_directions
from fedvisage.tasks.recognition.rates import mean_of
from fedvisage.tasks.recognition.shares import share_of
from fedvisage.tasks.recognition.templates import are_templates, check_templates, judge_templates
from fedvisage.tasks.scoring import Scorer

Say = Callable[[str], None]
PLACE = "data.benchmarks."
ALL = "all"
"""The name of a list that has none."""


def open_benchmarks(entries: Mapping[str, str] | None, recipe: Recipe, cache: Path, say: Say) -> dict[str, Benchmark]:
    """Open further sets to judge a model on, and say first what is wrong with them and with their lists."""
    return {
        name: _opened(entry.strip(), f"{PLACE}{name}", recipe, cache, say)
        for name, entry in sorted((entries or {}).items())
    }


def _opened(entry: str, place: str, recipe: Recipe, cache: Path, say: Say) -> Benchmark:
    name, part = without_part(entry)
    found = open_set(name, place, recipe, cache, say)
    if found.rows.group is None:
        raise UserError(place, "is no identity set; make one with `fedvisage data import` of a dataset of people")
    view = share_of(View.of(found), part)
    if not len(view):
        raise UserError(place, "has no images")
    path = resolve(name, cache, workers=recipe.runtime.threads, say=say)
    one = Benchmark(entry, path, view, found.crop, found.digest + (f" {part}" if part else ""))
    if are_templates(view) and (lists := read_lists(path)).named:
        check_templates(view, lists, place)
    for listed in lists_beside(path, PAIRS).values():
        pairs_among(view, str(listed))
    return one


def check_unseen(
    benchmarks: Mapping[str, Benchmark],
    trained_on: Places,
    crops: Iterable[CropRecord],
    cache: Path,
    say: Say,
    checks: Checks,
) -> dict[str, Any]:
    """Refuse benchmarks that were cropped otherwise, or whose pictures are trained on; return what is in common."""
    found, known = {}, tuple(crops)
    for name, one in benchmarks.items():
        check_for_model(known, one.crop, f"{PLACE}{name}", checks.allow_mixed_crops)
        overlap = look_for_overlap({**trained_on, USER: (one.view,)}, cache, say).about(USER)
        try:
            lines = check_apart(overlap, checks.allow_overlap, name)
        except UserError as error:
            raise UserError(f"{PLACE}{name}", error.message) from None
        for line in lines:
            say(f"note: {line}")
        found[name] = overlap.as_json(checks.allow_overlap)
    return found


def judge_benchmarks(
    scorer: Scorer, finished: Message, benchmarks: Mapping[str, Benchmark], thresholds: Mapping[str, Threshold]
) -> dict[str, Any]:
    """Return what metrics.json says of each benchmark."""
    return {name: _judged(scorer, finished, one, thresholds) for name, one in sorted(benchmarks.items())}


def _judged(scorer: Scorer, finished: Message, one: Benchmark, thresholds: Mapping[str, Threshold]) -> dict[str, Any]:
    """Judge each member; of several, means stand beside the members' own figures."""
    figures: dict[str, Any] = {"images": len(one.view), "identities": len(one.view.identities)}
    pairs = lists_beside(one.path, PAIRS)
    lists = read_lists(one.path) if are_templates(one.view) else None
    if not pairs and not (lists and lists.named):
        return {**figures, "generic": judge_generic(scorer, finished, one.view, thresholds).figures}
    members = {}
    for name, member in sorted(members_of(finished).items()):
        scorer.load(member)
        if lists and lists.named:
            members[name] = judge_templates(scorer, one.view, lists, one.entry)
        else:
            members[name] = _on_lists(scorer, one.view, pairs)
    own = list(members.values())
    return {**figures, **_mean(own), **({"members": members} if len(own) > 1 else {})}


def _on_lists(scorer: Scorer, view: View, pairs: Mapping[str, Path]) -> dict[str, Any]:
    """Return accuracy and TAR on each list, and the spread over the lists that are of groups."""
    values = scorer.embeddings(view)
    if not has_directions(values):
        raise RunFailed("the model's features are zero or not finite: training diverged; lower the learning rate")
    faces = labelled(values.numpy(), np.unique(view.subjects, return_inverse=True)[1])
    found = {
        which or ALL: listed_figures(str(path), on_listed_pairs(faces, pairs_among(view, str(path))))
        for which, path in pairs.items()
    }
    of_groups = [found[which]["accuracy"] for which in np.unique(view.groups).tolist() if which in found]
    told = len(of_groups) > 1 and None not in of_groups
    return {"lists": found, **({"spread": spread_of(of_groups)} if told else {})}


def _mean(trees: list[Any]) -> Any:
    """Average the figures of members; what is counted is the same in all."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: _mean([tree[key] for tree in trees]) for key in first if all(key in tree for tree in trees)}
    if len(trees) == 1 or not any(isinstance(value, float) for value in trees):
        return first
    return mean_of(trees)
