"""FedPAD: federated face presentation attack detection.

R. Shao, P. Perera, P. C. Yuen, V. M. Patel, "Federated Generalized Face Presentation Attack Detection", 2022, §III-A
and Algorithm 1. Data centres train a ResNet-18 on six channels (RGB and HSV) with binary cross-entropy (Eq. 1);
after some local epochs the server takes the uniform mean of all weights (Eq. 2, 3) and sends it back. Users download
the result and only infer.

Deviations from the paper: Eq. 1 is printed without its minus sign; it is minimised with it. The number of local epochs
(3) comes from the authors' later paper on test-time adaptation. BatchNorm statistics are averaged with the weights.
"""

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.federation.method import Home, Member, Method
from fedvisage.federation.site import Batch, Site
from fedvisage.methods import averaging
from fedvisage.nn.resnet import ResNet18, pooled_features, resnet18
from fedvisage.recipe import MethodOptions, Recipe

PAPER = "Shao et al., Federated Generalized Face Presentation Attack Detection, 2022"


class DetectorOptions(MethodOptions):
    """The network, which FedPAD shares with the baselines that it is measured against."""

    network: ResNet18 = ResNet18()


class Options(DetectorOptions, averaging.AveragingOptions):
    """FedPAD's options."""


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the one part, a ResNet-18."""
    return nn.ModuleDict({"model": resnet18(recipe.options(DetectorOptions).network, recipe.input.colour)})


def loss(site: Site, batch: Batch) -> Tensor:
    """Eq. 1, as a mean over the batch."""
    logits = site.net["model"](batch.images).float().squeeze(1)
    return binary_cross_entropy_with_logits(logits, batch.labels)


def user(member: Member) -> Tensor:
    """Return the live logit."""
    logits: Tensor = member.net["model"](member.images)
    return logits.squeeze(1)


def features(member: Member) -> Tensor:
    """Return what the last layer sees."""
    return pooled_features(member.net["model"], member.images)


TRAIN = averaging.training_call(loss, "model")

METHOD = Method(
    name="fedpad",
    title="FedPAD",
    paper=PAPER,
    task="pad",
    options=Options,
    network=network,
    home={"model": Home.LENT},
    calls={"train": TRAIN},
    server=averaging.server,
    user=user,
    features=features,
    averages=True,
)
