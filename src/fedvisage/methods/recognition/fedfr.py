"""FedFR: one framework for a generic and for personal face recognition models.

C.-T. Liu, C.-Y. Wang, S.-Y. Chien, S.-H. Lai, "FedFR: Joint Optimization Federated Framework for Generic and
Personalized Face Recognition", AAAI 2022, Algorithm 1. A site trains on its own images and on the hard negatives D_HN
among the public ones. Each round selects these again: public images whose similarity to a local image exceeds t_HN
under the global model. The site minimises Eq. 7, α₁ L_cos + α₂ L_con + α₃ L_BCE: balanced CosFace over public and local
classes (Eq. 3), the contrast of its features with those of the global and of its previous model (Eq. 5), and a binary
loss for each of its identities on customised features Π(f) (Eq. 6). Backbone Θ and public centres Φ are averaged by the
number of local images (Eq. 2, 4). W, Π, Ω and b never leave the site. Targets receive Θ_g; the site's personal model is
[Θ_l, Π_l].

Switches for Table 1: ``hard_negatives: null`` trains without public images and ``-1`` with all of them; a weight of 0
leaves out the contrast or the customisation. With all three off this is FedAvg. ``random_negatives`` takes as many
public images as exceed the threshold, but any of them: a control of the selection. ``customisation.loss: cosface`` is
Table 2's variant.

Deviations from the paper: Eq. 6's g(z) is taken as 2((z+1)/2)^t − 1, as in the released code; the printed one does not
map [−1, 1] onto itself. W and Ω start with the mean features of each identity, as W does in the released code, since
the paper does not specify it; ``centres: random`` is the alternative. Π has no bias unless ``customisation.affine``
adds that of the released code. In a site's first round the previous local model is the global one, so Eq. 5 is a
constant there and is not computed. If images are only mirrored, frozen models see each image once per round, plain and
mirrored (:class:`FrozenNetwork`). With ``count: sampled`` the sampled public images count in a site's
weight, as in the released code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedvisage.base.errors import UserError
from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.federation.method import EXAMPLES, LOSS, Call, Home, Method, Upload
from fedvisage.federation.site import OWNED, Batch, Site
from fedvisage.federation.wire.message import Message, under
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models import face
from fedvisage.metrics.similarity import hard_negatives, normalise
from fedvisage.nn.compute import Compute
from fedvisage.nn.losses.contrastive import model_contrastive
from fedvisage.nn.losses.cosface import cosface
from fedvisage.nn.losses.margin_binary import margin_binary
from fedvisage.recipe import Recipe, Section

TRANSFORMATION, BRANCHES, BIAS, SHIFT = "Pi", "Omega", "b", face.SHIFT


class ContrastSettings(Section):
    """Eq. 5: its weight α₂ and its temperature τ."""

    weight: float = Field(5.0, ge=0)
    """Weight α₂ in Eq. 7."""
    temperature: float = Field(0.5, gt=0)
    """Temperature τ of Eq. 5."""


class Customisation(Section):
    """Decoupled feature customisation, Eq. 6: its weight α₃, its loss, and the loss's s', m', λ, t and bias.

    ``affine`` adds a bias to Π, as in the released code.
    """

    unset: ClassVar[frozenset[str]] = frozenset({"affine"})
    weight: float = Field(10.0, ge=0)
    """Weight α₃ in Eq. 7."""
    loss: Literal["binary", "cosface"] = "binary"
    """Loss of the customised features: binary as in Eq. 6, or CosFace, Table 2's variant."""
    scale: float = Field(30.0, gt=0)
    """Scale s' of the loss."""
    margin: float = Field(0.4, ge=0, lt=1)
    """Margin m' of the loss."""
    balance: float = Field(0.7, gt=0, lt=1)
    """Weight λ of positive pairs; negative pairs have the weight 1 − λ."""
    exponent: float = Field(3.0, ge=1)
    """Exponent t of Eq. 6's g."""
    bias: Literal["each", "shared"] = "each"
    """One bias per identity (``each``), or one for all (``shared``)."""
    affine: bool | None = None
    """Adds a bias to Π, as in the released code."""


class Options(face.CosFaceOptions):
    """FedFR's options: the weights of Eq. 7, the threshold t_HN, and the settings of Eq. 5 and 6."""

    unset: ClassVar[frozenset[str]] = frozenset({"random_negatives"})
    cosface: float = Field(1.0, ge=0)
    """Weight α₁ of Eq. 7."""
    hard_negatives: float | None = Field(0.4, ge=-1, lt=1)
    """Similarity threshold t_HN for public images to take part in a round; -1 takes all, null none."""
    random_negatives: bool | None = None
    """Replaces the public images above the threshold by as many random ones, a control that the paper lacks."""
    contrast: ContrastSettings = ContrastSettings()
    """The contrastive term, Eq. 5."""
    customisation: Customisation = Customisation()
    """The personal term, Eq. 6."""
    count: Literal["local", "sampled"] = "local"
    """Images that count in a site's weight: its own (``local``), or also the public ones in use (``sampled``)."""


def loss(site: Site, batch: Batch) -> Tensor:
    """Return Eq. 7."""
    options = site.recipe.options(Options)
    features = face.features_of(site, batch.images)
    total = options.cosface * balanced_cosface(site, batch, features)
    if options.contrast.weight:
        total = total + options.contrast.weight * contrast(site, batch, features)
    if options.customisation.weight:
        total = total + options.customisation.weight * customisation(site, batch, features)
    return total


def balanced_cosface(site: Site, batch: Batch, features: Tensor) -> Tensor:
    """Return Eq. 3: CosFace over the site's classes and, if public images take part, the public ones."""
    options = site.recipe.options(Options)
    classes = face.classes_of(site, batch, face.class_centres(site, public=options.hard_negatives is not None))
    return cosface(features, classes.centres, classes.labels, scale=options.scale, margin=options.margin)


def contrast(site: Site, batch: Batch, features: Tensor) -> Tensor:
    """Return Eq. 5: towards the global model's features of the same images, away from the previous local model's.

    In a site's first round both are the same model: the loss is a constant, log 2, and has no gradient.
    """
    temperature = site.recipe.options(Options).contrast.temperature
    if "previous" not in site.held:
        same = features.detach()
        return model_contrastive(same, same, same, temperature)
    positive, negative = (site.held[name].features(batch) for name in ("global", "previous"))
    return model_contrastive(features, positive, negative, temperature)


CACHE_LIMIT = 1 << 30
"""Largest size of the cache in bytes; features of a larger view are not cached. The limit is fixed because the bytes of
a result must not depend on the amount of free memory."""


@dataclass
class FrozenNetwork:
    """A network that is frozen during a site's round, with a cache of its features of a view.

    The features of an image depend only on the image and on whether it is mirrored, so they are cached over epochs.
    Images with any other augmentation are new in each batch, and are not cached.
    """

    net: nn.Module
    compute: Compute
    images: int
    """Number of images in the view."""
    known: Tensor | None = None
    """Features of the view's first images, not mirrored, if the caller has them already."""

    def __post_init__(self) -> None:
        """Start with an empty cache."""
        self._rows: Tensor | None = None
        self._have = np.zeros(2 * self.images, bool)

    def features(self, batch: Batch) -> Tensor:
        """Return the features of a batch, without gradients."""
        if batch.positions is None or batch.mirrored is None:
            return self._compute(batch.images)
        # The cache has one row per image and, after these, one row per mirrored image.
        rows = batch.positions + self.images * batch.mirrored.numpy()
        if self._rows is None and self.known is not None:
            self._remember(np.arange(len(self.known)), self.compute.bring(self.known))
        missing = np.flatnonzero(~self._have[rows])
        if len(missing) == len(rows):
            fresh = self._compute(batch.images)
            self._remember(rows, fresh)
            return fresh
        if len(missing):
            images = batch.images[self.compute.bring(torch.from_numpy(missing))]
            self._remember(rows[missing], self._compute(images.contiguous(memory_format=self.compute.layout)))
        assert self._rows is not None, "rows that are marked are there"
        return self._rows[self.compute.bring(torch.from_numpy(rows))]

    def _compute(self, images: Tensor) -> Tensor:
        with torch.no_grad(), self.compute.autocast():
            features: Tensor = self.net(images)
        return features.float()

    def _remember(self, rows: np.ndarray, features: Tensor) -> None:
        width = features.shape[1]
        if len(self._have) * width * features.element_size() > CACHE_LIMIT:
            return
        if self._rows is None:
            self._rows = torch.empty(len(self._have), width, device=features.device)
        self._rows[self.compute.bring(torch.from_numpy(rows))] = features
        self._have[rows] = True


def hold_frozen(site: Site, view: View) -> None:
    """Hold the models that Eq. 5 compares with; the global model reuses the features from mining."""
    previous = under(face.LOCAL, site.kept)
    if not previous:
        return
    mined = site.held.get("mined")
    for name, weights, features in (("global", site.lent, mined), ("previous", previous, None)):
        net = site.frozen(weights, "model")["model"]
        site.held[name] = FrozenNetwork(net, site.compute, len(view), features)


def customisation(site: Site, batch: Batch, features: Tensor) -> Tensor:
    """Return Eq. 6 on Π(f): one branch per local identity, for which all other people, public or local, are negatives.

    Table 2's variant uses CosFace instead; it has no class for public images, and leaves them out.
    """
    options = site.recipe.options(Options).customisation
    assert batch.identities is not None
    transformed = features @ transformation(site).T
    if options.affine:
        transformed = transformed + shift(site)
    branches = face.own_centres(site, BRANCHES)
    if options.loss == "cosface":
        # Public identities have higher numbers than the site's own.
        local = (batch.class_numbers < len(branches)).nonzero()[:, 0]
        if not len(local):
            return transformed.sum() * 0  # a zero loss that still has a gradient
        rows = site.compute.bring(local)
        return cosface(transformed[rows], branches, batch.identities[rows], scale=options.scale, margin=options.margin)
    return margin_binary(
        transformed,
        branches,
        bias(site),
        batch.identities,
        scale=options.scale,
        margin=options.margin,
        balance=options.balance,
        exponent=options.exponent,
    )


def transformation(site: Site) -> Tensor:
    """Return Π, a fully connected layer that starts as the identity."""
    width = site.recipe.options(Options).network.embedding
    return site.own(TRANSFORMATION, lambda: torch.eye(width))


def shift(site: Site) -> Tensor:
    """Return the bias of Π, which starts at zero."""
    width = site.recipe.options(Options).network.embedding
    return site.own(SHIFT, lambda: torch.zeros(width))


def bias(site: Site) -> Tensor:
    """Return b, one per identity or one for all, which starts at zero."""
    shared = site.recipe.options(Options).customisation.bias == "shared"
    return site.own(BIAS, lambda: torch.zeros(1 if shared else len(site.data.identities)))


def own_parameters(site: Site) -> list[str]:
    """Create the site's own parameters from the lent model, and return their names."""
    options = site.recipe.options(Options)
    names = [face.OWN_CENTRES]
    face.own_centres(site)
    if options.customisation.weight:
        names += [BRANCHES, TRANSFORMATION]
        face.own_centres(site, BRANCHES)
        transformation(site)
        if options.customisation.affine:
            names.append(SHIFT)
            shift(site)
        if options.customisation.loss == "binary":
            names.append(BIAS)
            bias(site)
    return names


def with_hard_negatives(site: Site) -> View:
    """Return D_l ∪ D_HN for this round, or D_l and as many random public images."""
    options = site.recipe.options(Options)
    threshold = options.hard_negatives
    if threshold is None:
        return site.data
    assert site.public is not None, "a recipe with public identities has a public set"
    if threshold == -1:
        return View.join([site.data, site.public])
    public, local = site.public_features("model"), face.lent_features(site)
    rows = hard_negatives(normalise(public), normalise(local.numpy()), threshold)
    if options.random_negatives:
        rng = numpy_rng(site.recipe.runtime.seed, site.name, site.round, "random public images")
        rows = np.sort(rng.choice(len(public), len(rows), replace=False))
    site.held["mined"] = torch.cat([local, torch.from_numpy(public[rows])])
    return View.join([site.data, site.public.subset(rows)])


def what_to_train(site: Site) -> tuple[View, list[str]]:
    """Return this round's images, and the names of the site's own parameters; both use the same features."""
    options = site.recipe.options(Options)
    begins = options.centres == "mean-features" and f"{OWNED}{face.OWN_CENTRES}" not in site.kept
    if begins or options.hard_negatives not in (None, -1):
        site.held[face.LENT] = site.embed(site.net["model"], site.data)
    names, view = own_parameters(site), with_hard_negatives(site)
    site.held.pop(face.LENT, None)  # the first step changes the model
    return view, names


def train(site: Site, message: Message) -> Message:
    """Run lines 13 to 29 of Algorithm 1."""
    options = site.recipe.options(Options)
    site.load(message)
    view, names = what_to_train(site)
    if options.contrast.weight:
        hold_frozen(site, view)
    parts = ("model",) if options.hard_negatives is None else ("model", "centres")
    face.train_local_model(site, loss, view, parts, names)
    statistics = site.statistics()
    if options.count == "sampled":
        statistics["examples"] = torch.tensor(len(view))
    return site.tensors("model", "centres") | statistics | {"steps": torch.tensor(len(site.losses))}


STEPS = Upload("steps", "statistic", dtype="int64", guarantee="number of training steps of the turn")
TRAIN = Call(train, (Upload("weights", "weights", parts=("model", "centres")), EXAMPLES, LOSS, STEPS))


def check(recipe: Recipe) -> None:
    """Refuse an invalid backbone, and random public images without a threshold that gives their number."""
    face.check(recipe)
    options = recipe.options(Options)
    if options.random_negatives and options.hard_negatives in (None, -1):
        raise UserError(
            "recipe.method.random_negatives",
            "takes as many public images as exceed the threshold in hard_negatives, which has none here; set one",
        )


def least_identities(recipe: Recipe) -> int:
    """Return 1 with public identities, or 2 without: the softmax over a single class has no gradient."""
    return 2 if recipe.options(Options).hard_negatives is None else 1


METHOD = Method(
    name="fedfr",
    title="FedFR",
    paper=face.PAPER,
    advice="When there is a public set of people: hard negatives from it, and a personal model per site.",
    task="recognition",
    options=Options,
    network=face.network_with_public_centres,
    home={"model": Home.LENT, "centres": Home.LENT},
    calls={"train": TRAIN},
    server=fedavg.server,
    prediction=face.WITH_CUSTOMISED,
    check=check,
    begin=face.begin,
    delivered=("model",),
    supports=frozenset({"one_mean", "micro_batch"}),
    least_identities=least_identities,
)
