"""MOON: model-contrastive federated learning.

Q. Li, B. He, D. Song, "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1. A site pulls the features of each
image towards those of the global model that it was lent, and away from those of the model with which it ended its last
turn (Eq. 3); this loss counts µ beside the supervised one (Eq. 4). The last local model stays at the site; in a site's
first turn it is the global model, as in the authors' code, and the loss has no gradient. With µ = 0 this is FedPAD.

Deviations from the paper: no projection head. The paper puts a 2-layer MLP (256 outputs) before the output layer, in
all methods that it compares; here the features are what FedPAD's last layer sees, so that methods share one network.
The compared models are in evaluation mode, as in the authors' code. µ is 1 by default, the paper's best value for
CIFAR-100 and Tiny-ImageNet; it tunes µ in {0.1, 1, 5, 10}. Sites count as ``weight`` says (the paper: by examples).
"""

from collections.abc import Callable
from dataclasses import replace

from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.federation.method import Call, Message
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import under
from fedvisage.methods import averaging, fedpad
from fedvisage.nn.losses.contrastive import model_contrastive
from fedvisage.nn.resnet import pooled_features
from fedvisage.recipe import MethodOptions

Turn = Callable[[Site, Message], Message]
PREVIOUS = "previous/"
"""Where the last local model stands among a site's private state."""


class Contrast(MethodOptions):
    """The weight µ of the contrastive loss, and its temperature τ."""

    mu: float = Field(1.0, ge=0)
    temperature: float = Field(0.5, gt=0)


class Options(fedpad.Options, Contrast):
    """FedPAD's options, µ and τ."""


def remembering(minimise: Turn, *parts: str) -> Turn:
    """Return a turn beside frozen copies of the global and the last local model; its result is kept for the next."""

    def train(site: Site, message: Message) -> Message:
        if not site.recipe.options(Contrast).mu:
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
    """Return µ times Eq. 3 for features of some images; nothing is computed where µ is 0."""
    options = site.recipe.options(Contrast)
    if not options.mu:
        return features.new_zeros(())
    wanted, unwanted = (features_of(site.held[name], images).float() for name in ("global", "previous"))
    return options.mu * model_contrastive(features.float(), wanted, unwanted, options.temperature)


def loss(site: Site, batch: Batch) -> Tensor:
    """Eq. 4: binary cross-entropy and the model-contrastive loss, on one forward pass."""
    features = _features(site.net, batch.images)
    logits = site.net["model"].get_submodule("fc")(features).float().squeeze(1)
    supervised = binary_cross_entropy_with_logits(logits, batch.labels)
    return supervised + contrast(site, batch.images, features, _features)


def _features(net: nn.ModuleDict, images: Tensor) -> Tensor:
    return pooled_features(net["model"], images)


METHOD = replace(
    fedpad.METHOD,
    name="moon",
    title="MOON",
    paper="Li et al., Model-Contrastive Federated Learning, 2021",
    options=Options,
    calls={"train": Call(remembering(averaging.local_training(loss, "model"), "model"), fedpad.TRAIN.uploads)},
)
