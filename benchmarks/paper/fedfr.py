"""A site's round of FedFR at paper size: mining, then four epochs with flips of one half, on Sphere64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from benchmarks.face_step import losses
from benchmarks.measurement import Measurement
from benchmarks.paper.at_work import CPU, FIRST, Precision, at_work, compared, recipe_of
from fedvisage.base.progress import discard
from fedvisage.base.streams import seed_global_rng
from fedvisage.data.batches import View, epoch_batches
from fedvisage.federation.site import Site
from fedvisage.methods import find
from fedvisage.methods.models import face
from fedvisage.methods.recognition import fedfr
from fedvisage.nn.inputs import prepare
from fedvisage.tasks.recognition.data import open_data, with_public_identities

SIZE, BATCH, EPOCHS = 112, 8, 4
MOMENTUM, DECAY = 0.9, 0.0005


def measure(cache: Path) -> Measurement:
    """Time a round of a site that has trained before: mining, then four epochs with flips of one half, on Sphere64."""
    return _measure(cache, "fp32", 1.25)


def measure_bf16(cache: Path) -> Measurement:
    """Time the same in bf16, against plain PyTorch in fp32."""
    return _measure(cache, "bf16", 1.7)


def _measure(cache: Path, precision: Precision, bound: float) -> Measurement:
    training = {
        "local": {"epochs": EPOCHS},
        "batch": BATCH,
        "augment": {"flip": 0.5},
        "optimizer": {"name": "sgd", "lr": 0.001, "momentum": MOMENTUM, "weight_decay": DECAY},
    }
    people = f"synth: people images=6 size={SIZE}"
    data = {"sites": {"A": f"{people} identities=2"}, "public": f"{people} identities=3 first=1000 test=0 heldout=0.4"}
    recipe = recipe_of("fedfr", {"hard_negatives": -0.999}, SIZE, "rgb", training, data, precision)
    recipe = with_public_identities(recipe, cache, discard)
    opened = open_data(recipe, find({"name": "fedfr"}), cache, discard)
    assert opened.people is not None
    site = at_work(recipe, opened.sites["A"].train, opened.people.public)
    site.lent = site.tensors("model", "centres")
    fedfr.own_parameters(site)
    local = {f"{face.LOCAL}{name}": value for name, value in site.lent.items() if name.startswith("model.")}
    site.kept.update(site.private_state() | local)
    copies = _plain_copies(site)

    def house() -> object:
        now = replace(site, losses=[], held={}, common={}, _owned={}, _optimizers={})
        return fedfr.train(now, dict(site.lent))

    return compared(
        f"a site's round of FedFR at paper size against plain PyTorch as the authors wrote it (processor time; "
        f"Sphere64, {SIZE} px, E = {EPOCHS}, flips of ½)",
        bound,
        house,
        lambda: _fedfr_round(copies, site),
        site,
    )


def _plain_copies(site: Site) -> list[nn.Module]:
    """Return a backbone and the two frozen ones, channels first."""
    with seed_global_rng(0, "initial weights"):
        copies = [face.network(site.recipe)["model"] for _ in range(3)]
    for copy in copies:
        copy.load_state_dict(site.net["model"].state_dict())
    for copy in copies[1:]:
        copy.eval().requires_grad_(False)
    return copies


def _fedfr_round(copies: list[nn.Module], site: Site) -> None:
    """Mine, then train: every batch goes through the two frozen models, then through the one that learns."""
    backbone, wanted, unwanted = copies
    assert site.public is not None
    view = View.join([site.data, site.public])
    _mine(wanted, site.data, site.public)
    own = [nn.Parameter(site.kept[f"own/{name}"].clone()) for name in ("W", "Omega", "Pi", "b")]
    public = nn.Parameter(site.lent["centres.weight"].clone())
    optimizer = torch.optim.SGD([*backbone.train().parameters(), public, *own], 0.001, MOMENTUM, weight_decay=DECAY)
    classes, flips = torch.from_numpy(site.classes_of(view.subjects)), torch.Generator().manual_seed(0)
    for epoch in range(EPOCHS):
        for positions in epoch_batches(view, np.random.default_rng(epoch), size=BATCH, sampling="shuffled"):
            optimizer.zero_grad()
            images = prepare(view.batch(positions).images, "rgb", CPU, FIRST)
            mirrored = torch.rand(len(images), generator=flips) < 0.5
            images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
            with torch.no_grad():
                near, far = wanted(images), unwanted(images)
            loss = losses(backbone(images), near, far, public, own, classes[torch.from_numpy(positions)])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def _mine(frozen: nn.Module, own: View, public: View) -> Tensor:
    with torch.no_grad():
        local, others = (torch.cat([normalize(frozen(part)) for part in _in_order(view)]) for view in (own, public))
    return (others @ local.T).amax(dim=1) > -0.999


def _in_order(view: View) -> Iterator[Tensor]:
    for start in range(0, len(view), BATCH):
        images = view.batch(np.arange(start, min(start + BATCH, len(view)))).images
        yield prepare(images, "rgb", CPU, FIRST)
