"""Features of some images of every set, for the t-SNE figures: possible in a simulation only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedvisage.data.batches import View
from fedvisage.federation.members import members_of
from fedvisage.federation.wire.message import Message
from fedvisage.files import json_key, write_tensors
from fedvisage.recipe import Recipe
from fedvisage.streams import numpy_rng
from fedvisage.tasks.opened import POOLED, Opened
from fedvisage.tasks.overlap import HELD_OUT, SITE
from fedvisage.tasks.scoring import Scorer

FEATURES = "features.safetensors"


def write_features(out: Path, scorer: Scorer, finished: Message, data: Opened) -> None:
    """Keep features of a sample of every set; where a run has one model a site, those of the first site's model."""
    recipe = scorer.recipe
    member, weights = next(iter(sorted(members_of(finished).items())))
    scorer.load(weights)
    views = heldout_views(data)
    views |= {recipe.data.user_name: data.user} if data.user is not None else {}
    features, labels, sites = features_of(scorer, views, recipe)
    meta = json_key({"sites": list(views), "model": member})
    write_tensors(out / FEATURES, {"features": features, "label": labels, "site": sites}, meta)


def heldout_views(data: Opened) -> dict[str, View]:
    """Return each site's held-out images; where a method merges the sites, as they were before, to be told apart."""
    if list(data.sites) != [POOLED]:
        return {name: site.heldout for name, site in data.sites.items()}
    apart = {}
    for place, views in data.places.items():
        if place.startswith(SITE):
            name = place.removeprefix(SITE).removesuffix(HELD_OUT)
            if name not in apart or place.endswith(HELD_OUT):
                (apart[name],) = views
    return apart


def features_of(scorer: Scorer, views: Mapping[str, View], recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, labels and the number of the set for a drawn sample of each view."""
    features, labels, sites = [], [], []
    for number, (name, view) in enumerate(views.items()):
        count = min(recipe.evaluation.features, len(view))
        drawn = numpy_rng(recipe.runtime.seed, "features", name).choice(len(view), size=count, replace=False)
        sample = view.subset(np.sort(drawn))
        features.append(scorer.features(sample))
        labels.append(torch.from_numpy(sample.labels.astype(np.int64)))
        sites.append(torch.full((count,), number))
    return torch.cat(features), torch.cat(labels), torch.cat(sites)
