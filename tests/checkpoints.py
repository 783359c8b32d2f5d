"""Checkpoints of MiniFASNets with random weights, as their authors write them, and catalogue entries for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from tests.starts import published_networks
from torch import Tensor

from fedvisage.base.files import file_digest
from fedvisage.starts.published import PublishedFile, PublishedModel, read_catalogue

SIZE = 80


class MakesDirectory:
    """Makes a directory when it is unpickled, as code in a checkpoint could."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def random_minifasnet(variant: str, seed: int = 0) -> published_networks.MiniFASNet:
    net = published_networks.MiniFASNet(variant, SIZE)
    published_networks.randomise(net, seed)
    first = net.conv1.get_submodule("bn").running_var
    assert isinstance(first, Tensor)
    first.mul_(200.0**2)  # pixels are between 0 and 255
    return net


def log_odds(net: published_networks.MiniFASNet, images: Tensor) -> Tensor:
    """Return the authors' log-odds of a living face for RGB pictures, N×3×80×80 of uint8."""
    with torch.no_grad():
        probabilities: Tensor = net(images.flip(1).float()).double().softmax(dim=1)
    return probabilities[:, 1].logit()


def entry(name: str, *paths: Path, **changes: object) -> PublishedModel:
    """Return the catalogue's entry with these files in place of the authors'."""
    files = tuple(
        PublishedFile(address=path.as_uri(), sha256=file_digest(path), bytes=path.stat().st_size) for path in paths
    )
    return read_catalogue()[name].model_copy(update={"files": files, **changes})


def save_checkpoint(net: torch.nn.Module, path: Path) -> Path:
    """Write the weights in the format of the published files, as from several GPUs."""
    state = {f"module.{name}": value for name, value in net.state_dict().items()}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    return path


def save_pair(folder: Path) -> tuple[PublishedModel, dict[str, published_networks.MiniFASNet]]:
    """Write two checkpoints, and return the entry `minifasnet` for them."""
    nets = {"v2": random_minifasnet("v2", 1), "v1se": random_minifasnet("v1se", 2)}
    return entry("minifasnet", *(save_checkpoint(net, folder / f"{name}.pth") for name, net in nets.items())), nets
