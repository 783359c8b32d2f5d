"""What the federation costs: FedPAD's images/s through the whole house, against a plain loop over the same batches."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.measurement import Measurement, processor_seconds, rendered
from fedvisage import recipe as recipes
from fedvisage.data.batches import View, order
from fedvisage.data.prepared import PreparedSet
from fedvisage.methods import read_method
from fedvisage.nn.inputs import prepare
from fedvisage.nn.precision import choose
from fedvisage.nn.resnet import ResNet18, resnet18
from fedvisage.progress import Reporter
from fedvisage.runs.run import run

EPOCHS, BATCH, SIZE, DOMAINS = 3, 32, 96, ("O", "C", "I")


def measure(cache: Path, repeats: int = 3) -> Measurement:
    """Compare a round of three epochs on three sites, with aggregation, ledger and checkpoint, to the bare loop.

    A run of two rounds less a run of one is what a round costs; the two sides are timed in turn, and the ratio is the
    median over pairs.
    """
    sets = {name: rendered(cache, name, 8, SIZE) for name in DOMAINS}
    views = [View.of(PreparedSet.open(path), "train") for path in sets.values()]
    images = sum(len(view) for view in views) * EPOCHS
    pairs = []
    for _ in range(repeats):
        plain = images / _plain_round(views)
        whole = images / (_run(sets, 2, cache) - _run(sets, 1, cache))
        pairs.append((whole / plain, whole, plain))
    ratio, whole, plain = sorted(pairs)[len(pairs) // 2]
    return Measurement(
        "FedPAD through the federation against a plain PyTorch loop (images a second of processor time)",
        "≥ 0.97",
        f"{ratio:.3f} ({whole:.1f} / {plain:.1f}, ResNet-18, {SIZE} px, batch {BATCH}, {images} images a round)",
        ratio >= 0.97,
    )


def _run(sets: dict[str, Path], rounds: int, cache: Path) -> float:
    tree = {
        "method": {"name": "fedpad"},
        "data": {"sites": {name: str(path) for name, path in sets.items()}},
        "input": {"size": SIZE},
        "training": {"rounds": rounds, "local": {"epochs": EPOCHS}, "batch": BATCH},
        "runtime": {"threads": torch.get_num_threads()},
    }
    recipe = recipes.validate(tree, read_method)
    with tempfile.TemporaryDirectory() as out:
        return processor_seconds(lambda: run(recipe, Path(out) / "run", cache, Reporter(Console(), quiet=True)))


def _plain_round(views: list[View]) -> float:
    """Time the same work without the house: read, prepare, forward, backward, step."""
    compute = choose("cpu", "auto")
    seconds = 0.0
    for view in views:
        net = resnet18(ResNet18(), "rgb+hsv")
        compute.place(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        began = time.process_time()
        for epoch in range(EPOCHS):
            for positions in order(view, np.random.default_rng(epoch), size=BATCH, sampling="shuffled"):
                batch = view.batch(positions)
                ready = prepare(batch.images, "rgb+hsv", compute.device)
                with compute.autocast():
                    loss = binary_cross_entropy_with_logits(net(ready).float().squeeze(1), batch.labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        seconds += time.process_time() - began
    return seconds
