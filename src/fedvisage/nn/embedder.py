"""The face recognition networks by name, and public class centres as a part of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from fedvisage.nn.embedding import Backbone
from fedvisage.nn.iresnet import IResNet, iresnet
from fedvisage.nn.mobilefacenet import MobileFaceNet, mobilefacenet
from fedvisage.nn.sphere import Sphere, sphere


class FaceNetwork(Backbone):
    """Which network, how wide, and how long a feature is."""

    name: Literal["sphere20", "sphere64", "iresnet18", "iresnet50", "mobilefacenet"] = "sphere64"


def face_network(options: FaceNetwork, size: int) -> nn.Sequential:
    """Build a network with random weights: images in [0, 1] to features."""
    shape = {"width": options.width, "embedding": options.embedding}
    builders: dict[str, Callable[[], nn.Sequential]] = {
        "sphere20": lambda: sphere(Sphere(depth=20, **shape), size),
        "sphere64": lambda: sphere(Sphere(depth=64, **shape), size),
        "iresnet18": lambda: iresnet(IResNet(depth=18, **shape), size),
        "iresnet50": lambda: iresnet(IResNet(depth=50, **shape), size),
        "mobilefacenet": lambda: mobilefacenet(MobileFaceNet(**shape), size),
    }
    return builders[options.name]()


class Centres(nn.Module):
    """A class centre for each of some identities, a row each; only their directions count."""

    def __init__(self, identities: int, embedding: int) -> None:
        """Draw random directions."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(identities, embedding))
        nn.init.normal_(self.weight, std=0.01)
