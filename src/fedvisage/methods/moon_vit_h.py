"""MOON on ViT-H: FedAvg on ViT-H with the model-contrastive loss on class tokens (FedSIS, §5 and Table 1).

Q. Li, B. He, D. Song, "Model-Contrastive Federated Learning", CVPR 2021, Eq. 3 and 4, on the hybrid transformer of
N. Alkhunaizi et al., "FedSIS", 2023. With µ = 0 this is FedAvg on ViT-H.

Deviations from the paper: as in MOON; the features are the class token that the head receives. FedSIS does not say its
µ and τ.
"""

from dataclasses import replace

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedvisage.federation.method import Call
from fedvisage.federation.site import Batch, Site
from fedvisage.methods import averaging, fedavg_vit_h, moon, vit
from fedvisage.nn.vit import class_token


class Options(fedavg_vit_h.Options, moon.Contrast):
    """The options of FedAvg on ViT-H, µ and τ."""


def loss(site: Site, batch: Batch) -> Tensor:
    """Eq. 4: cross-entropy over the two classes and the model-contrastive loss, on one forward pass."""
    features = tokens_of(site.net, batch.images)
    supervised = cross_entropy(site.net["head"](features).float(), batch.labels.long())
    return supervised + moon.contrast(site, batch.images, features, tokens_of)


def tokens_of(net: nn.ModuleDict, images: Tensor) -> Tensor:
    """Return the class tokens of some images."""
    return class_token(net, net["tokenizer"](images))


UPLOADS = fedavg_vit_h.METHOD.calls["train"].uploads
TRAIN = moon.remembering(averaging.local_training(loss, *vit.PARTS), *vit.PARTS)
METHOD = replace(
    fedavg_vit_h.METHOD,
    name="moon-vit-h",
    title="MOON (ViT-H)",
    options=Options,
    calls={"train": Call(TRAIN, UPLOADS)},
)
