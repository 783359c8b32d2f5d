"""FedMA's network: a plain VGG without BatchNorm and with one live logit; each layer is a separate part."""

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.federation.declared import Member
from fedvisage.federation.site import Batch, Site
from fedvisage.methods.algorithms.fedavg import AveragingOptions
from fedvisage.methods.models.model import Model
from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.vgg import LAYERS, VGG, apply_layers, vgg
from fedvisage.recipe import MethodOptions, Recipe


class Options(MethodOptions):
    """The network."""

    network: VGG = VGG()


class Averaged(Options, AveragingOptions):
    """The network, and the weights of sites."""


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the network."""
    return vgg(recipe.options(Options).network, CHANNELS[recipe.input.colour])


def represent(net: nn.ModuleDict, images: Tensor) -> Tensor:
    """Return the input of the last layer."""
    return apply_layers(net, images, LAYERS[:-1])


def supervise(site: Site, batch: Batch, features: Tensor) -> Tensor:
    """Return the binary cross-entropy, averaged over the batch."""
    logits = apply_layers(site.net, features, LAYERS[-1:]).float().squeeze(1)
    return binary_cross_entropy_with_logits(logits, batch.labels)


def predict(member: Member) -> Tensor:
    """Return the live logit."""
    return apply_layers(member.net, member.images, LAYERS).squeeze(1)


def features(member: Member) -> Tensor:
    """Return the input of the last layer."""
    return represent(member.net, member.images)


MODEL = Model(
    name="fedma-vgg",
    title="VGG",
    task="pad",
    options=Options,
    averaged=Averaged,
    network=network,
    parts=LAYERS,
    represent=represent,
    supervise=supervise,
    user=predict,
    features=features,
)
