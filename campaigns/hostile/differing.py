"""Two runs over the same data that differ: together they must not reveal what one site sent into a secure sum.

A case draws two runs: members, secure sums or none, settings, and the images of each site. The sites' memories decide
which sites take part. The check is an attack: it writes the equations of the server, with one unknown per upload, and
solves them for an upload of one site, or for the difference of two.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from campaigns.hostile.case import Case, Rejected, WronglyAccepted, pick
from tests.toy import recipe_of, tree

from fedvisage.federation.secure.memory import RunMemory
from fedvisage.federation.wire.schema import RefusedMessage
from fedvisage.recipe import Recipe

MEMBERS = ("A", "B", "C", "D")
IMAGES: Mapping[str, Sequence[int]] = {
    "A": range(100, 136),
    "B": range(200, 224),
    "C": range(300, 324),
    "D": range(400, 412),
}
CHANGES: Mapping[str, tuple[Any, ...]] = {
    "training.batch.default": (24, 12, 36),
    "training.batch.per_site": ({}, {"A": 2}, {"B": 12}),
    "training.local": ({"epochs": 1}, {"epochs": 2}, {"batches": 1}),
    "training.optimizer.lr": (0.01, 0.02),
    "training.optimizer.clip_norm": (0.0, 1.0),
    "training.augment.flip": (0.0, 0.5),
    "training.rounds": (1, 2),
    "method.weight": ("uniform", "examples"),
    "federation.secure.most_examples": (100_000, 24),
    "federation.deadline": (60.0, 600.0),
    "evaluation.every": (0, 1),
    "runtime.seed": (0, 1),
    "title": ("", "again"),
}
"""Keys with values, the usual one first."""

Unknown = tuple[str, tuple[int, ...], str]
"""An upload: its site, the images, and the site's computation."""


class Differing:
    """Pairs of runs at sites with memories."""

    def __init__(self, prepared: Path) -> None:
        """Name the sites' sets, which no case opens."""
        self.sets = {name: prepared / name for name in (*MEMBERS, "U")}

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Draw two runs; the second is mostly like the first."""
        changes = [{key: pick(draws, values) for key, values in CHANGES.items() if draws.random() < 0.1}]
        key = pick(draws, list(CHANGES))
        changes.append(changes[0] | ({key: pick(draws, CHANGES[key])} if draws.random() < 0.7 else {}))
        members = [list("ABC"), pick(draws, [list("ABC"), list("ABC"), list("ABC"), list("AB"), list("ABD"), ["C"]])]
        secure = [draws.random() < 0.9, draws.random() < 0.9 and len(members[1]) > 1]
        images: list[Mapping[str, Sequence[int]]] = [
            IMAGES,
            {name: change_images(draws, IMAGES[name]) for name in MEMBERS},
        ]
        if draws.random() < 0.3:
            for values in (changes, members, secure, images):
                values.reverse()
        runs = [self._recipe(*values) for values in zip(changes, members, secure, strict=True)]
        titles = [f"{''.join(names)}{' secure' * is_secure}" for names, is_secure in zip(members, secure, strict=True)]
        titles += [*sorted(changes[0].keys() ^ changes[1].keys()), key]
        return Case(titles, partial(_check, place, runs, images))

    def _recipe(self, changes: dict[str, Any], members: list[str], secure: bool) -> Recipe:
        values = {key: value[0] for key, value in CHANGES.items()} | changes
        sizes = values["training.batch.per_site"]
        values["training.batch.per_site"] = {name: size for name, size in sizes.items() if name in members}
        values["training.optimizer.clip_norm"] = values["training.optimizer.clip_norm"] or None
        values["data.sites"] = {name: str(self.sets[name]) for name in members}
        values["federation.secure.colluders"] = 0
        content = tree(self.sets, training__batch={}, training__augment={}, federation={})
        for key, value in values.items():
            if secure or not key.startswith("federation.secure"):
                section = content
                for name in key.split(".")[:-1]:
                    section = section.setdefault(name, {})
                section[key.split(".")[-1]] = value
        return recipe_of(content)


def change_images(draws: np.random.Generator, images: Sequence[int]) -> list[int]:
    """Return a site's images: mostly as they are, else some of them, with new ones, or others."""
    few, more = list(images)[: len(images) // 2], [*images, 900 + images[0]]
    others = [number + 1000 for number in images]
    return pick(draws, [list(images)] * 30 + [few, more, others])


def _check(place: Path, runs: Sequence[Recipe], images: Sequence[Mapping[str, Sequence[int]]]) -> None:
    """Collect the equations of both runs from the sites that take part, and solve them."""
    equations: list[dict[Unknown, float]] = []
    hidden: list[Unknown] = []
    refused = ""
    for number, (recipe, own) in enumerate(zip(runs, images, strict=True)):
        secure, uploads = recipe.federation.secure, dict[str, Unknown]()
        for name in sorted(recipe.data.sites):
            memory = RunMemory(place / name, recipe, f"run-{number}", np.array(own[name], np.uint64))
            try:
                memory.remember_use()
            except RefusedMessage as error:
                refused = str(error)
                continue
            uploads[name] = (name, tuple(own[name]), _computation(recipe, name, len(own[name])))
        if secure is None:
            equations += [{upload: 1.0} for upload in uploads.values()]
            continue
        survivors = list(uploads)
        for name in survivors if len(survivors) >= secure.sites_needed(len(recipe.data.sites)) else ():
            memory = RunMemory(place / name, recipe, f"run-{number}", np.array(own[name], np.uint64))
            try:
                memory.remember_survivors(1, survivors)
            except RefusedMessage as error:
                refused, uploads = str(error), {}
        if len(uploads) >= secure.sites_needed(len(recipe.data.sites)):
            is_weighted = getattr(recipe.method, "weight", "uniform") == "examples"
            weights = {name: min(len(own[name]), secure.most_examples) if is_weighted else 1 for name in uploads}
            total = sum(weights.values())
            equations.append({upload: weights[name] / total for name, upload in uploads.items()})
            hidden += uploads.values()
    if (site := solve_for_one(equations, hidden)) is not None:
        raise WronglyAccepted(f"both runs together reveal what site {site} sent")
    if refused:
        raise Rejected(refused)


def _computation(recipe: Recipe, site: str, images: int) -> str:
    """Return a site's computation in the first round, by its number of images; different texts are different uploads.

    A site with one batch of all its images does not notice their order, and so neither the seed nor a larger batch.
    """
    training = recipe.training
    size = min(training.batch.of(site), images)
    steps = training.local.batches or (training.local.epochs or 1) * -(-images // size)
    seed = recipe.runtime.seed if size < images or training.augment.flip else "any"
    return f"{size} {steps} {seed} {training.optimizer.lr} {training.optimizer.clip_norm} {training.augment.flip}"


def solve_for_one(equations: Sequence[Mapping[Unknown, float]], hidden: Sequence[Unknown]) -> str | None:
    """Return a site with an upload, or the difference of two, that follows from the equations."""
    columns = sorted({upload for equation in equations for upload in equation})
    matrix = np.array([[equation.get(upload, 0.0) for upload in columns] for equation in equations])
    single = {upload: np.array([float(column == upload) for column in columns]) for upload in columns}
    targets = [(upload[0], single[upload]) for upload in hidden]
    targets += [
        (one[0], single[one] - single[two])
        for one, two in itertools.combinations(columns, 2)
        if one[0] == two[0] and {one, two} & set(hidden)
    ]
    for site, target in targets:
        if np.linalg.matrix_rank(np.vstack([matrix, target])) == np.linalg.matrix_rank(matrix):
            return site
    return None
