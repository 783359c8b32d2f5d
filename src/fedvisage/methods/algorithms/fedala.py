"""FedALA: each site learns how far its model follows the common one before it trains.

J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan, "FedALA: Adaptive Local Aggregation for Personalized
Federated Learning", AAAI 2023, Algorithm 1. From its second round on, a site starts from

    Θ̂_k = Θ_k + (Θ − Θ_k) ⊙ W_k,    W_k ∈ [0, 1]

in the highest layers, where Θ is the lent model and Θ_k the site's local model of its last round; the lower layers are
the lent ones. W_k starts at 1 and learns by steps on a sample of the site's images, with all weights fixed:

    W_k ← clip(W_k − η ∇L(Θ̂_k) ⊙ (Θ − Θ_k), 0, 1)

The first time it learns until the loss settles, later in one pass. The server averages the local models, which are also
the sites' personal models. With η = 0 (``rate``) all W_k stay 1, and this is FedAvg.

Deviations from the paper: the layers in question are counted in tensors (``tensors``), as in the authors' code, whose
defaults these are; its README gives 0.01 as the paper's threshold. The sample is drawn anew in each round without
replacement. The loss of a pass is the mean over its batches, and the first learning ends after 100 passes at the
latest. A site's class centres have no W. BatchNorm's statistics are the lent ones. Sites count according to ``weight``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from pydantic import Field

from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.federation.method import Method
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message, plain, under
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models.model import GENERIC_AND_LOCAL, LOCAL, Model, keep_local
from fedvisage.recipe import MethodOptions

PAPER = "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, 2023"
MIXING = "mixing"
"""Prefix of W in a site's private state, and the purpose of its draws."""
RECENT, MOST_PASSES = 10, 100
"""Number of passes whose losses must agree, and of passes of the first learning at most."""


class MixingOptions(MethodOptions):
    """The learning of the weights W between a site's local model and the lent one."""

    rate: float = Field(1.0, ge=0)
    """Learning rate η of the weights W; 0 is FedAvg."""
    share: float = Field(0.8, gt=0, le=1)
    """Share of the site's images that the weights W learn from."""
    tensors: int = Field(2, ge=1)
    """Number of trained tensors, counted from the last one, that have weights W; all others are lent."""
    threshold: float = Field(0.1, ge=0)
    """Standard deviation of the losses of ten passes below which the first learning ends."""


def with_local_start(turn: fedavg.Turn, model: Model) -> fedavg.Turn:
    """Return local work from the mix of the lent and the local model; the site stores the result."""

    def train(site: Site, message: Message) -> Message:
        local = under(LOCAL, site.kept)
        mixed = mix(site, model, message, local) if local and site.recipe.options(MixingOptions).rate else {}
        reply = turn(site, message | mixed)
        keep_local(site, *model.parts)
        return reply

    return train


def mix(site: Site, model: Model, message: Message, local: Message) -> Message:
    """Learn W, store it, and return Θ̂ for the highest layers."""
    options = site.recipe.options(MixingOptions)
    site.load(message)
    trained = [(name, value) for name, value in site.net.named_parameters() if value.requires_grad]
    parameters = dict(trained[-options.tensors :])
    lent = {name: message[name] for name in parameters}
    own = {name: local[name].to(value) for name, value in lent.items()}
    stored = under(f"{MIXING}/", site.kept)
    weights = {name: stored[name].to(value) if stored else torch.ones_like(value) for name, value in lent.items()}
    sample, losses = draw_sample(site, options.share), list[float]()
    place(parameters, own, lent, weights)
    for _ in range(1 if stored else MOST_PASSES):
        values = []
        for batch in site.batches_of(sample, epochs=1, purpose=MIXING):
            with site.autocast():
                loss = model.loss(site, batch)
            slopes = torch.autograd.grad(loss, list(parameters.values()))
            for name, slope in zip(parameters, slopes, strict=True):
                weights[name] = (weights[name] - options.rate * slope * (lent[name] - own[name])).clamp(0, 1)
            place(parameters, own, lent, weights)
            values.append(loss.detach())
        losses.append(float(torch.stack(values).mean()))
        if len(losses) > RECENT and np.std(losses[-RECENT:]) < options.threshold:
            break
    site.kept.update({f"{MIXING}/{name}": plain(value) for name, value in weights.items()})
    return {name: value.detach().clone() for name, value in parameters.items()}


def draw_sample(site: Site, share: float) -> View:
    """Draw a share of the site's images, two at least, without replacement."""
    rng, count = numpy_rng(site.recipe.runtime.seed, site.name, site.round, MIXING), len(site.data)
    chosen = rng.choice(count, size=max(2, int(share * count)), replace=False)
    return site.data.subset(np.sort(chosen))


def place(parameters: dict[str, torch.nn.Parameter], own: Message, lent: Message, weights: Message) -> None:
    """Set the parameters to the mix of the site's own and the lent ones."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.lerp(own[name], lent[name], weights[name]))


def fedala(model: Model) -> Method:
    """Return FedALA on a model."""
    method = fedavg.on_model(
        model,
        fedavg.options_on(model, MixingOptions),
        name="fedala",
        title="FedALA",
        paper=PAPER,
        advice="Each site learns how much of the mean to start from.",
        wrap_turn=lambda turn: with_local_start(turn, model),
        supports=fedavg.EVERYTHING - {"micro_batch"},
    )
    return replace(method, prediction=replace(model.prediction, personal=GENERIC_AND_LOCAL))
