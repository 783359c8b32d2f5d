"""What the federation costs where it is dearest: FedGPAD aggregates after every batch. Against plain training steps.

Both sides train the five networks of Table II with the four losses on batches of the same sets, one batch per site and
turn. The plain side is a loop as anybody would write it: no messages, checks, ledger or private state, and no averages.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from benchmarks.measurement import Measurement, processor_seconds, rendered
from fedvisage import recipe as recipes
from fedvisage.data.batches import Batch, View, order
from fedvisage.data.prepared import PreparedSet
from fedvisage.methods import read_method
from fedvisage.nn.fedgpad import Decoder, DepthEstimator, Encoder, TableII, classifier
from fedvisage.nn.inputs import CHANNELS, prepare
from fedvisage.nn.precision import Compute, choose
from fedvisage.progress import Reporter
from fedvisage.runs.run import run

COLOUR, SIZE, WIDTH, BATCH, TURNS, DOMAINS = "rgb+hsv", 96, 8, 16, 10, ("O", "C", "I")


def measure(cache: Path, repeats: int = 4) -> Measurement:
    """Compare rounds of the house to turns of the plain loop, measured in turn.

    What disturbs a measurement adds to it, so the least processor time counts: of the plain turns, of long and of
    short runs. The house's rounds are a long run less a short one; a checkpoint every 25 rounds, as in the demo, is not
    among them.
    """
    sets = {name: rendered(cache, name, 8, SIZE) for name in DOMAINS}
    views = [View.of(PreparedSet.open(path), "train") for path in sets.values()]
    tree = _tree(sets)
    times = [(_plain(views), _run(tree, 1 + TURNS, cache), _run(tree, 1, cache)) for _ in range(repeats)]
    least, long, short = (min(column) for column in zip(*times, strict=True))
    images = TURNS * BATCH * len(DOMAINS)
    plain, house = images / least, images / (long - short)
    return Measurement(
        "FedGPAD through the federation against plain PyTorch steps (images a second of processor time)",
        "≥ 0.97",
        f"{house / plain:.3f} ({house:.1f} / {plain:.1f}, Table II at width {WIDTH}, {SIZE} px, batch {BATCH}, "
        "aggregated after every batch)",
        house / plain >= 0.97,
    )


def _tree(sets: dict[str, Path]) -> dict[str, Any]:
    return {
        "method": {"name": "fedgpad", "network": {"width": WIDTH}},
        "data": {"sites": {name: str(path) for name, path in sets.items()}},
        "input": {"size": SIZE, "colour": COLOUR},
        "training": {"local": {"batches": 1}, "batch": BATCH, "sampling": "balanced"},
        "runtime": {"threads": torch.get_num_threads(), "checkpoint_every": 25},
    }


def _run(tree: dict[str, Any], rounds: int, cache: Path) -> float:
    recipe = recipes.validate({**tree, "training": {**tree["training"], "rounds": rounds}}, read_method)
    with tempfile.TemporaryDirectory() as out:
        return processor_seconds(lambda: run(recipe, Path(out) / "run", cache, Reporter(Console(), quiet=True)))


def _plain(views: list[View]) -> float:
    """Time the turns of a plain loop, after one that does not count."""
    compute = choose("cpu", "auto")
    nets = [_networks(compute) for _ in views]
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-2) for net in nets]
    orders = [order(view, np.random.default_rng(0), size=BATCH, sampling="balanced") for view in views]
    began = 0.0
    for turn in range(1 + TURNS):
        for view, net, optimizer, batches in zip(views, nets, optimizers, orders, strict=True):
            optimizer.zero_grad(set_to_none=True)
            _loss(net, view.batch(batches[turn % len(batches)]), compute).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        began = began or time.process_time()
    return time.process_time() - began


def _networks(compute: Compute) -> nn.ModuleDict:
    inputs = CHANNELS[COLOUR]
    net = nn.ModuleDict(
        {
            "encoder": Encoder(inputs, WIDTH),
            "classifier": classifier(TableII(width=WIDTH)),
            "depth": DepthEstimator(WIDTH),
            "specific": Encoder(inputs, WIDTH),
            "decoder": Decoder(inputs, WIDTH, SIZE),
        }
    )
    compute.place(net)
    return net


def _loss(net: nn.ModuleDict, batch: Batch, compute: Compute) -> Tensor:
    """Eq. 8 in plain calls, weighted as by default."""
    images = prepare(batch.images, COLOUR, compute.device)
    with compute.autocast():
        invariant, pooled = net["encoder"](images)
        specific, _ = net["specific"](images)
        logits, depth = net["classifier"](invariant).squeeze(1), net["depth"](pooled)
        rebuilt = net["decoder"](invariant + specific)
    assert batch.depth is not None
    one, other = (z.float() / (z.float().detach().norm(dim=1, keepdim=True) + 1e-6) for z in (invariant, specific))
    total: Tensor = (
        binary_cross_entropy_with_logits(logits.float(), batch.labels)
        + 10 * mse_loss(depth.float(), batch.depth)
        + 0.1 * mse_loss(rebuilt.float(), images)
        + (one.T @ other).square().mean()
    )
    return total
