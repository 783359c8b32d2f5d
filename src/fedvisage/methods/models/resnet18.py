"""ResNet-18 on six channels, RGB and HSV, with one live logit: FedPAD's network and loss (Eq. 1).

R. Shao, P. Perera, P. C. Yuen, V. M. Patel, "Federated Generalized Face Presentation Attack Detection", 2022, §III-A
and §IV-A4.
"""

from torch import Tensor, nn

from fedvisage.base.errors import UserError
from fedvisage.methods.models.model import AveragingOptions, classifier_model
from fedvisage.nn.resnet import ResNet18, pooled_features, resnet18
from fedvisage.recipe import MethodOptions, Recipe


class DetectorOptions(MethodOptions):
    """The network, which FedPAD shares with its baselines."""

    network: ResNet18 = ResNet18()


class Options(DetectorOptions, AveragingOptions):
    """The network, and the weights of sites."""


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the network as a single part."""
    return nn.ModuleDict({"model": resnet18(recipe.options(DetectorOptions).network, recipe.input.colour)})


def check(recipe: Recipe) -> None:
    """Refuse what needs BatchNorm's statistics if the network has none."""
    without = recipe.options(DetectorOptions).network.without_batchnorm
    if not without:
        return
    if recipe.training.statistics in ("exact", "frozen"):
        problem = f"{recipe.training.statistics} is about BatchNorm's statistics, which {without} does not have"
        raise UserError("recipe.training.statistics", f"{problem}; leave it out, or set norm: batch")
    if recipe.evaluation.adapt is not None:
        problem = f"adapts BatchNorm layers, which {without} does not have"
        raise UserError("recipe.evaluation.adapt", f"{problem}; set adapt: none, or norm: batch")


def represent(net: nn.ModuleDict, images: Tensor) -> Tensor:
    """Return the input of the last layer."""
    return pooled_features(net["model"], images)


def head(net: nn.ModuleDict, features: Tensor) -> Tensor:
    """Return the live logit of Eq. 1."""
    logits: Tensor = net["model"].get_submodule("fc")(features)
    return logits


MODEL = classifier_model(
    name="resnet18",
    title="ResNet-18",
    advice="Attack detection: FedPAD's network, trained from random weights or a start; the default.",
    options=DetectorOptions,
    network=network,
    parts=("model",),
    represent=represent,
    head=head,
    check=check,
)
