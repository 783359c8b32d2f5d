"""Benchmarks of recognition: all pairs of an identity set, published lists of pairs, and templates.

A set is evaluated with the lists in its directory; a set without lists is evaluated like the target. Lists of pairs
give accuracies; lists for groups of people, such as RFW's, also give the spread between groups. Lists of templates are
those of IJB-B and IJB-C.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.progress import Say
from fedvisage.data.batches import View
from fedvisage.data.crops import CropRecord
from fedvisage.data.lists import (
    COLUMNS,
    CONFIDENCE,
    MEDIA,
    PAIR_LISTS,
    TEMPLATE,
    ListedPairs,
    Table,
    TemplateLists,
    listed_name,
    lists_beside,
    read_lists,
    read_pairs,
)
from fedvisage.data.overlap import TARGET, Places, find_overlap, refuse_overlap
from fedvisage.datasets.sources import Part, resolve, without_part
from fedvisage.federation.server import separate_models
from fedvisage.federation.wire.message import Message
from fedvisage.metrics import generic
from fedvisage.metrics.generic import tar_by_impostors, within_counts
from fedvisage.metrics.groups import Groups, compare_groups, pair_rates
from fedvisage.metrics.identification import CONSERVATIVE, PUBLISHED, READINGS, ijb_identification, ijb_verification
from fedvisage.metrics.scores import spread_of
from fedvisage.metrics.similarity import (
    Faces,
    Features,
    combine_templates,
    join_faces,
    label_features,
    measurable_rates,
    normalise,
    pair_similarity,
)
from fedvisage.metrics.threshold import Histogram, Threshold
from fedvisage.metrics.verification import FARS, FoldAccuracies, accuracy_by_fold, verify_pairs
from fedvisage.recipe import Recipe
from fedvisage.tasks.checks import Checks
from fedvisage.tasks.opened import Benchmark, check_for_model, open_set
from fedvisage.tasks.recognition.heldout import has_directions, mean_of, rates_of
from fedvisage.tasks.scoring import Scorer

# Published lists of pairs, with LFW's protocol: accuracy on the list's folds, and TAR@FAR.


@dataclass(frozen=True, eq=False)
class ListedImages:
    """The pairs of a list with available images: indices of the images, labels of same-person pairs, and folds."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    same: NDArray[np.bool_]
    fold: NDArray[np.int64]
    left_out: int

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.same)


@dataclass(frozen=True, eq=False)
class PairResults:
    """A model's results on the pairs, without folds if fewer than two have pairs or if all pairs are of one kind."""

    pairs: ListedImages
    similarity: Features
    folds: FoldAccuracies | None
    tar: dict[float, float]


def pairs_among(view: View, path: str) -> ListedImages:
    """Read a list of pairs and look up its images in a view."""
    names = {listed_name(str(item)): place for place, item in enumerate(view.items)}
    identity = np.unique(view.subjects, return_inverse=True)[1].astype(np.int64)
    return find_pairs(read_pairs(Path(path)), names, identity, path)


def find_pairs(listed: ListedPairs, images: Mapping[str, int], identity: NDArray[np.int64], place: str) -> ListedImages:
    """Look up the images of a list; omit pairs with missing images and count them.

    A list whose labels contradict the identities belongs to other images and raises an error.
    """
    first, second = (np.array([images.get(name, -1) for name in names]) for names in (listed.first, listed.second))
    available = (first >= 0) & (second >= 0)
    if not available.any():
        raise UserError(
            place,
            f"none of its {len(listed)} pairs, such as {listed.first[0]} and {listed.second[0]}, is among the "
            "images; give the set that the list belongs to",
        )
    first, second, same = first[available], second[available], listed.same[available]
    wrong = np.flatnonzero((identity[first] == identity[second]) != same)
    if len(wrong):
        at = int(np.flatnonzero(available)[wrong[0]])
        contradiction = "one person, and the set two" if listed.same[at] else "two people, and the set one"
        raise UserError(place, f"says that {listed.first[at]} and {listed.second[at]} are {contradiction}")
    return ListedImages(first, second, same, listed.fold[available], int((~available).sum()))


def compare_pairs(faces: Faces, pairs: ListedImages) -> PairResults:
    """Compare the faces of each pair."""
    similarity = pair_similarity(faces.features, pairs.first, pairs.second)
    both = all(len(np.unique(pairs.same[pairs.fold != fold])) == 2 for fold in np.unique(pairs.fold))
    enough = both and len(np.unique(pairs.fold)) > 1
    folds = accuracy_by_fold(similarity, pairs.same, pairs.fold) if enough else None
    fars = measurable_rates(FARS, int((~pairs.same).sum()))
    tar = verify_pairs(similarity, pairs.same, fars).tar if fars and pairs.same.any() else {}
    return PairResults(pairs, similarity, folds, tar)


# The generic benchmark: evaluation of a finished model on an identity set, as a whole and by group.

LEAST_GROUP = 2
"""The least number of people in a group with its own metrics."""


@dataclass(frozen=True, eq=False)
class GenericResult:
    """The metrics of the generic benchmark, its fixed pairs with image names, and counts of all pairs by group."""

    figures: dict[str, Any]
    pairs: generic.FixedPairs
    items: list[str]
    counts: dict[str, Histogram]
    listed: PairResults | None = None
    by: dict[str, Any] | None = None
    """The error rates of decisions by the groups of a column."""


def evaluate_generic(
    scorer: Scorer,
    finished: Message,
    view: View,
    thresholds: Mapping[str, Threshold],
    groups: Groups | None = None,
) -> GenericResult:
    """Evaluate the generic model on the target's identity set; with several members, keep the first one's pairs."""
    results, models = [], dict(sorted(separate_models(scorer.method, finished).items()))
    for name, model in models.items():
        scorer.load(model)
        faces = label_features(_embeddings(scorer, view), np.unique(view.subjects, return_inverse=True)[1])
        results.append(_evaluate_faces(faces, view, thresholds.get(name), scorer.recipe, groups))
    if len(results) == 1:
        return results[0]
    figures = {
        **results[0].figures,
        "members": {name: result.figures for name, result in zip(models, results, strict=True)},
    }
    for rate in [name for name in figures if "@" in name]:
        figures[rate] = mean_of([result.figures[rate] for result in results])
    return GenericResult(figures, results[0].pairs, results[0].items, results[0].counts)


def _evaluate_faces(
    faces: Faces, view: View, threshold: Threshold | None, recipe: Recipe, groups: Groups | None
) -> GenericResult:
    settings = recipe.evaluation.people
    probe = np.concatenate([part.set.rows.split[part.indices] for part in view.slices]) == "test"
    verified = generic.verification(faces, settings.far)
    identified = generic.identification(faces, probe, settings.fpir, settings.counting)
    pairs = generic.on_fixed_pairs(faces, settings.folds_of)
    pair_results = compare_pairs(faces, pairs_among(view, settings.pairs)) if settings.pairs else None
    # A group of one person has no impostor pairs and is left out.
    counts, by_group = {"": within_counts(faces)}, {}
    for group in np.unique(view.groups).tolist():
        members = faces.take(view.groups == group)
        if len(np.unique(members.identity)) >= LEAST_GROUP:
            counts[group] = within_counts(members)
            group_rates = generic.verification(members, ())
            folds = generic.on_fixed_pairs(members, settings.folds_of).folds  # RFW reports these for each group
            by_group[group] = {
                **rates_of(group_rates.tar if group_rates else {}),
                "accuracy": folds.mean if folds else None,
                "identities": len(np.unique(members.identity)),
                "images": len(members),
                **_decision_errors(counts[group], threshold),
            }
    figures: dict[str, Any] = {
        **rates_of(verified.tar if verified else {}, identified),
        "accuracy": pairs.folds.mean if pairs.folds else None,
        "accuracy_std": pairs.folds.std if pairs.folds else None,
        "identities": len(np.unique(faces.identity)),
        "images": len(faces),
        "genuine_pairs": int(counts[""][1].sum()),
        "impostor_pairs": int(counts[""][0].sum()),
        "identities_without_pairs": int((np.unique(faces.identity, return_counts=True)[1] == 1).sum()),
        "identities_not_searched": len(np.setdiff1d(faces.identity, generic.searchable_identities(faces, probe))),
        "decision": _decision_errors(counts[""], threshold),
        "groups": by_group,
    }
    if by_group and len(np.unique(view.groups)) > 1:
        inside = [counts[group] for group in by_group]
        kinds = tar_by_impostors(counts[""], inside, sorted(verified.tar if verified else ()))
        figures["impostors"] = {kind: rates_of(rates) for kind, rates in kinds.items()}
    if pair_results is not None:
        figures["listed_pairs"] = listed_figures(str(settings.pairs), pair_results)
    by = None
    if groups is not None and threshold is not None:
        at = threshold.value
        by = compare_groups(groups, lambda mask, rng: pair_rates(faces.take(mask), at, rng))
    return GenericResult(figures, pairs, view.items.tolist(), counts, pair_results, by)


def _embeddings(scorer: Scorer, view: View) -> Features:
    """Return the features of a view's images; raise an error for features of a diverged training."""
    features = scorer.embeddings(view)
    if not has_directions(features):
        raise RunFailed("the model's features are zero or not finite: training diverged; lower the learning rate")
    return np.asarray(features.numpy(), np.float32)


def listed_figures(path: str, listed: PairResults) -> dict[str, Any]:
    """Return the name of a list of pairs, the numbers of pairs, and the metrics."""
    return {
        "list": Path(path).name,
        "pairs": len(listed.pairs),
        "left_out": listed.pairs.left_out,
        "folds": len(listed.folds.accuracy) if listed.folds else 0,
        "accuracy": listed.folds.mean if listed.folds else None,
        "accuracy_std": listed.folds.std if listed.folds else None,
        **rates_of(listed.tar),
    }


def _decision_errors(counts: Histogram, threshold: Threshold | None) -> dict[str, float | None]:
    """Return the error rates of decisions at the sites' threshold, which is an edge of the bins."""
    if threshold is None:
        return {"fmr": None, "fnmr": None}
    edge = round((threshold.value + 1) * counts.shape[1] / 2)
    impostor, genuine = (row.sum() for row in counts)
    return {
        "fmr": float(counts[0][edge:].sum() / impostor) if impostor else None,
        "fnmr": float(counts[1][:edge].sum() / genuine) if genuine else None,
    }


def share_of(view: View, part: Part | None) -> View:
    """Return the images of a share of a set's people, so that one set can serve several sites.

    The whole set decides on the people in a share, not the view's split.
    """
    if part is None:
        return view
    everybody, subjects = view.coded("subject")
    share = np.arange(len(everybody)) % part.of + 1
    in_share = (share >= part.number) & (share <= part.last)
    return view.subset(np.flatnonzero(in_share[subjects]))


# Evaluation on templates, with the protocols of IJB-B and IJB-C, in two readings.

PORTION = 8192
"""The number of images whose features are in memory together, unless one template has more."""

Numbers = NDArray[np.int64]


def are_templates(view: View) -> bool:
    """Return whether images are assigned to templates."""
    return all(name in view.columns for name in COLUMNS)


def check_templates(view: View, lists: TemplateLists, place: str) -> None:
    """Refuse images without a template, templates of zero weight, and lists of other templates."""
    template, _, confidence = _columns(view, place)
    names, index = np.unique(template, return_inverse=True)
    weight = np.bincount(index, weights=confidence)
    if (weight <= 0).any():
        raise UserError(
            place,
            f"has a template, {names[np.argmin(weight)]}, whose images all have a detector score of 0; remove it "
            "from the set",
        )
    for name, table in lists.tables.items():
        if not _has_templates(table, names, 1 + (table is lists.pairs)).any():
            raise UserError(
                place,
                f"the list {name} beside it does not name any of its {len(names)} templates; import the set with its "
                "lists again",
            )
    if lists.galleries and lists.probes is None:
        raise UserError(place, "has a gallery beside it but no list of probes; import the set with its lists again")


def evaluate_templates(scorer: Scorer, view: View, lists: TemplateLists, place: str) -> dict[str, Any]:
    """Return the metrics of the loaded weights in both readings."""
    settings = scorer.recipe.evaluation.people
    faces = template_faces(scorer, view, place)
    names = faces[CONSERVATIVE].identity
    figures: dict[str, Any] = {"templates": len(names), "flip": settings.flip}
    # Lists may name templates that the set lacks: such pairs and searches are left out and counted.
    pairs = None
    if lists.pairs is not None:
        pairs = lists.pairs[_has_templates(lists.pairs, names, 2)]
        figures |= {
            "pairs": len(pairs),
            "genuine_pairs": int(pairs[:, 2].sum()),
            "pairs_left_out": len(lists.pairs) - len(pairs),
        }
    galleries = {name: table[_has_templates(table, names, 1)] for name, table in lists.galleries.items()}
    probes = None if lists.probes is None else lists.probes[_has_templates(lists.probes, names, 1)]
    if galleries and probes is not None and lists.probes is not None:
        missing = sum(len(table) - len(galleries[name]) for name, table in lists.galleries.items())
        figures |= {
            "galleries": {name: len(table) for name, table in galleries.items()},
            "probes": len(probes),
            "searches_left_out": missing + len(lists.probes) - len(probes),
        }
    readings = {}
    for reading in READINGS:
        tar: Mapping[float, float] = {}
        if pairs is not None:
            first, second = (np.searchsorted(names, pairs[:, column]) for column in (0, 1))
            similarity = pair_similarity(faces[reading].features, first, second)
            tar = ijb_verification(similarity, pairs[:, 2] == 1, reading, settings.far)
        tpir: Mapping[float, float] = {}
        rank: Mapping[int, float] = {}
        if galleries and probes is not None and all(map(len, galleries.values())) and len(probes):
            enrolled = [_of_people(faces[reading], table) for table in galleries.values()]
            probe_faces = _of_people(faces[reading], probes)
            tpir, rank = ijb_identification(enrolled, probe_faces, reading, settings.fpir)
        readings[reading] = rates_of(tar, tpir) | {f"rank@{depth}": value for depth, value in rank.items()}
    return {**figures, "readings": readings}


def template_faces(scorer: Scorer, view: View, place: str) -> dict[str, Faces]:
    """Return the templates in each reading, labelled with their numbers."""
    template, media, confidence = _columns(view, place)
    order = np.argsort(template, kind="stable")
    parts_by_reading: dict[str, list[Faces]] = {reading: [] for reading in READINGS}
    for portion in _portions(template[order]):
        at = order[portion]
        features = _embeddings(scorer, view.subset(at))
        labels = template[at], media[at]
        parts_by_reading[PUBLISHED].append(
            combine_templates(features, *labels, weight=confidence[at].astype(np.float32))
        )
        parts_by_reading[CONSERVATIVE].append(combine_templates(normalise(features), *labels))
    return {reading: join_faces(parts) for reading, parts in parts_by_reading.items()}


def _portions(template: Numbers) -> list[slice]:
    """Divide sorted images into portions that end at the end of a template."""
    cuts = [0]
    for begin in np.flatnonzero(np.diff(template)).tolist():
        if begin + 1 - cuts[-1] >= PORTION:
            cuts.append(begin + 1)
    return [slice(begin, end) for begin, end in zip(cuts, [*cuts[1:], len(template)], strict=True)]


def _columns(view: View, place: str) -> tuple[Numbers, Numbers, NDArray[np.float64]]:
    try:
        template, media = (view.column(name).astype(np.int64) for name in (TEMPLATE, MEDIA))
        confidence = view.column(CONFIDENCE).astype(np.float64)
    except ValueError as error:
        raise UserError(place, f"has a template, medium or confidence that is not a number: {error}") from None
    if not np.isfinite(confidence).all() or (confidence < 0).any():
        raise UserError(place, "has a confidence that is negative, NaN or infinite; import the set again")
    return template, media, confidence


def _has_templates(table: Table, names: Numbers, columns: int) -> NDArray[np.bool_]:
    """Return a mask of the list's lines whose templates all exist."""
    existing: NDArray[np.bool_] = np.logical_and.reduce(np.isin(table[:, :columns], names), axis=1)
    return existing


def _of_people(faces: Faces, table: Table) -> Faces:
    """Return the templates of a list, labelled with their people."""
    return Faces(faces.features[np.searchsorted(faces.identity, table[:, 0])], table[:, 1].astype(np.int64))


PLACE = "data.benchmarks."
ALL = "all"
"""The name of an unnamed list."""


def open_benchmarks(entries: Mapping[str, str] | None, recipe: Recipe, cache: Path, say: Say) -> dict[str, Benchmark]:
    """Open further sets for the evaluation of a model, and check them and their lists."""
    return {
        name: _open_benchmark(entry.strip(), f"{PLACE}{name}", recipe, cache, say)
        for name, entry in sorted((entries or {}).items())
    }


def _open_benchmark(entry: str, place: str, recipe: Recipe, cache: Path, say: Say) -> Benchmark:
    name, part = without_part(entry)
    prepared = open_set(name, place, recipe, cache, say)
    if prepared.rows.group is None:
        raise UserError(place, "is not an identity set; make one with `fedvisage data import` of a dataset of people")
    view = share_of(View.of(prepared), part)
    if not len(view):
        raise UserError(place, "has no images")
    path = resolve(name, cache, workers=recipe.runtime.threads, say=say)
    benchmark = Benchmark(entry, path, view, prepared.crop, prepared.digest + (f" {part}" if part else ""))
    if are_templates(view) and (lists := read_lists(path)).tables:
        check_templates(view, lists, place)
    for listed in lists_beside(path, PAIR_LISTS).values():
        pairs_among(view, str(listed))
    return benchmark


def check_unseen(
    benchmarks: Mapping[str, Benchmark],
    trained_on: Places,
    crops: Iterable[CropRecord],
    cache: Path,
    say: Say,
    checks: Checks,
) -> dict[str, Any]:
    """Refuse benchmarks with other crops than the training data or with its images; return the overlap of each."""
    overlaps, records = {}, tuple(crops)
    for name, benchmark in benchmarks.items():
        check_for_model(records, benchmark.crop, f"{PLACE}{name}", checks.allow_mixed_crops)
        overlap = find_overlap({**trained_on, TARGET: (benchmark.view,)}, cache, say).about(TARGET)
        try:
            lines = refuse_overlap(overlap, checks.allow_overlap, name)
        except UserError as error:
            raise UserError(f"{PLACE}{name}", error.message) from None
        for line in lines:
            say(f"note: {line}")
        overlaps[name] = overlap.as_json(checks.allow_overlap)
    return overlaps


def evaluate_benchmarks(
    scorer: Scorer, finished: Message, benchmarks: Mapping[str, Benchmark], thresholds: Mapping[str, Threshold]
) -> dict[str, Any]:
    """Return the metrics of each benchmark."""
    return {
        name: _evaluate_benchmark(scorer, finished, benchmark, thresholds)
        for name, benchmark in sorted(benchmarks.items())
    }


def _evaluate_benchmark(
    scorer: Scorer, finished: Message, benchmark: Benchmark, thresholds: Mapping[str, Threshold]
) -> dict[str, Any]:
    """Evaluate each member; with several members, return the means and each member's own metrics."""
    figures: dict[str, Any] = {"images": len(benchmark.view), "identities": len(benchmark.view.identities)}
    pairs = lists_beside(benchmark.path, PAIR_LISTS)
    lists = read_lists(benchmark.path) if are_templates(benchmark.view) else None
    if not pairs and not (lists and lists.tables):
        return {**figures, "generic": evaluate_generic(scorer, finished, benchmark.view, thresholds).figures}
    members = {}
    for name, member in sorted(separate_models(scorer.method, finished).items()):
        scorer.load(member)
        if lists and lists.tables:
            members[name] = evaluate_templates(scorer, benchmark.view, lists, benchmark.entry)
        else:
            members[name] = _on_lists(scorer, benchmark.view, pairs)
    rows = list(members.values())
    return {**figures, **_mean(rows), **({"members": members} if len(rows) > 1 else {})}


def _on_lists(scorer: Scorer, view: View, pairs: Mapping[str, Path]) -> dict[str, Any]:
    """Return accuracy and TAR on each list, and the spread over the lists of groups."""
    faces = label_features(_embeddings(scorer, view), np.unique(view.subjects, return_inverse=True)[1])
    figures = {
        list_name or ALL: listed_figures(str(path), compare_pairs(faces, pairs_among(view, str(path))))
        for list_name, path in pairs.items()
    }
    of_groups = [
        figures[list_name]["accuracy"] for list_name in np.unique(view.groups).tolist() if list_name in figures
    ]
    complete = len(of_groups) > 1 and None not in of_groups
    return {"lists": figures, **({"spread": spread_of(of_groups)} if complete else {})}


def _mean(trees: list[Any]) -> Any:
    """Average the metrics of members; counts are the same in all of them."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: _mean([tree[key] for tree in trees]) for key in first if all(key in tree for tree in trees)}
    if len(trees) == 1 or not any(isinstance(value, float) for value in trees):
        return first
    return mean_of(trees)
