"""MixStyle: each site mixes the styles of its images, so that the common detector sees more styles than there are.

K. Zhou, Y. Yang, Y. Qiao, T. Xiang, "Domain Generalization with MixStyle", ICLR 2021, Eq. 4–6. The style of an image is
the mean µ and the standard deviation σ of each channel of its feature maps x. In training, an image gets a mixture of
its own style and that of another image of the batch:

    MixStyle(x) = (λ σ(x) + (1 − λ) σ(x̃)) · (x − µ(x)) / σ(x) + λ µ(x) + (1 − λ) µ(x̃),    λ ~ Beta(α, α).

The styles carry no gradient. Mixing follows the first two stages of FedPAD's ResNet-18, each with its own draws, for a
share of the batches. Sites average their weights as in FedPAD; with ``probability: 0`` this is FedPAD.

Deviations from the paper: it mixes images of several domains, while a site mixes its own, whose cameras and attacks
differ less. The partner is any image of the batch, as in the paper's variant without domain labels.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedvisage.base.streams import numpy_rng
from fedvisage.federation.site import Batch, Site
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models import resnet18
from fedvisage.nn.resnet import pooled_features

STAGES = ("layer1", "layer2")
EPS = 1e-6


class Options(resnet18.Options):
    """FedPAD's options, and how often and how strongly styles are mixed."""

    probability: float = Field(0.5, ge=0, le=1)
    """Share of the batches in which a stage mixes styles; 0 is FedPAD."""
    alpha: float = Field(0.1, gt=0)
    """Parameter α of the Beta distribution of λ; small values keep one of the two styles almost unchanged."""


def mix_styles(maps: Tensor, shares: Tensor, partners: Tensor) -> Tensor:
    """Return Eq. 6: maps with a ``share`` of their own style each, and the rest of that of their partners."""
    values, shares = maps.to(torch.promote_types(maps.dtype, torch.float32)), shares[:, None, None, None]
    variance, mean = torch.var_mean(values, dim=(2, 3), correction=0, keepdim=True)
    mean, spread = mean.detach(), (variance + EPS).sqrt().detach()
    mixed_mean = shares * mean + (1 - shares) * mean[partners]
    mixed_spread = shares * spread + (1 - shares) * spread[partners]
    return ((values - mean) / spread * mixed_spread + mixed_mean).to(maps.dtype)


def loss(site: Site, batch: Batch) -> Tensor:
    """Return FedPAD's loss on maps with mixed styles."""
    options, count = site.recipe.options(Options), len(batch.labels)
    # One stream per step, from which every stage draws in turn.
    rng = numpy_rng(site.recipe.runtime.seed, site.name, site.round, "styles", len(site.losses))

    def change(stage: str, maps: Tensor) -> Tensor:
        if stage not in STAGES or rng.random() >= options.probability:
            return maps
        shares = torch.from_numpy(rng.beta(options.alpha, options.alpha, count).astype(np.float32))
        partners = torch.from_numpy(rng.permutation(count))
        return mix_styles(maps, shares.to(maps.device), partners.to(maps.device))

    with site.autocast():
        features = pooled_features(site.net["model"], batch.images, change)
    return resnet18.MODEL.supervise(site, batch, features)


METHOD = fedavg.on_model(
    resnet18.MODEL,
    Options,
    name="mixstyle",
    title="MixStyle",
    paper="Zhou et al., Domain Generalization with MixStyle, 2021",
    advice="As fedpad; sites mix the styles of their images.",
    loss=loss,
    # The loss of an image depends on its batch.
    supports=fedavg.EVERYTHING - {"micro_batch"},
)
