"""Is the rendered data as hard as the real data? A table of who generalises to whom, and pictures to look at.

A ResNet-18 is trained from scratch on one domain at a time and tested on held-out subjects of that domain and on the
three others. Difficulty is set here, before any method is compared, and then frozen with the renderer's version:
AUC of at least 0.97 at home, and from 0.60 to 0.90 on average abroad (the real datasets give about 0.70).

    python benchmarks/calibrate.py [--threads 2] [--out docs]
"""

import argparse
import platform
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from fedvisage.data.prepared import PreparedSet
from fedvisage.faces.synthetic.domains import DOMAINS, find_domain
from fedvisage.faces.synthetic.sets import RENDERER_VERSION, Synthesis, synthesise
from fedvisage.nn import torchvision_cpu  # noqa: F401  (must come before timm)
from fedvisage.nn.inputs import prepare
from fedvisage.nn.precision import Compute, choose
from fedvisage.streams import numpy_rng, scoped

AT_HOME = 0.97
ABROAD = (0.60, 0.90)
NAMES = ("O", "C", "I", "M")


@dataclass(frozen=True)
class Settings:
    """What is rendered, and how the network is trained."""

    frames: int = 900  # about, a domain
    epochs: int = 14
    batch: int = 32
    rate: float = 5e-4
    seed: int = 0


def specification(name: str, settings: Settings) -> Synthesis:
    """Return a set of about the wanted number of frames: many subjects, two frames a video."""
    domain = find_domain(name)
    videos = 2
    one = 2 * videos * (1 + domain.ratio)
    return Synthesis(name, subjects=round(settings.frames / one), videos=videos, frames=2, seed=settings.seed)


def train(data: PreparedSet, settings: Settings, compute: Compute) -> nn.Module:
    """Train on the set's subjects that are not held out: Adam, one cycle of the rate, mirrored and shifted images."""
    import timm

    with scoped(settings.seed, "calibrate", data.name):
        net = timm.create_model("resnet18", in_chans=6, num_classes=1)
    if compute.channels_last:
        net = net.to(memory_format=torch.channels_last)
    rows = data.select("train")
    label = torch.from_numpy(np.array(data.rows.label)).float()
    rng = numpy_rng(settings.seed, "calibrate", data.name)
    optimizer = torch.optim.Adam(net.parameters(), settings.rate)
    steps = settings.epochs * (len(rows) // settings.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.rate * 2, total_steps=steps)
    bonafide = float((label[rows] == 1).float().mean())
    weight = torch.tensor((1 - bonafide) / bonafide)
    for _ in range(settings.epochs):
        order = rng.permutation(rows)
        for start in range(0, len(order) - settings.batch + 1, settings.batch):
            chosen = order[start : start + settings.batch]
            images = _varied(np.array(data.images[np.sort(chosen)]), rng)
            with compute.autocast():
                live = net(prepare(images, "rgb+hsv", compute.device, compute.channels_last))[:, 0]
            loss = nn.functional.binary_cross_entropy_with_logits(
                live.float(), label[np.sort(chosen)], pos_weight=weight
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def _varied(images: NDArray[np.uint8], rng: np.random.Generator) -> Tensor:
    """Mirror half of the images and shift all by up to four pixels."""
    flipped = np.stack([image[:, ::-1] if mirror else image for image, mirror in zip(images, rng.random(len(images)) < 0.5, strict=True)])
    shift = tuple(rng.integers(-4, 5, 2))
    return torch.from_numpy(np.roll(flipped, shift, axis=(1, 2))).permute(0, 3, 1, 2)


@torch.no_grad()
def auc(net: nn.Module, data: PreparedSet, split: str | None, compute: Compute) -> float:
    """Return the frame-level area under the curve on one split of a set, or on all of it."""
    rows = data.select(split)
    scores = []
    for start in range(0, len(rows), 64):
        images = torch.from_numpy(np.array(data.images[rows[start : start + 64]])).permute(0, 3, 1, 2)
        with compute.autocast():
            scores.append(net(prepare(images, "rgb+hsv", compute.device, compute.channels_last))[:, 0].float())
    return float(roc_auc_score(np.array(data.rows.label)[rows], torch.cat(scores).numpy()))


def measure(sets: dict[str, PreparedSet], settings: Settings, compute: Compute) -> dict[str, dict[str, float]]:
    """Return AUC by the domain trained on and the domain tested on; at home on held-out subjects only."""
    table: dict[str, dict[str, float]] = {}
    for source, data in sets.items():
        net = train(data, settings, compute)
        table[source] = {
            target: auc(net, sets[target], "heldout" if target == source else None, compute) for target in sets
        }
        print(source, " ".join(f"{target}={value:.3f}" for target, value in table[source].items()), flush=True)
    return table
