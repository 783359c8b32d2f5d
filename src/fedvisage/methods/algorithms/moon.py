"""MOON: model-contrastive federated learning.

Q. Li, B. He, D. Song, "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1. A site pulls the features of each
image towards those of the lent global model, and away from those of its own model at the end of its last round (Eq. 3);
this loss has weight µ next to the supervised loss (Eq. 4). The last local model stays at the site. In a site's first
round it is the global model, as in the authors' code, and the loss has no gradient. With µ = 0 this is FedAvg.

Deviations from the paper: no projection head. The paper puts a 2-layer MLP (256 outputs) before the output layer in all
methods that it compares; here the features are the input of a model's last layer (for faces: the embedding), so that
methods share one network. The compared models are in evaluation mode, as in the authors' code. µ is 1 by default, the
paper's best value for CIFAR-100 and Tiny-ImageNet; it tunes µ in {0.1, 1, 5, 10}. Sites count according to ``weight``
(the paper: by examples).
"""

from collections.abc import Callable

from pydantic import Field
from torch import Tensor, nn

from fedvisage.federation.method import Method
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message, under
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models.model import Loss, Model
from fedvisage.nn.losses.contrastive import model_contrastive
from fedvisage.recipe import MethodOptions

PAPER = "Li et al., Model-Contrastive Federated Learning, 2021"
PREVIOUS = "previous/"
"""Prefix of the last local model in a site's private state."""


class ContrastOptions(MethodOptions):
    """The weight µ of the contrastive loss, and its temperature τ."""

    mu: float = Field(1.0, ge=0)
    """Weight µ of the contrastive loss; 0 is FedAvg."""
    temperature: float = Field(0.5, gt=0)
    """Temperature τ of the contrastive loss."""


def with_frozen_models(minimise: fedavg.Turn, *parts: str) -> fedavg.Turn:
    """Return local work that has frozen copies of the global and the last local model, and stores its own result."""

    def train(site: Site, message: Message) -> Message:
        if not site.recipe.options(ContrastOptions).mu:
            return minimise(site, message)
        site.held["global"] = site.frozen(message, *parts)
        site.held["previous"] = site.frozen(under(PREVIOUS, site.kept) or message, *parts)
        reply = minimise(site, message)
        site.kept.update({f"{PREVIOUS}{name}": value for name, value in site.tensors(*parts).items()})
        return reply

    return train


def contrast(
    site: Site, images: Tensor, features: Tensor, features_of: Callable[[nn.ModuleDict, Tensor], Tensor]
) -> Tensor:
    """Return µ times Eq. 3 for the features of a batch; computes nothing if µ is 0."""
    options = site.recipe.options(ContrastOptions)
    if not options.mu:
        return features.new_zeros(())
    positive, negative = (features_of(site.held[name], images).float() for name in ("global", "previous"))
    return options.mu * model_contrastive(features.float(), positive, negative, options.temperature)


def with_contrast(model: Model) -> Loss:
    """Return Eq. 4: the model's own loss plus the model-contrastive loss, from one forward pass."""

    def loss(site: Site, batch: Batch) -> Tensor:
        with site.autocast():
            features = model.represent(site.net, batch.images)
            contrasted = contrast(site, batch.images, features, model.represent)
        return model.supervise(site, batch, features) + contrasted

    return loss


def moon(model: Model) -> Method:
    """Return MOON on a model."""
    return fedavg.on_model(
        model,
        fedavg.options_on(model, ContrastOptions),
        name="moon",
        title="MOON",
        paper=PAPER,
        advice="When sites drift apart: a contrastive term draws features to the common model's; more work per step.",
        loss=with_contrast(model),
        wrap_turn=lambda turn: with_frozen_models(turn, *model.parts),
    )
