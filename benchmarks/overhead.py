"""What the federation costs: FedPAD's images/s through the whole house, against a plain loop over the same batches.

The two take batch and batch in turn, so that a machine whose speed changes by the minute changes it for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.beside import beside
from benchmarks.measurement import Measurement, rendered
from fedvisage import recipe as recipes
from fedvisage.data.batches import View, epoch_batches
from fedvisage.data.prepared import PreparedSet
from fedvisage.methods import read_method
from fedvisage.nn.compute import resolve_compute
from fedvisage.nn.inputs import prepare
from fedvisage.nn.resnet import ResNet18, resnet18
from fedvisage.recipe import Recipe

EPOCHS, BATCH, SIZE, DOMAINS = 3, 32, 96, ("O", "C", "I")


def measure(cache: Path, rounds: int = 3) -> Measurement:
    """Compare rounds of three epochs on three sites, with aggregation, ledger and checkpoint, to the bare loop."""
    sets = {name: rendered(cache, name, 8, SIZE) for name in DOMAINS}
    views = [View.of(PreparedSet.open(path), "train") for path in sets.values()]
    images = sum(len(view) for view in views) * EPOCHS
    laps = beside(_recipe(sets, 1 + rounds), cache, _plain(views))[1:]
    whole, plain = (median(column) for column in zip(*laps, strict=True))
    ratios = [theirs / ours for ours, theirs in laps]
    ratio = median(ratios)
    return Measurement(
        "FedPAD through the federation against a plain PyTorch loop (images a second of processor time)",
        "≥ 0.97",
        f"{ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f} in {rounds} rounds; {images / whole:.1f} / "
        f"{images / plain:.1f}, ResNet-18, {SIZE} px, batch {BATCH}, {images} images a round)",
        ratio >= 0.97,
    )


def _recipe(sets: dict[str, Path], rounds: int) -> Recipe:
    tree = {
        "method": {"name": "fedpad"},
        "data": {"sites": {name: str(path) for name, path in sets.items()}},
        "input": {"size": SIZE},
        "training": {"rounds": rounds, "local": {"epochs": EPOCHS}, "batch": BATCH},
        "runtime": {"threads": torch.get_num_threads()},
    }
    return recipes.validate(tree, read_method)


def _plain(views: list[View]) -> Iterator[None]:
    """Do the same work without the house: read, prepare, forward, backward, step; a batch for each value."""
    compute = resolve_compute("cpu", "auto")
    while True:
        for view in views:
            net = resnet18(ResNet18(), "rgb+hsv")
            compute.place(net)
            optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
            for epoch in range(EPOCHS):
                for positions in epoch_batches(view, np.random.default_rng(epoch), size=BATCH, sampling="shuffled"):
                    batch = view.batch(positions)
                    ready = prepare(batch.images, "rgb+hsv", compute.device)
                    with compute.autocast():
                        loss = binary_cross_entropy_with_logits(net(ready).float().squeeze(1), batch.labels)
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                    yield
