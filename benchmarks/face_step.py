"""A training step of FedFR at a site, against a plain PyTorch step with the same three losses (Eq. 7).

Both sides read, prepare and train on the same batches of the site's and of all public images, with the same network
and the same frozen copies of it. The plain side is a loop as anybody would write it: no recipe, no class of a site, no
private state, losses in plain calls.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize, one_hot, softplus

from benchmarks.measurement import Measurement, processor_seconds
from fedvisage import recipe as recipes
from fedvisage.base.streams import seed_global_rng
from fedvisage.data.batches import View, epoch_batches
from fedvisage.federation.site import Site
from fedvisage.methods import find, read_method
from fedvisage.methods.models import face
from fedvisage.methods.recognition import fedfr
from fedvisage.nn.compute import Compute, resolve_compute
from fedvisage.nn.face_networks import face_network
from fedvisage.nn.inputs import prepare
from fedvisage.recipe import Recipe
from fedvisage.tasks.recognition.data import open_data, with_public_identities

BATCH, STEPS, SIZE = 32, 12, 48
SITE = f"synth: people identities=10 images=12 size={SIZE}"
PUBLIC = f"synth: people identities=20 images=12 size={SIZE} first=1000 test=0 heldout=0.25"


def measure(cache: Path, repeats: int = 5) -> Measurement:
    """Time steps of both in turn; what disturbs a measurement adds to it, so the least processor time counts."""
    recipe = with_public_identities(recipes.validate(_tree(), read_method), cache, _unsaid)
    compute = resolve_compute("cpu", "auto")
    plain, house = [], []
    for _ in range(repeats):
        plain.append(_plain(_site(recipe, compute, cache), compute))
        house.append(_house(_site(recipe, compute, cache)))
    images, least, ours = BATCH * STEPS, min(plain), min(house)
    return Measurement(
        "training steps of FedFR at a site against plain PyTorch steps with the same three losses (images a second of "
        "processor time)",
        "≥ 0.95",
        f"{least / ours:.3f} ({images / ours:.1f} / {images / least:.1f}, sphere20 of width 16, {SIZE} px, "
        f"batch {BATCH})",
        least / ours >= 0.95,
    )


def _tree() -> dict[str, object]:
    return {
        "method": {
            "name": "fedfr",
            "network": {"name": "sphere20", "width": 16, "embedding": 128},
            "hard_negatives": -1,
        },
        "data": {"sites": {"A": SITE}, "public": PUBLIC},
        "input": {"size": SIZE, "colour": "rgb"},
        "training": {
            "rounds": 1,
            "local": {"batches": STEPS},
            "batch": BATCH,
            "optimizer": {"name": "sgd", "lr": 0.001, "momentum": 0.9, "weight_decay": 0.0005},
        },
        "runtime": {"threads": torch.get_num_threads()},
    }


def _site(recipe: Recipe, compute: Compute, cache: Path) -> Site:
    """Return a site in its first round, with the model that it was lent, and its frozen copies, as FedFR holds them."""
    method = find({"name": "fedfr"})
    data = open_data(recipe, method, cache, _unsaid)
    assert data.people is not None
    with seed_global_rng(0, "initial weights"):
        net = method.network(recipe)
    compute.place(net)
    site = Site("A", recipe, 1, data.sites["A"].train, net.train(), compute, {}, {}, public=data.people.public)
    site.lent = site.tensors("model", "centres")
    fedfr.own_parameters(site)
    before = {f"{face.LOCAL}{name}": value for name, value in site.lent.items() if name.startswith("model.")}
    site.kept.update(before)
    return site


def _unsaid(_: str) -> None:
    """Progress that nobody wants to read."""


def _view(site: Site) -> View:
    return fedfr.with_hard_negatives(site)


def _house(site: Site) -> float:
    own, view = fedfr.own_parameters(site), _view(site)
    fedfr.hold_frozen(site, view)
    return processor_seconds(lambda: face.train_local_model(site, fedfr.loss, view, ("model", "centres"), own))


def _plain(site: Site, compute: Compute) -> float:
    """Time the same steps in plain PyTorch, on copies of what the site has."""
    view, network = _view(site), site.recipe.options(face.FaceOptions).network
    backbone, wanted, unwanted = (face_network(network, SIZE) for _ in range(3))
    for copy in (backbone, wanted, unwanted):
        copy.load_state_dict(site.net["model"].state_dict())
        compute.place(nn.ModuleDict({"model": copy}))
    wanted.eval().requires_grad_(False)
    unwanted.eval().requires_grad_(False)
    public = nn.Parameter(site.net["centres"].get_parameter("weight").detach().clone())
    own = [nn.Parameter(site.own(name, _missing).detach().clone()) for name in ("W", "Omega", "Pi", "b")]
    optimizer = torch.optim.SGD([*backbone.parameters(), public, *own], lr=0.001, momentum=0.9, weight_decay=0.0005)
    classes = site.classes_of(view.subjects)

    def steps() -> None:
        taken = 0
        while taken < STEPS:
            epoch = epoch_batches(view, np.random.default_rng(taken), size=BATCH, sampling="shuffled")
            for positions in epoch[: STEPS - taken]:
                images = prepare(view.batch(positions).images, "rgb", compute.device)
                with compute.autocast():
                    features, near, far = (net(images).float() for net in (backbone, wanted, unwanted))
                loss = losses(features, near, far, public, own, torch.from_numpy(classes[positions]))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                taken += 1

    return processor_seconds(steps)


def _missing() -> Tensor:
    raise AssertionError("the site has made what is its own")


def losses(
    features: Tensor, near: Tensor, far: Tensor, public: Tensor, own: list[nn.Parameter], labels: Tensor
) -> Tensor:
    """Eq. 7 in plain calls: CosFace over all classes, the contrast, and a binary loss for each local identity."""
    centres, branches, transformation, bias = own
    cosine = normalize(features) @ normalize(torch.cat([centres, public])).T
    balanced = cross_entropy(30 * (cosine - 0.4 * one_hot(labels, cosine.shape[1])), labels)
    contrast = softplus((cosine_similarity(features, far) - cosine_similarity(features, near)) / 0.5).mean()
    score = 2 * ((normalize(features @ transformation.T) @ normalize(branches).T + 1) / 2).clamp(min=0) ** 3 - 1
    mine = labels[:, None] == torch.arange(len(branches), device=labels.device)
    binary = torch.where(mine, 0.7 * softplus(-30 * (score - 0.4) - bias), 0.3 * softplus(30 * (score + 0.4) + bias))
    return balanced + 5 * contrast + 10 * binary.sum(dim=1).mean() / 30
