"""PrivacyFace's reversion attack (Q. Meng et al., ICLR 2022, A.2.4): faces rebuilt from what a site told.

A network learns on public images to invert a feature extractor (Adam, L1 loss, rate 1e-3 divided by 10 every 10 epochs,
50 epochs, weight decay 5e-4, batches of 512) and is then shown class centres, clusters and noisy clusters. Whether a
rebuilt face betrays somebody is asked of the extractor itself: is it similar enough to photos of that person?

Deviations from the paper: figures beside the pictures; the number of epochs and the batch can be lowered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.nn.functional import l1_loss

from fedvisage.metrics.similarity import Faces
from fedvisage.nn.reversion import reversion_network
from fedvisage.streams import scoped


@dataclass(frozen=True)
class Schooling:
    """How the attacker's network is trained; the defaults are the paper's."""

    epochs: int = 50
    batch: int = 512
    lr: float = 1e-3
    weight_decay: float = 5e-4
    decay_every: int = 10
    width: int = 512
    seed: int = 0


def train_reversion(features: Tensor, images: Tensor, schooling: Schooling) -> nn.Sequential:
    """Train the network on features and the images (N × 3 × size × size in [0, 1]) that they come from."""
    with scoped(schooling.seed, "reversion", "initial weights"):
        net = reversion_network(features.shape[1], images.shape[-1], schooling.width)
    optimizer = torch.optim.Adam(net.parameters(), lr=schooling.lr, weight_decay=schooling.weight_decay)
    decay = torch.optim.lr_scheduler.StepLR(optimizer, schooling.decay_every, 0.1)
    shuffle = Generator().manual_seed(schooling.seed)
    net.train()
    for _ in range(schooling.epochs):
        order = torch.randperm(len(features), generator=shuffle)
        for rows in torch.split(order, schooling.batch):
            if len(rows) > 1:  # BatchNorm has no statistics of one
                optimizer.zero_grad(set_to_none=True)
                l1_loss(net(features[rows]), images[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        decay.step()
    return net.eval()


@torch.no_grad()
def rebuilt(net: nn.Sequential, vectors: Tensor) -> Tensor:
    """Return the faces that the network draws for vectors."""
    faces: Tensor = net(vectors)
    return faces


def identified(
    seen: NDArray[np.float32], photos: Faces, right: list[frozenset[int]], threshold: float
) -> tuple[float, float]:
    """Return how often a rebuilt face passes for a person: one whom it stands for, and anybody else.

    ``seen`` are the extractor's features of rebuilt faces. Both are shares of comparisons with photos that reach the
    threshold, so that the second is what the first would be by chance.
    """
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (seen, photos.features)]
    passed = unit[0] @ unit[1].T >= threshold
    own = np.array([[int(name) in truth for name in photos.identity] for truth in right])
    return _share(passed, own), _share(passed, ~own)


def _share(passed: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
    return float(passed[among].mean()) if among.any() else 0.0
