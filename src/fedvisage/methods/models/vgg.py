"""FedMA's network: a plain VGG without BatchNorm and with one live logit; each layer is a separate part."""

from torch import Tensor, nn

from fedvisage.methods.models.model import classifier_model
from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.vgg import LAYERS, VGG, apply_layers, vgg
from fedvisage.recipe import MethodOptions, Recipe


class Options(MethodOptions):
    """The network."""

    network: VGG = VGG()


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the network."""
    return vgg(recipe.options(Options).network, CHANNELS[recipe.input.colour])


def represent(net: nn.ModuleDict, images: Tensor) -> Tensor:
    """Return the input of the last layer."""
    return apply_layers(net, images, LAYERS[:-1])


def head(net: nn.ModuleDict, features: Tensor) -> Tensor:
    """Return the live logit."""
    return apply_layers(net, features, LAYERS[-1:])


MODEL = classifier_model(
    name="fedma-vgg",
    title="VGG",
    advice="Attack detection: FedMA's VGG without BatchNorm.",
    options=Options,
    network=network,
    parts=LAYERS,
    represent=represent,
    head=head,
)
