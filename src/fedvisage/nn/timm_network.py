"""timm's image networks by name, for any number of channels and outputs, with weights from a local file only.

Pixels are in [0, 1]. RGB is normalised as the architecture's published weights expect, and hue, saturation and value to
[−1, 1]. Weights for three channels also fit a network with six: the additional channels start with zero weights.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_tensors
from fedvisage.nn.inputs import CHANNELS
from fedvisage.recipe import Input, Section

PLACE = "recipe.method.network"
RGB = 3


class TimmNetwork(Section):
    """A timm architecture, and a safetensors file with its initial weights."""

    unset: ClassVar[frozenset[str]] = frozenset({"weights"})
    arch: str = Field(min_length=1)
    """Name of a timm architecture."""
    weights: str | None = None
    """A safetensors file with its initial weights; nothing is downloaded."""


class NormalisedNetwork(nn.Module):
    """A timm network with input normalisation."""

    def __init__(self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """Store the network, and the mean and standard deviation of each channel."""
        super().__init__()
        self.network = network
        self.mean, self.std = (
            nn.Buffer(torch.tensor(values)[:, None, None], persistent=False) for values in (mean, std)
        )

    @property
    def width(self) -> int:
        """Number of inputs of the last layer."""
        network = cast(Any, self.network)
        return int(getattr(network, "head_hidden_size", None) or network.num_features)

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs."""
        logits: Tensor = self.network(self._normalise(images))
        return logits

    def pool_features(self, images: Tensor) -> Tensor:
        """Return the inputs of the last layer."""
        network = cast(Any, self.network)
        features: Tensor = network.forward_head(network.forward_features(self._normalise(images)), pre_logits=True)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """Return the outputs for given inputs of the last layer."""
        last: nn.Module = cast(Any, self.network).get_classifier()
        if isinstance(last, nn.Conv2d):  # a 1×1 convolution
            return cast(Tensor, last(features[..., None, None])).flatten(1)
        return cast(Tensor, last(features))

    def _normalise(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def check_architecture(arch: str) -> None:
    """Raise a UserError for names outside timm's list, because timm would look for them elsewhere."""
    import timm

    if not timm.is_model(arch):
        near = get_close_matches(arch, timm.list_models(), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `timm.list_models()` names them"
        raise UserError(f"{PLACE}.arch", f"{arch!r} is not a timm architecture{hint}")


def timm_network(settings: TimmNetwork, image: Input, outputs: int) -> NormalisedNetwork:
    """Build a network with random weights; 0 outputs omit its last layer."""
    import timm

    check_architecture(settings.arch)
    published = timm.get_pretrained_cfg(settings.arch)
    fixed = {"img_size": image.size} if published is not None and published.fixed_input_size else {}
    channels = CHANNELS[image.colour]
    try:
        network = timm.create_model(settings.arch, pretrained=False, num_classes=outputs, in_chans=channels, **fixed)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{PLACE}.arch", f"{settings.arch} cannot be built for {image.size} pixels: {error}") from error
    mean, std = (published.mean, published.std) if published is not None else ((0.5,) * RGB, (0.5,) * RGB)
    half = (0.5,) * (channels - RGB)
    normalised = NormalisedNetwork(network, (*mean, *half), (*std, *half))
    _try(normalised, settings.arch, torch.full((1, channels, image.size, image.size), 0.5))
    return normalised


def _try(whole: NormalisedNetwork, arch: str, images: Tensor) -> None:
    """Raise a UserError if a network rejects the images, or its last layer does not follow its pooled features."""
    place, shapes = f"{PLACE}.arch", ("forward_features", "forward_head", "get_classifier")
    if not all(hasattr(whole.network, name) for name in shapes):
        raise UserError(place, f"{arch} does not expose its features; choose another")
    if not isinstance(cast(Any, whole.network).get_classifier(), nn.Module):
        raise UserError(place, f"{arch} has several classifier heads; choose one that is not distilled")
    whole.eval()
    try:
        with torch.no_grad():
            expected, classified = whole(images), whole.classify(whole.pool_features(images))
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(place, f"{arch} does not accept images of {images.shape[-1]} pixels: {error}") from error
    whole.train()
    alike = expected.is_meta or torch.allclose(classified, expected, atol=1e-4)  # meta tensors have no values
    if classified.shape != expected.shape or not alike:
        raise UserError(place, f"{arch} applies more than its last layer to its features; choose another")


def load_weights(whole: NormalisedNetwork, path: Path, *, last_layer: bool = False) -> None:
    """Load a file's weights into the network, by default except the last layer, which is for other classes."""
    place = f"{PLACE}.weights"
    if not path.is_file():
        raise UserError(place, f"{path} does not exist; give a safetensors file from timm, or leave it out")
    weights, _ = read_tensors(path)
    state = whole.network.state_dict()
    # Tensors of the last layer are matched by identity, because their names differ between architectures.
    last = {id(value) for value in cast(Any, whole.network).get_classifier().state_dict(keep_vars=True).values()}
    last_names = {name for name, value in whole.network.state_dict(keep_vars=True).items() if id(value) in last}
    for name in (name for name in state if last_layer or name not in last_names):
        if name not in weights:
            raise UserError(place, f"{path} has no {name}; it belongs to a different network")
        value, wanted = weights[name], state[name]
        # The first layer of a network with more channels than RGB gets zeros for the additional ones.
        rgb = value.ndim == wanted.ndim == 4 and value.shape[1] == RGB < wanted.shape[1]
        if rgb and value[:, :1].shape == wanted[:, :1].shape:
            additional = value.new_zeros(value.shape[0], wanted.shape[1] - RGB, *value.shape[2:])
            value = torch.cat([value, additional], dim=1)
        if value.shape != wanted.shape:
            shapes = f"{tuple(weights[name].shape)}, but the network expects {tuple(wanted.shape)}"
            raise UserError(place, f"{path}: {name} has shape {shapes}")
        state[name] = value
    whole.network.load_state_dict(state)
