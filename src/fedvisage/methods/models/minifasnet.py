"""MiniFASNet with one live logit: the log-odds of its bona fide class against the other two.

Its published weights (Minivision, Silent-Face-Anti-Spoofing) are a start: `fedvisage model convert`.
"""

from torch import Tensor, nn

from fedvisage.methods.models.model import classifier_model
from fedvisage.nn.minifasnet import MiniFASNet, live_logit, minifasnet
from fedvisage.recipe import MethodOptions, Recipe


class Options(MethodOptions):
    """The network."""

    network: MiniFASNet = MiniFASNet()


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the network as a single part."""
    return nn.ModuleDict({"model": minifasnet(recipe.options(Options).network, recipe.input.colour, recipe.input.size)})


def represent(net: nn.ModuleDict, images: Tensor) -> Tensor:
    """Return the input of the last layer."""
    features = images
    for name, layer in net["model"].named_children():
        features = features if name == "classes" else layer(features)
    return features


def head(net: nn.ModuleDict, features: Tensor) -> Tensor:
    """Return the live logit."""
    return live_logit(net["model"].get_submodule("classes")(features))


MODEL = classifier_model(
    name="minifasnet",
    title="MiniFASNet",
    advice="Attack detection: a small network on 80 pixels; starts from published weights for real cameras.",
    options=Options,
    network=network,
    parts=("model",),
    represent=represent,
    head=head,
)
