"""FedGPAD: federated generalised face presentation attack detection by domain disentanglement.

R. Shao, P. Perera, P. C. Yuen, V. M. Patel, "Federated Generalized Face Presentation Attack Detection", 2022, §III-B
and Algorithm 2. Each data centre splits its features in two: a domain-invariant encoder with classifier (Eq. 4) and
depth estimator (Eq. 5) is shared; a domain-specific encoder and a decoder stay at the centre. Both features together
must reconstruct the image (Eq. 6), and should have nothing in common (Eq. 7). The shared parts are averaged (Eq. 10)
after every batch, as Algorithm 2 has no local loop; targets download encoder and classifier.

Deviations from the paper: Eq. 4 is printed without its minus sign and Eq. 8 without the plus before L_Rec. The printed
losses are sums, each of weight 1 unless the recipe sets others (``losses: printed``), and Eq. 7 has a product per image
(``difference: image``); the default follows the authors' released code: means weighted 10 (depth), 0.1 (reconstruction)
and 1 (difference, on features of unit length), with Eq. 7 as a matrix over the batch. Weights are initialised by
Xavier's uniform rule, the specific encoder separately, and poolings are resized to the depth estimator's 32×32 by
interpolation; ``network.initialisation``, ``.specific``, ``.depth_input`` and ``.classifier`` select the released
code's choices. As there, the decoder ends in Tanh without BatchNorm. ``network.encoder`` and ``.stem`` come from
neither: the first can replace Table II's encoders by FedPAD's ResNet-18, the second can make Table II's encoders
cheaper. 3-D masks count as flat, as in the paper; ``without_depth`` leaves named species out of Eq. 5 instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.base.errors import UserError
from fedvisage.data.overlap import SITE
from fedvisage.data.rows import Texts
from fedvisage.federation.method import Home, Member, Method, Prediction
from fedvisage.federation.site import Batch, Site
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.pad.fedpad import PAPER
from fedvisage.nn.fedgpad import Decoder, TableII, classifier, depth_estimator, encoder, initialise
from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.losses.disentanglement import Form, Products, difference, squared_error
from fedvisage.recipe import Recipe, Section

SHARED = ("encoder", "classifier", "depth")
SIDES = 32
"""Image sizes are multiples of this: encoders halve an image five times, and the decoder doubles it as often."""
PAPER_WEIGHTS = {"depth": 1.0, "reconstruction": 1.0, "difference": 1.0}
"""Weights for the sums of Eq. 8."""


class LossWeights(Section):
    """The weight of each loss relative to cross-entropy.

    A term of weight zero is not computed. Its parts stay in the network and, if they are shared, on the wire.
    """

    depth: float = Field(10.0, ge=0)
    """Weight of Eq. 5; 0 skips it."""
    reconstruction: float = Field(0.1, ge=0)
    """Weight of Eq. 6; 0 skips it."""
    difference: float = Field(1.0, ge=0)
    """Weight of Eq. 7; 0 skips it."""


class Options(fedavg.AveragingOptions):
    """FedGPAD's options; the switches of Tables VI and VII are weights of zero.

    ``without_depth`` names species, such as ``mask``, that the depth loss leaves out because their shape is real.
    """

    unset: ClassVar[frozenset[str]] = frozenset({"difference"})
    network: TableII = TableII()
    losses: Form = "mean"
    """``mean`` as in the authors' released code, or ``printed``, the sums of Eq. 4 to 8."""
    difference: Products | None = None
    """Products of Eq. 7: over the ``batch`` as in the released code, or one per ``image`` as printed. Unset: batch."""
    weights: LossWeights = LossWeights()
    """Weight of each loss relative to cross-entropy; with ``losses: printed`` each is 1."""
    without_depth: tuple[str, ...] = ()
    """Species with a real shape, such as ``[mask]``; the depth loss leaves them out."""

    @model_validator(mode="before")
    @classmethod
    def _sums_count_alike(cls, section: Any) -> Any:
        """Fill in weights of 1 for the printed sums; the section's own defaults belong to the means."""
        if not isinstance(section, Mapping) or section.get("losses") != "printed":
            return section
        weights = section.get("weights", {})
        return {**section, "weights": {**PAPER_WEIGHTS, **weights}} if isinstance(weights, Mapping) else section


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the five networks of Table II, or their counterparts for another encoder."""
    options, colour = recipe.options(Options).network, recipe.input.colour
    check_size(recipe)
    parts: dict[str, nn.Module] = {
        "encoder": encoder(options, colour),
        "classifier": classifier(options),
        "depth": depth_estimator(options),
        "specific": encoder(options, colour),
        "decoder": Decoder(CHANNELS[colour], options.width, recipe.input.size),
    }
    # A ResNet-18 keeps its own initialisation unless the recipe names another.
    as_drawn = ("encoder", "specific") if options.encoder == "resnet18" and options.initialisation is None else ()
    for part in (part for name, part in parts.items() if name not in as_drawn):
        initialise(part, options.initialisation or "xavier")
    if options.specific == "copied":
        parts["specific"].load_state_dict(parts["encoder"].state_dict())
    return nn.ModuleDict(parts)


def check_size(recipe: Recipe) -> None:
    """Reject images whose side Table II's networks cannot halve and double."""
    size = recipe.input.size
    if size % SIDES:
        problem = f"must be a multiple of {SIDES} for the networks of FedGPAD's Table II, got {size}"
        raise UserError("recipe.input.size", f"{problem}; prepare the sets at such a size")


def loss(site: Site, batch: Batch) -> Tensor:
    """Eq. 8, with both encoders on the same batch."""
    options = site.recipe.options(Options)
    form, weights, net = options.losses, options.weights, site.net
    invariant, pooled = net["encoder"](batch.images)
    logits = net["classifier"](invariant).float().squeeze(1)
    total = binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum" if form == "printed" else "mean")
    if weights.depth:
        estimated, exact = net["depth"](pooled).float(), depth_of(batch, site)
        total = total + weights.depth * depth_error(estimated, exact, batch.species, form, options.without_depth)
    if weights.reconstruction or weights.difference:
        specific, _ = net["specific"](batch.images)
        if weights.reconstruction:
            rebuilt = net["decoder"](invariant + specific).float()
            total = total + weights.reconstruction * squared_error(rebuilt, batch.images, form)
        if weights.difference:
            products = options.difference or "batch"
            total = total + weights.difference * difference(invariant.float(), specific.float(), form, products)
    return total


def depth_of(batch: Batch, site: Site) -> Tensor:
    """Return a batch's depth maps, or fail if the site has none."""
    if batch.depth is None:
        advice = "import it with --depth, or choose a method without a depth loss (for fedgpad: weights.depth=0)"
        problem = f"has no depth maps, which {site.recipe.method.name} needs; {advice}"
        raise UserError(f"{SITE}{site.name}", problem)
    return batch.depth


def depth_error(estimated: Tensor, exact: Tensor, species: Texts, form: Form, without: tuple[str, ...]) -> Tensor:
    """Return Eq. 5 over all images except those of the named species; zero if none is left."""
    included = ~np.isin(species, without)
    if not included.any():
        return estimated.sum() * 0.0  # all parts keep a gradient, which stateful optimizers expect
    if included.all():
        return squared_error(estimated, exact, form)
    rows = torch.from_numpy(np.flatnonzero(included)).to(estimated.device)
    return squared_error(estimated[rows], exact[rows], form)


def predict(member: Member) -> Tensor:
    """Return the live logit from encoder and classifier."""
    logits: Tensor = member.net["classifier"](features(member))
    return logits.squeeze(1)


def features(member: Member) -> Tensor:
    """Return the domain-invariant features."""
    invariant: Tensor = member.net["encoder"](member.images)[0]
    return invariant


METHOD = Method(
    name="fedgpad",
    title="FedGPAD",
    paper=PAPER,
    advice="When sites have depth maps and can send weights per batch; each site keeps its specific parts.",
    task="pad",
    options=Options,
    network=network,
    home={**dict.fromkeys(SHARED, Home.LENT), "specific": Home.SITE, "decoder": Home.SITE},
    calls={"train": fedavg.training_call(loss, *SHARED)},
    server=fedavg.server,
    prediction=Prediction(predict, features=features),
    delivered=("encoder", "classifier"),
    supports=frozenset({"one_mean"}),
)
