"""A step of recognition at paper size: iResNet-50 at 112 pixels with a softmax over 100,000 people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear, normalize

from benchmarks.measurement import Measurement
from benchmarks.paper.at_work import CPU, FIRST, at_work, compared, recipe_of
from fedvisage.base.progress import discard
from fedvisage.base.streams import seed_global_rng
from fedvisage.data.batches import epoch_batches
from fedvisage.federation.site import OWNED, Site
from fedvisage.methods import find
from fedvisage.methods.models import face
from fedvisage.nn.inputs import prepare
from fedvisage.tasks.recognition.data import open_data

SIZE, BATCH, BATCHES, PEOPLE, EMBEDDING = 112, 8, 2, 100_000, 512
SCALE, MARGIN, CLIP = 30.0, 0.4, 5.0
RATE, MOMENTUM, DECAY = 0.001, 0.9, 0.0005


def measure(cache: Path) -> Measurement:
    """Time a turn of few batches: images of a few people, whose classes stand among those of all.

    The plain side is how released trainers of such networks are written: unit features, unit centres, a margin where
    the label is, gradients cut to a norm, SGD.
    """
    sgd = {"name": "sgd", "lr": RATE, "momentum": MOMENTUM, "weight_decay": DECAY, "clip_norm": CLIP}
    training = {"local": {"batches": BATCHES}, "batch": BATCH, "optimizer": sgd}
    network = {"name": "iresnet50", "embedding": EMBEDDING}
    data = {"sites": {"A": f"synth: people images=14 size={SIZE} identities=2"}}
    recipe = recipe_of("fedavg", {"network": network}, SIZE, "rgb", training, data)
    opened = open_data(recipe, find(recipe.method), cache, discard)
    site = at_work(recipe, opened.sites["A"].train)
    with seed_global_rng(0, "centres"):
        centres = 0.01 * torch.randn(PEOPLE, EMBEDDING)
    site.kept[f"{OWNED}{face.OWN_CENTRES}"] = centres
    lent, turn = site.tensors("model"), find(recipe.method).calls["train"].run

    def house() -> object:
        return turn(replace(site, losses=[], held={}, _owned={}, _optimizers={}), dict(lent))

    return compared(
        f"a site's turn of {BATCHES} batches with 100,000 people against plain PyTorch (processor time; iResNet-50, "
        f"{SIZE} px, batch {BATCH})",
        1.0,
        house,
        _plain(site),
        site,
    )


def _plain(site: Site) -> Callable[[], object]:
    """Return a turn: centres are put in as they were, a few steps are taken, and the weights are handed back."""
    with seed_global_rng(0, "initial weights"):
        backbone = face.network(site.recipe)["model"].train()
    start = {name: value.clone() for name, value in backbone.state_dict().items()}
    stored = site.kept[f"{OWNED}{face.OWN_CENTRES}"]
    classes = torch.from_numpy(site.classes_of(site.data.subjects))
    batches = epoch_batches(site.data, np.random.default_rng(0), size=BATCH, sampling="shuffled")[:BATCHES]
    assert len(batches) == BATCHES

    def turn() -> object:
        backbone.load_state_dict(start)
        centres = nn.Parameter(stored.clone())
        parameters = [*backbone.parameters(), centres]
        optimizer = torch.optim.SGD(parameters, RATE, MOMENTUM, weight_decay=DECAY)
        for positions in batches:
            optimizer.zero_grad()
            labels = classes[torch.from_numpy(positions)]
            features = backbone(prepare(site.data.batch(positions).images, "rgb", CPU, FIRST))
            cosine = linear(normalize(features), normalize(centres)).clamp(-1, 1)
            margins = torch.zeros_like(cosine)
            margins.scatter_(1, labels[:, None], MARGIN)
            loss = cross_entropy(SCALE * (cosine - margins), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
        return {name: value.clone() for name, value in backbone.state_dict().items()}

    return turn
