"""What the federation costs: FedPAD's images/s through the whole house, against a plain loop over the same batches."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.measurement import Measurement, rendered
from fedvisage import recipe as recipes
from fedvisage.data.batches import View, order
from fedvisage.data.prepared import PreparedSet
from fedvisage.methods import options
from fedvisage.nn.inputs import prepare
from fedvisage.nn.precision import choose
from fedvisage.nn.resnet import ResNet18, resnet18
from fedvisage.progress import Reporter
from fedvisage.recipe import Recipe
from fedvisage.run import run

EPOCHS, BATCH, SIZE, DOMAINS = 3, 32, 96, ("O", "C", "I")


def measure(cache: Path, repeats: int = 3) -> Measurement:
    """Alternate both and compare the best of each; a round of three epochs on three sites, checkpoint included."""
    sets = {name: rendered(cache, name, 8, SIZE) for name in DOMAINS}
    recipe = _recipe(sets)
    torch.set_num_threads(recipe.runtime.threads)
    whole, plain = [], []
    for _ in range(repeats):
        plain.append(_plain_loop(sets, recipe))
        whole.append(_federation(recipe, cache))
    ratio = max(whole) / max(plain)
    return Measurement(
        "FedPAD through the federation against a plain PyTorch loop (images/s)",
        "≥ 0.97",
        f"{ratio:.3f} ({max(whole):.1f} / {max(plain):.1f}, ResNet-18, {SIZE} px, batch {BATCH}, best of {repeats})",
        ratio >= 0.97,
    )


def _recipe(sets: dict[str, Path]) -> Recipe:
    tree = {
        "method": {"name": "fedpad"},
        "data": {"sites": {name: str(path) for name, path in sets.items()}},
        "input": {"size": SIZE},
        "training": {"rounds": 1, "local": {"epochs": EPOCHS}, "batch": BATCH},
        "runtime": {"threads": torch.get_num_threads()},
    }
    return recipes.validate(tree, options())


def _views(sets: dict[str, Path]) -> list[View]:
    return [View.of(PreparedSet.open(path), "train") for path in sets.values()]


def _federation(recipe: Recipe, cache: Path) -> float:
    """Time a whole run less what a plain loop has no part in: judging (a run without rounds cannot exist)."""
    with tempfile.TemporaryDirectory() as out:
        trained = Path(out) / "run"
        began = time.perf_counter()
        run(recipe, trained, cache, Reporter(Console(), quiet=True))
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        run(recipe, Path(out) / "judged", cache, Reporter(Console(), quiet=True), trained=trained)
        judging = time.perf_counter() - began
    images = sum(len(view) for view in _views({n: Path(p) for n, p in recipe.data.sites.items()})) * EPOCHS
    return images / (seconds - judging)


def _plain_loop(sets: dict[str, Path], recipe: Recipe) -> float:
    compute = choose("cpu", recipe.runtime.precision)
    images, began = 0, time.perf_counter()
    for view in _views(sets):
        net = resnet18(ResNet18(), "rgb+hsv").to(compute.device)
        if compute.channels_last:
            net = net.to(memory_format=torch.channels_last)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for epoch in range(EPOCHS):
            for positions in order(view, np.random.default_rng(epoch), size=BATCH, sampling="shuffled"):
                batch = view.batch(positions)
                ready = prepare(batch.images, "rgb+hsv", compute.device, compute.channels_last)
                with compute.autocast():
                    loss = binary_cross_entropy_with_logits(net(ready).float().squeeze(1), batch.labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                images += len(positions)
    return images / (time.perf_counter() - began)
