"""Steps at the papers' own sizes, against plain PyTorch in the order of work of the authors' released code.

The plain sides are written anew: channels first, everything passed again where the authors pass it again. A house that
only compares with its own layout at a small size does not see that it is slow where its users are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss, normalize

from benchmarks.face_step import losses
from benchmarks.measurement import Measurement, in_turn, middle, processor_seconds, rendered
from fedvisage import recipe as recipes
from fedvisage.data.batches import View, order
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.site import Site
from fedvisage.methods import fedfr, fedgpad, find, read_method
from fedvisage.methods.models import face
from fedvisage.nn.inputs import prepare
from fedvisage.progress import unheard
from fedvisage.recipe import Recipe
from fedvisage.runs.layout import measured, settled
from fedvisage.streams import scoped
from fedvisage.tasks.recognition.data import filled, open_data
from fedvisage.tasks.setup import set_up

CPU, FIRST = torch.device("cpu"), torch.contiguous_format
REPEATS = 3
PAD_SIZE, PAD_BATCH = 256, 4
FACE_SIZE, FACE_BATCH, EPOCHS = 112, 8, 4
MOMENTUM, DECAY = 0.9, 0.0005


def measure_fedgpad(cache: Path) -> Measurement:
    """Time the turn of a site: one batch through the five networks of Table II at full width, in the measured layout.

    A batch of four images stands for the paper's of 32: a step takes as long, image for image.
    """
    view = View.of(PreparedSet.open(rendered(cache, "O", 2, PAD_SIZE)), "train")
    site = _at_work(_recipe("fedgpad", {}, PAD_SIZE, "rgb+hsv", {"local": {"batches": 1}, "batch": PAD_BATCH}), view)
    lent = site.tensors(*fedgpad.SHARED)
    positions = order(view, np.random.default_rng(0), size=PAD_BATCH, sampling="shuffled")[0]
    nets = _plain_networks(site)

    def house() -> object:
        return fedgpad.METHOD.calls["train"].run(replace(site, losses=[], held={}), dict(lent))

    return _row(
        f"FedGPAD's local step at paper size against plain PyTorch as the authors wrote it (processor time; Table II "
        f"at width 64, {PAD_SIZE} px, batch {PAD_BATCH})",
        1.05,
        house,
        lambda: _fedgpad_step(nets, view, positions),
        site,
    )


def measure_fedfr(cache: Path) -> Measurement:
    """Time a round of a site that has trained before: mining, then four epochs with flips of one half, on Sphere64."""
    training = {
        "local": {"epochs": EPOCHS},
        "batch": FACE_BATCH,
        "augment": {"flip": 0.5},
        "optimizer": {"name": "sgd", "lr": 0.001, "momentum": MOMENTUM, "weight_decay": DECAY},
    }
    people = f"synth: people images=6 size={FACE_SIZE}"
    data = {"sites": {"A": f"{people} identities=2"}, "public": f"{people} identities=3 first=1000 test=0 heldout=0.4"}
    recipe = _recipe("fedfr", {"hard_negatives": -0.999}, FACE_SIZE, "rgb", training, data)
    recipe = filled(recipe, cache, unheard)
    opened = open_data(recipe, find({"name": "fedfr"}), cache, unheard)
    assert opened.people is not None
    site = _at_work(recipe, opened.sites["A"].train, opened.people.public)
    site.lent = site.tensors("model", "centres")
    fedfr.own_parameters(site)
    local = {f"{face.LOCAL}{name}": value for name, value in site.lent.items() if name.startswith("model.")}
    site.kept.update(site.put_away() | local)
    copies = _plain_copies(site)

    def house() -> object:
        now = replace(site, losses=[], held={}, common={}, _owned={}, _optimizers={})
        return fedfr.train(now, dict(site.lent))

    return _row(
        f"a site's round of FedFR at paper size against plain PyTorch as the authors wrote it (processor time; "
        f"Sphere64, {FACE_SIZE} px, E = {EPOCHS}, flips of ½)",
        1.25,
        house,
        lambda: _fedfr_round(copies, site),
        site,
    )


def _row(claim: str, bound: float, house: Callable[[], object], plain: Callable[[], object], site: Site) -> Measurement:
    """Time both sides in turn after one pass of each; the ratio of medians is judged."""
    house()
    plain()
    ours, theirs = in_turn(REPEATS, lambda: processor_seconds(house), lambda: processor_seconds(plain))
    ratio, first = median(theirs) / median(ours), site.compute.layout == FIRST
    layout = f"channels {'first' if first else 'last'} by measurement"
    return Measurement(
        claim,
        f"≥ {bound:g}",
        f"{ratio:.2f} ({middle(ours)} / {middle(theirs)}; {layout}; medians of {REPEATS}, least and largest)",
        ratio >= bound,
    )


def _recipe(
    method: str,
    own: dict[str, Any],
    size: int,
    colour: str,
    training: dict[str, Any],
    data: dict[str, Any] | None = None,
) -> Recipe:
    tree = {
        "method": {"name": method, **own},
        "data": data or {"sites": {"A": "at hand"}},
        "input": {"size": size, "colour": colour},
        "training": {"rounds": 2, **training},
        "runtime": {"threads": torch.get_num_threads(), "layout": "auto", "device": "cpu", "precision": "fp32"},
    }
    return recipes.validate(tree, read_method)


def _at_work(recipe: Recipe, view: View, public: View | None = None) -> Site:
    """Return a site in its second round, with a network in the layout that is measured for it."""
    method = find(recipe.method)
    recipe = settled(recipe, measured(set_up(recipe, method)))
    setup = set_up(recipe, method)
    with scoped(0, "initial weights"):
        net = method.network(recipe)
    setup.compute.place(net)
    return Site("A", recipe, 2, view, net.train(), setup.compute, {}, {}, public=public)


def _plain_networks(site: Site) -> nn.ModuleDict:
    with scoped(0, "initial weights"):
        net = fedgpad.network(site.recipe)
    return net.train()


def _fedgpad_step(net: nn.ModuleDict, view: View, positions: np.ndarray) -> list[Any]:
    """Take a step with an optimizer of its own, and hand all weights back: Algorithm 2 aggregates after every batch."""
    batch = view.batch(positions)
    images = prepare(batch.images, "rgb+hsv", CPU, FIRST)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    optimizer.zero_grad()
    invariant, pooled = net["encoder"](images)
    specific, _ = net["specific"](images)
    depth, logits = net["depth"](pooled), net["classifier"](invariant)
    rebuilt = net["decoder"](invariant + specific)
    assert batch.depth is not None
    one, other = (values / (values.norm(dim=1, keepdim=True).detach() + 1e-6) for values in (invariant, specific))
    loss: Tensor = (
        binary_cross_entropy_with_logits(logits.squeeze(1), batch.labels)
        + 10 * mse_loss(depth, batch.depth)
        + (one.T @ other).square().mean()
        + 0.1 * mse_loss(rebuilt, images)
    )
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return [part.state_dict() for part in net.values()]


def _plain_copies(site: Site) -> list[nn.Module]:
    """Return a backbone and the two frozen ones, channels first."""
    with scoped(0, "initial weights"):
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
    view = View.joined([site.data, site.public])
    _mine(wanted, site.data, site.public)
    own = [nn.Parameter(site.kept[f"own/{name}"].clone()) for name in ("W", "Omega", "Pi", "b")]
    public = nn.Parameter(site.lent["centres.weight"].clone())
    optimizer = torch.optim.SGD([*backbone.train().parameters(), public, *own], 0.001, MOMENTUM, weight_decay=DECAY)
    classes, flips = torch.from_numpy(site.classes_of(view.subjects)), torch.Generator().manual_seed(0)
    for epoch in range(EPOCHS):
        for positions in order(view, np.random.default_rng(epoch), size=FACE_BATCH, sampling="shuffled"):
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
    for start in range(0, len(view), FACE_BATCH):
        images = view.batch(np.arange(start, min(start + FACE_BATCH, len(view)))).images
        yield prepare(images, "rgb", CPU, FIRST)
