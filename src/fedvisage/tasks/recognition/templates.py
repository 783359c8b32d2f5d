"""Judging a model on templates, as IJB-B and IJB-C ask: features portion by portion, and both readings of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.data.batches import View
from fedvisage.data.templates import COLUMNS, CONFIDENCE, MEDIA, TEMPLATE, Table, TemplateLists
from fedvisage.errors import RunFailed, UserError
from fedvisage.metrics.similarity import Faces, pair_similarity, templates, unit
from fedvisage.metrics.templates import CONSERVATIVE, PUBLISHED, READINGS, identified, verified
from fedvisage.recipe import Recognition
from fedvisage.tasks.recognition.heldout import has_directions
from fedvisage.tasks.recognition.rates import rates_of
from fedvisage.tasks.scoring import Scorer

PORTION = 8192
"""Images whose features are in memory together, but for a template that has more."""

Numbers = NDArray[np.int64]


def are_templates(view: View) -> bool:
    """Tell whether images say which template they belong to."""
    return all(name in view.columns for name in COLUMNS)


def check_templates(view: View, lists: TemplateLists, place: str) -> None:
    """Refuse images without a template or of no weight, and lists that are about other ones."""
    template, _, confidence = _columns(view, place)
    names, which = np.unique(template, return_inverse=True)
    weight = np.bincount(which, weights=confidence)
    if (weight <= 0).any():
        raise UserError(place, f"has a template, {names[np.argmin(weight)]}, of whose images a detector was not sure at"
                        " all; take it out of the set")  # fmt: skip
    for name, table in lists.named.items():
        if not _there(table, names, 1 + (table is lists.pairs)).any():
            raise UserError(place, f"the list {name} beside it names none of its {len(names)} templates; import the set"
                            " with its lists again")  # fmt: skip
    if lists.galleries and lists.probes is None:
        raise UserError(place, "has a gallery beside it and no list of probes; import the set with its lists again")


def judge_templates(scorer: Scorer, view: View, lists: TemplateLists, place: str) -> dict[str, Any]:
    """Return the figures of the weights that are loaded, in both readings."""
    settings = scorer.recipe.evaluation.people
    faces = template_faces(scorer, view, place)
    names = faces[CONSERVATIVE].identity
    figures: dict[str, Any] = {"templates": len(names), "flip": settings.flip}
    pairs = None
    if lists.pairs is not None:
        pairs = lists.pairs[_there(lists.pairs, names, 2)]
        figures |= {"pairs": len(pairs), "genuine_pairs": int(pairs[:, 2].sum()),
                    "pairs_left_out": len(lists.pairs) - len(pairs)}  # fmt: skip
    galleries = {name: table[_there(table, names, 1)] for name, table in lists.galleries.items()}
    probes = None if lists.probes is None else lists.probes[_there(lists.probes, names, 1)]
    if galleries and probes is not None and lists.probes is not None:
        missing = sum(len(table) - len(galleries[name]) for name, table in lists.galleries.items())
        figures |= {"galleries": {name: len(table) for name, table in galleries.items()}, "probes": len(probes),
                    "searches_left_out": missing + len(lists.probes) - len(probes)}  # fmt: skip
    readings = {}
    for reading in READINGS:
        tar = {} if pairs is None else _verified(faces[reading], pairs, settings, reading)
        tpir: Mapping[float, float] = {}
        rank: Mapping[int, float] = {}
        if galleries and probes is not None and all(map(len, galleries.values())) and len(probes):
            enrolled = [_of_people(faces[reading], table) for table in galleries.values()]
            asked = _of_people(faces[reading], probes)
            tpir, rank = identified(enrolled, asked, reading, settings.fpir)
        readings[reading] = {**rates_of(tar, tpir), "rank": {str(most): value for most, value in rank.items()}}
    return {**figures, "readings": readings}


def template_faces(scorer: Scorer, view: View, place: str) -> dict[str, Faces]:
    """Return the templates in each reading, labelled by their numbers."""
    template, media, confidence = _columns(view, place)
    order = np.argsort(template, kind="stable")
    found: dict[str, list[Faces]] = {reading: [] for reading in READINGS}
    for portion in _portions(template[order]):
        at = order[portion]
        values = scorer.embeddings(view.subset(at))
        if not has_directions(values):
            raise RunFailed("the model's features are zero or not finite: training diverged; lower the learning rate")
        features = np.asarray(values.numpy(), np.float32)
        whose = template[at], media[at]
        found[PUBLISHED].append(templates(features, *whose, weight=confidence[at].astype(np.float32)))
        found[CONSERVATIVE].append(templates(unit(features), *whose))
    return {reading: Faces(np.concatenate([one.features for one in parts]),
                           np.concatenate([one.identity for one in parts]))
            for reading, parts in found.items()}  # fmt: skip


def _portions(template: Numbers) -> list[slice]:
    """Cut sorted images into portions that end where a template does."""
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
        raise UserError(place, f"has a template, a medium or a confidence that is no number: {error}") from None
    if not np.isfinite(confidence).all() or (confidence < 0).any():
        raise UserError(place, "has a confidence below 0, or one that is no number; import the set again")
    return template, media, confidence


def _there(table: Table, names: Numbers, columns: int) -> NDArray[np.bool_]:
    """Tell which lines of a list name templates that there are."""
    whole: NDArray[np.bool_] = np.logical_and.reduce(np.isin(table[:, :columns], names), axis=1)
    return whole


def _verified(faces: Faces, pairs: Table, settings: Recognition, reading: str) -> dict[float, float]:
    places = [np.searchsorted(faces.identity, pairs[:, column]) for column in (0, 1)]
    similarity, same = pair_similarity(faces.features, places[0], places[1]), pairs[:, 2] == 1
    return verified(similarity, same, reading, settings.far)


def _of_people(faces: Faces, table: Table) -> Faces:
    """Return the templates of a list, labelled by their persons."""
    return Faces(faces.features[np.searchsorted(faces.identity, table[:, 0])], table[:, 1].astype(np.int64))
