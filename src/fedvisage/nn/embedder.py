"""The face recognition networks by name, and public class centres as a part of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import model_validator
from torch import nn

from fedvisage.nn.embedding import Backbone
from fedvisage.nn.face_adapters import FaceAdapters, with_adapters
from fedvisage.nn.iresnet import IResNet, iresnet
from fedvisage.nn.mobilefacenet import MobileFaceNet, mobilefacenet, mobilefacenet_dw
from fedvisage.nn.sphere import Sphere, sphere
from fedvisage.nn.timm_network import TimmNetwork, Whole, load_weights, timm_network
from fedvisage.recipe import Input

NetworkName = Literal[
    "sphere20",
    "sphere64",
    "iresnet18",
    "iresnet50",
    "iresnet100",
    "mobilefacenet",
    "mobilefacenet-dw",
    "timm-embedding",
]


class FaceNetwork(Backbone):
    """Which network, how wide, and how long a feature is.

    ``timm-embedding`` is any image network of timm, ``arch``, with a head for features; its ``weights`` can come from a
    safetensors file of timm's. With ``adapters`` an iResNet is frozen, and small pieces in it learn and are sent.
    """

    unset: ClassVar[frozenset[str]] = frozenset({"arch", "weights", "adapters"})
    name: NetworkName = "sphere64"
    """The backbone."""
    arch: str | None = None
    """timm-embedding: the name of an architecture of timm's."""
    weights: str | None = None
    """timm-embedding: a safetensors file of its weights to start from; nothing is fetched. With adapters: a file that
    `fedvisage model convert` wrote, or a finished run's model, which each machine has."""
    adapters: FaceAdapters | None = None
    """iresnet18, iresnet50 and iresnet100: the network is frozen, and these learn in it."""

    @model_validator(mode="after")
    def _arch_is_for_timm(self) -> FaceNetwork:
        if (self.arch is None) == (self.name == "timm-embedding"):
            raise ValueError("arch names an architecture of timm's for timm-embedding, and for no other network")
        if self.adapters is not None and not self.name.startswith("iresnet"):
            raise ValueError(f"adapters are for iresnet18, iresnet50 and iresnet100, not for {self.name}")
        if self.weights is not None and self.name != "timm-embedding" and self.adapters is None:
            raise ValueError(
                f"weights is for timm-embedding and for adapters; {self.name} starts from training.start or pretrain"
            )
        return self


def face_network(options: FaceNetwork, size: int) -> nn.Module:
    """Build a network with random weights: images in [0, 1] to features; with adapters, it is frozen around them."""
    plain = _plain_network(options, size)
    return plain if options.adapters is None else with_adapters(plain, options.adapters, options.embedding)


def _plain_network(options: FaceNetwork, size: int) -> nn.Sequential:
    shape = {"width": options.width, "embedding": options.embedding}
    builders: dict[str, Callable[[], nn.Sequential]] = {
        "sphere20": lambda: sphere(Sphere(depth=20, **shape), size),
        "sphere64": lambda: sphere(Sphere(depth=64, **shape), size),
        "iresnet18": lambda: iresnet(IResNet(depth=18, **shape), size),
        "iresnet50": lambda: iresnet(IResNet(depth=50, **shape), size),
        "iresnet100": lambda: iresnet(IResNet(depth=100, **shape), size),
        "mobilefacenet": lambda: mobilefacenet(MobileFaceNet(**shape), size),
        "mobilefacenet-dw": lambda: mobilefacenet_dw(MobileFaceNet(**shape), size),
        "timm-embedding": lambda: timm_embedding(str(options.arch), options.embedding, size),
    }
    return builders[options.name]()


def timm_embedding(arch: str, embedding: int, size: int) -> nn.Sequential:
    """Build a network of timm with a head as recognition uses it: a linear layer, and BatchNorm behind it."""
    body = timm_network(TimmNetwork(arch=arch), Input(size=size, colour="rgb"), outputs=0)
    with torch.no_grad():
        width = body.eval()(torch.zeros(1, 3, size, size)).shape[1]
    return nn.Sequential(body.train(), nn.Linear(width, embedding, bias=False), nn.BatchNorm1d(embedding))


def load_backbone(network: nn.Module, path: Path) -> None:
    """Put a file's weights into the body of a network of timm's."""
    body = network.get_submodule("0")
    assert isinstance(body, Whole)
    load_weights(body, path)


class Centres(nn.Module):
    """A class centre for each of some identities, a row each; only their directions count."""

    def __init__(self, identities: int, embedding: int) -> None:
        """Draw random directions."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(identities, embedding))
        nn.init.normal_(self.weight, std=0.01)
