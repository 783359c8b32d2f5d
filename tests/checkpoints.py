"""Checkpoints of MiniFASNets with random weights, as their authors write them, and catalogue entries for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from tests.starts import theirs
from torch import Tensor

from fedvisage.base.files import file_digest
from fedvisage.starts.published import CATALOGUE, PublishedFile, PublishedModel

SIZE = 80


def random_minifasnet(variant: str, seed: int = 0) -> theirs.MiniFASNet:
    net = theirs.MiniFASNet(variant, SIZE)
    theirs.shaken(net, seed)
    first = net.conv1.get_submodule("bn").running_var
    assert isinstance(first, Tensor)
    first.mul_(200.0**2)  # pixels are between 0 and 255
    return net


def log_odds(net: theirs.MiniFASNet, images: Tensor) -> Tensor:
    """Return the authors' log-odds of a living face for RGB pictures, N×3×80×80 of uint8."""
    with torch.no_grad():
        return net(images.flip(1).float()).double().softmax(dim=1)[:, 1].logit()


def entry_of(path: Path, address: str = "") -> PublishedFile:
    return PublishedFile(path.name, address or path.as_uri(), file_digest(path), path.stat().st_size)


def save_checkpoint(net: torch.nn.Module, path: Path, *, archive: bool = False) -> PublishedFile:
    """Write the weights in the older format of the published files, or in the newer one, as from several GPUs."""
    state = {f"module.{name}": value for name, value in net.state_dict().items()}
    torch.save(state, path, _use_new_zipfile_serialization=archive)
    return entry_of(path)


def save_pair(folder: Path) -> tuple[PublishedModel, dict[str, theirs.MiniFASNet]]:
    """Write two checkpoints, and return the entry `minifasnet` for them."""
    nets = {"v2": random_minifasnet("v2", 1), "v1se": random_minifasnet("v1se", 2)}
    files = tuple(save_checkpoint(net, folder / f"{name}.pth") for name, net in nets.items())
    return replace(CATALOGUE["minifasnet"], files=files), nets
