"""A site at work with each paper's network at paper size, and plain PyTorch steps with the same networks and losses.

The plain side is as fast as it can be: its batches are on the device before the clock starts, and it sends nothing.
The site reads, augments and copies its images, loads the server's weights and returns its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, linear, normalize

from benchmarks import face_step, fedgpad
from benchmarks.gpu.sets import attack_set, people_set
from fedvisage import recipe as recipes
from fedvisage.base.streams import seed_global_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.site import OWNED, Batch, Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods import find, read_method
from fedvisage.methods.models import face
from fedvisage.methods.recognition import fedfr
from fedvisage.methods.recognition.privacyface_loss import train_model
from fedvisage.nn.compute import LAYOUTS, Compute, Layout
from fedvisage.recipe import Recipe
from fedvisage.tasks.catalogue import set_up

Precision = Literal["fp32", "bf16"]
BLOCKS = 4
"""The blocks that FedSIS's steps pass, about the mean of those that are drawn."""
MARGIN = 0.4


@dataclass(frozen=True)
class Sizes:
    """The sizes of images, batches and networks."""

    image: int
    batch: int
    batches: int
    network: dict[str, Any] = field(default_factory=dict)
    people: int = 0
    """The identities of a site, for recognition."""
    public: int = 0
    """Number of public identities, or of class centres without images at the site."""


@dataclass(frozen=True)
class Paper:
    """A paper's method and its training, as in recipes/paper, with small sizes for tests."""

    method: dict[str, Any]
    colour: str
    optimizer: dict[str, Any]
    paper_size: Sizes
    tiny: Sizes
    loss: Callable[[nn.ModuleDict, Sequence[nn.Parameter], Batch, Compute], Tensor]
    """The loss of a plain step."""

    def sizes(self, tiny: bool) -> Sizes:
        """Return the sizes of the paper, or those for tests."""
        return self.tiny if tiny else self.paper_size


def _fedpad(net: nn.ModuleDict, own: Sequence[nn.Parameter], batch: Batch, compute: Compute) -> Tensor:
    with compute.autocast():
        logits = net["model"](batch.images).squeeze(1)
    return binary_cross_entropy_with_logits(logits.float(), batch.labels)


def _fedgpad(net: nn.ModuleDict, own: Sequence[nn.Parameter], batch: Batch, compute: Compute) -> Tensor:
    assert batch.depth is not None
    return fedgpad.losses(net, batch.images, batch.labels, batch.depth, compute)


def _fedfr(net: nn.ModuleDict, own: Sequence[nn.Parameter], batch: Batch, compute: Compute) -> Tensor:
    """Return Eq. 7; ``frozen`` holds the two models of the contrast, which every batch passes."""
    assert batch.identities is not None
    with compute.autocast():
        with torch.no_grad():
            near, far = (frozen(batch.images).float() for frozen in net["frozen"].children())
        features = net["model"](batch.images).float()
    public = net["centres"].get_parameter("weight")
    return face_step.losses(features, near, far, public, list(own), batch.identities)


def _fedsis(net: nn.ModuleDict, own: Sequence[nn.Parameter], batch: Batch, compute: Compute) -> Tensor:
    with compute.autocast():
        tokens = net["tokenizer"](batch.images)
        for block in list(net["blocks"].children())[:BLOCKS]:
            tokens = block(tokens)
        logits = net["head"](net["adapter"](tokens))
    return cross_entropy(logits.float(), batch.labels.long())


def _privacyface(net: nn.ModuleDict, own: Sequence[nn.Parameter], batch: Batch, compute: Compute) -> Tensor:
    assert batch.identities is not None
    with compute.autocast():
        features = net["model"](batch.images)
    cosine = linear(normalize(features.float()), normalize(own[0])).clamp(-1, 1)
    margins = torch.zeros_like(cosine).scatter(1, batch.identities[:, None], MARGIN)
    return cross_entropy(64 * (cosine - margins), batch.identities)


SGD = {"name": "sgd", "lr": 0.001, "weight_decay": 0.0005}
PAPERS = {
    "fedpad": Paper(
        {"name": "fedpad"},
        "rgb+hsv",
        {"name": "adam", "lr": 0.01},
        Sizes(256, 64, 8),
        Sizes(32, 4, 2, {"width": 8}),
        _fedpad,
    ),
    "fedgpad": Paper(
        {"name": "fedgpad"},
        "rgb+hsv",
        {"name": "adam", "lr": 0.01},
        Sizes(256, 32, 1),
        Sizes(32, 4, 1, {"width": 8}),
        _fedgpad,
    ),
    "fedfr": Paper(
        {"name": "fedfr", "hard_negatives": -0.999},
        "rgb",
        {**SGD, "momentum": 0.9},
        Sizes(112, 128, 8, {"name": "sphere64"}, people=100, public=6000),
        Sizes(32, 4, 2, {"name": "sphere20", "width": 8, "embedding": 16}, people=3, public=4),
        _fedfr,
    ),
    "fedsis": Paper(
        {"name": "fedsis", "blocks": {"first": BLOCKS, "last": BLOCKS}},
        "rgb",
        {"name": "adam", "lr": 1e-6, "weight_decay": 1e-6, "state": "kept"},
        Sizes(224, 6, 8),
        Sizes(32, 4, 2, {"width": 8, "depth": BLOCKS, "heads": 2, "stem": 8, "stages": [1, 1, 1]}),
        _fedsis,
    ),
    "privacyface": Paper(
        {"name": "privacyface", "minimum": 2, "epsilon": 1, "delta": 5.9e-5, "public_epochs": 0},
        "rgb",
        SGD,
        Sizes(112, 512, 4, {"name": "iresnet18"}, people=64, public=7000),
        Sizes(32, 4, 2, {"name": "iresnet18", "width": 8, "embedding": 16}, people=3, public=4),
        _privacyface,
    ),
}


@dataclass(frozen=True)
class Place:
    """Device and limits of a section."""

    device: str
    folder: Path
    """A folder for its files."""
    tiny: bool = False
    threads: int = 2

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(torch.device(self.device))


def recipe_of(
    name: str,
    place: Place,
    precision: Precision = "fp32",
    *,
    batch: int | None = None,
    layout: Layout = "last",
    data: dict[str, Any] | None = None,
    rounds: int = 3,
    **runtime: Any,
) -> Recipe:
    """Return the recipe of a paper at its size."""
    paper = PAPERS[name]
    sizes, method = paper.sizes(place.tiny), {**paper.method}
    if sizes.network:
        method["network"] = sizes.network
    if data is None:
        data = {"sites": {"A": "noise"}}
        if sizes.people:
            data |= {"public": "noise", "public_identities": sizes.public}
    tree: dict[str, Any] = {
        "method": method,
        "data": data,
        "input": {"size": sizes.image, "colour": paper.colour},
        "training": {
            "rounds": rounds,
            "local": {"batches": sizes.batches},
            "batch": batch or sizes.batch,
            "optimizer": paper.optimizer,
        },
        "evaluation": {"resamples": 0},
        "runtime": {
            "threads": place.threads,
            "device": place.device,
            "precision": precision,
            "layout": layout,
            "checkpoint_every": 100,
            **{key: value for key, value in runtime.items() if value},
        },
    }
    if find(method).releases:
        tree["privacy"] = {"epsilon": 100, "delta": 0.5, "noise": "derived"}
    return recipes.validate(tree, read_method)


@cache
def set_of(name: str, place: Place, kind: str) -> Path:
    """Write a paper's set of noise once per process: one site's, or the public one."""
    sizes, path = PAPERS[name].sizes(place.tiny), place.folder / f"{name}-{kind}"
    seed = sum(kind.encode())
    if not sizes.people:
        return attack_set(path, sizes.batch * min(sizes.batches, 4), sizes.image, seed)
    people = min(sizes.people, sizes.public)
    return people_set(path, people, max(2, sizes.batch * sizes.batches // people // 2), sizes.image, seed)


def site_of(name: str, recipe: Recipe, place: Place) -> Site:
    """Return a site that has trained before, with a new network and the paper's number of class centres."""
    sizes, setup = PAPERS[name].sizes(place.tiny), set_up(recipe, find(recipe.method))
    with seed_global_rng(0, "initial weights"):
        net = setup.method.network(recipe)
    setup.compute.place(net)
    train = View.of(PreparedSet.open(set_of(name, place, "site")), "train")
    public = View.of(PreparedSet.open(set_of(name, place, "public")), "train") if sizes.people else None
    site = Site("A", recipe, 2, train, net.train(), setup.compute, {}, {}, public=public)
    site.lent = {key: value.to(setup.compute.device) for key, value in site.tensors(*net).items()}
    if name == "fedfr":
        fedfr.own_parameters(site)
        local = {f"{face.LOCAL}{key}": value for key, value in site.lent.items() if key.startswith("model.")}
        site.kept.update(site.private_state() | local)
    elif name == "privacyface":
        width = recipe.options(face.FaceOptions).network.embedding
        centres = torch.randn(sizes.public, width, generator=torch.Generator().manual_seed(0))
        site.kept[f"{OWNED}{face.OWN_CENTRES}"] = normalize(centres)
    return site


def take_turn(name: str, site: Site) -> Message:
    """Let a site answer one order to train, and return its reply."""
    now = replace(site, losses=[], held={}, scratch={}, common={}, _owned={}, _optimizers={})
    if name == "privacyface":
        clusters = site.kept[f"{OWNED}{face.OWN_CENTRES}"][:3].to(site.compute.device)
        return train_model(now, dict(site.lent), clusters)
    return find(site.recipe.method).calls["train"].run(now, dict(site.lent))


def batches_of(name: str, site: Site) -> list[Batch]:
    """Return the batches of a turn, on the device."""
    if name == "fedfr":
        assert site.public is not None
        return list(site.batches_of(View.join([site.data, site.public])))
    return list(site.batches_of(site.data))


def plain_steps(name: str, site: Site, compute: Compute, batches: Sequence[Batch]) -> Callable[[], None]:
    """Return a function that takes a plain step per batch, with the same network, in a layout and number format."""
    paper, recipe = PAPERS[name], site.recipe
    with seed_global_rng(0, "initial weights"):
        net = find(recipe.method).network(recipe)
    compute.place(net)
    net.train()
    shapes = ("W", "Omega", "Pi", "b") if name == "fedfr" else ("W",) if name == "privacyface" else ()
    own = [nn.Parameter(site.kept[f"{OWNED}{key}"].detach().clone().to(compute.device)) for key in shapes]
    trained = [*net.parameters(), *own]
    if name == "fedfr":
        frozen = nn.ModuleList(find(recipe.method).network(recipe)["model"] for _ in range(2))
        compute.place(frozen)
        net["frozen"] = frozen.eval().requires_grad_(False)
    settings = {key: value for key, value in paper.optimizer.items() if key not in ("name", "state")}
    make: Any = torch.optim.Adam if paper.optimizer["name"] == "adam" else torch.optim.SGD
    optimizer = make(trained, **settings)
    ready = [replace(batch, images=batch.images.contiguous(memory_format=compute.layout)) for batch in batches]

    def work() -> None:
        if name == "fedfr":  # mining: all images pass the lent model once
            with torch.no_grad(), compute.autocast():
                for batch in ready:
                    net["frozen"][0](batch.images)  # type: ignore[index]
        for batch in ready:
            optimizer.zero_grad(set_to_none=True)
            paper.loss(net, own, batch, compute).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return work


def plain_compute(site: Site, precision: Precision, layout: Layout) -> Compute:
    """Return the settings of a plain side on the site's device."""
    return Compute(site.compute.device, precision == "bf16", LAYOUTS[layout])
