"""A look at the sites' data before training (``evaluation.shortcuts``): which image properties separate the classes.

Each site measures its training images by the rule of ``data show --shortcuts`` and answers yes or no per property. A
site with few people does not answer. Secure aggregation sums the answers, also in runs that train without it, so that
the server learns how many sites said yes, but not which ones. docs/decisions/0050-look-at-data.md gives the reasons.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say, format_count
from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.datasets.show import LEAST, MOST, WARN, auc_of, measure_cues
from fedvisage.faces.cues import NAMES
from fedvisage.federation.method import BEFORE_TRAINING, Call, Method
from fedvisage.federation.secure.calls import layout_of, threshold_of, with_secure_sum
from fedvisage.federation.secure.total import TooFewSites, sum_uploads
from fedvisage.federation.server import Server
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message, under
from fedvisage.federation.wire.schema import RefusedMessage, Schema, Upload, schema_of
from fedvisage.metrics.operating_point import LEAST_SITES
from fedvisage.recipe import Recipe

CALL = "shortcuts"
SEPARATES = Upload("separates", "masked", shape=(len(NAMES),), dtype="int64")
"""Per property 1 if it alone separates the site's classes, else 0; it leaves the site in a sum only."""
LEAST_PEOPLE = 10
"""Number of people per class that a site needs for an answer."""


def check(recipe: Recipe, method: Method) -> None:
    """Refuse the look for runs without classes, or without enough sites to hide a single one."""
    if not recipe.evaluation.shortcuts:
        return
    sites, fault = len(recipe.data.sites), ""
    if method.task != "pad":
        fault = f"is for attack detection, and {method.name} recognises people; leave it out"
    elif method.pooled:
        fault = f"counts sites, and {method.name} merges all sites into one; leave it out"
    elif sites < LEAST_SITES:
        fault = f"needs {LEAST_SITES} sites, got {format_count(sites, 'site')}: a sum of fewer reveals single answers; "
        fault += "leave it out, and use `fedvisage data show SET --shortcuts` at each site"
    if fault:
        raise UserError("recipe.evaluation.shortcuts", fault)


# At a site.


def calls(recipe: Recipe) -> dict[str, Call]:
    """Return the calls of the sum if the recipe asks for the look."""
    if not recipe.evaluation.shortcuts:
        return {}
    plain = Call(answer, (SEPARATES,), first_round=BEFORE_TRAINING, last_round=BEFORE_TRAINING)
    return with_secure_sum({CALL: plain}, _schema(recipe), recipe, CALL)


def answer(site: Site, message: Message) -> Message:
    """Return a site's answer, or refuse if it has too few people or images for one."""
    for label in (1, 0):
        of_class = site.data.labels == label
        if len(np.unique(site.data.subjects[of_class])) < LEAST_PEOPLE or int(of_class.sum()) < LEAST:
            raise RefusedMessage(CALL, f"this site has fewer than {LEAST_PEOPLE} people or {LEAST} images of a class")
    return {SEPARATES.name: torch.from_numpy(separating_properties(site.data).astype(np.int64))}


def separating_properties(view: View) -> NDArray[np.bool_]:
    """Return for each property of ``NAMES`` whether it alone separates bona fide images from attacks."""
    tables = []
    for label in (1, 0):
        positions = np.flatnonzero(view.labels == label)
        # Always the same images, so that the answer of a site does not depend on the run.
        drawn = numpy_rng(0, CALL, label).permutation(len(positions))[:MOST]
        chosen = view.subset(positions[np.sort(drawn)])
        tables.append(np.concatenate([measure_cues(part.set, part.indices) for part in chosen.slices]))
    is_live = np.arange(sum(map(len, tables))) < len(tables[0])
    aucs = np.array([auc_of(values, is_live) for values in np.concatenate(tables).T])
    separates: NDArray[np.bool_] = np.maximum(aucs, 1 - aucs) >= WARN
    return separates


def _schema(recipe: Recipe) -> Schema:
    return schema_of((SEPARATES,), recipe, nn.ModuleDict())


# At the server.


def ask_sites(server: Server, say: Say) -> None:
    """Sum the sites' answers before training, keep the sums for a resumed run, and report them."""
    if not server.recipe.evaluation.shortcuts:
        return
    server.once(CALL, lambda: _sum_answers(server, say))
    for line in lines(figures_of(server)):
        say(line)


def _sum_answers(server: Server, say: Say) -> Message:
    """Return the number of sites that answered, and per property the number that said yes; zeros without a sum."""
    exchange, recipe = server.exchange, server.recipe
    exchange.address_all_sites(BEFORE_TRAINING)
    layout, sites, separates = layout_of(_schema(recipe)), 0, torch.zeros(len(NAMES), dtype=torch.int64)
    try:
        total = sum_uploads(exchange, {}, layout, threshold_of(recipe, BEFORE_TRAINING), CALL)
        sites = len(total.replied)
        separates = (total.value[SEPARATES.name] * sites).round().long()
        if not bool(((separates >= 0) & (separates <= sites)).all()):
            raise TooFewSites("a site sent numbers other than 0 and 1")
    except TooFewSites as error:
        say(f"shortcuts: no sum: {error}{exchange.record.reasons()}")
        sites, separates = 0, torch.zeros_like(separates)
    return {"asked": torch.tensor(len(exchange.present)), "sites": torch.tensor(sites), SEPARATES.name: separates}


def figures_of(server: Server) -> dict[str, Any]:
    """Return the sums for ``metrics.json``; without a sum, only the number of sites that were asked."""
    kept = under(f"once/{CALL}/", server.kept)
    if not kept:
        return {}
    counts = dict(zip(NAMES, kept[SEPARATES.name].tolist(), strict=True))
    asked, sites = int(kept["asked"]), int(kept["sites"])
    return {"asked": asked, "sites": sites, **({SEPARATES.name: counts} if sites else {})}


def lines(figures: dict[str, Any]) -> list[str]:
    """Return a line per property that separates the classes at a site, the most frequent first."""
    asked, sites = figures.get("asked", 0), figures.get("sites", 0)
    if not sites:
        return []
    separating = sorted((-count, name) for name, count in figures[SEPARATES.name].items() if count)
    shown = [f"{name} separates the classes at {-count} of {sites} sites" for count, name in separating]
    shown = shown or [f"no property separates the classes at any of {sites} sites"]
    return shown + [f"{format_count(asked - sites, 'site')} did not answer"] * (asked > sites)
