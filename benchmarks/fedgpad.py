"""What the federation costs where it is dearest: FedGPAD aggregates after every batch. Against plain training steps.

Both sides train the five networks of Table II with the four losses on batches of the same sets, one batch per site and
turn. The plain side is a loop as anybody would write it: no messages, checks, ledger or private state, and no averages.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from benchmarks.beside import beside
from benchmarks.measurement import Measurement, rendered
from fedvisage import recipe as recipes
from fedvisage.data.batches import Batch, View, epoch_batches
from fedvisage.data.prepared import PreparedSet
from fedvisage.methods import read_method
from fedvisage.nn.compute import Compute, resolve_compute
from fedvisage.nn.fedgpad import Decoder, DepthEstimator, Encoder, TableII, classifier
from fedvisage.nn.inputs import CHANNELS, prepare
from fedvisage.recipe import Recipe

COLOUR, SIZE, WIDTH, BATCH, TURNS, DOMAINS = "rgb+hsv", 96, 8, 16, 10, ("O", "C", "I")


def measure(cache: Path, groups: int = 4) -> Measurement:
    """Compare rounds of the house to turns of the plain loop, batch and batch in turn; a group of rounds is one figure.

    A checkpoint every 25 rounds, as in the demo, is among them.
    """
    sets = {name: rendered(cache, name, 8, SIZE) for name in DOMAINS}
    views = [View.of(PreparedSet.open(path), "train") for path in sets.values()]
    laps = beside(_recipe(sets, 1 + groups * TURNS), cache, _plain(views))[1:]
    sums = [tuple(map(sum, zip(*laps[start : start + TURNS], strict=True))) for start in range(0, len(laps), TURNS)]
    ratios = [plain / house for house, plain in sums]
    house, plain = (TURNS * BATCH * len(DOMAINS) / median(column) for column in zip(*sums, strict=True))
    return Measurement(
        "FedGPAD through the federation against plain PyTorch steps (images a second of processor time)",
        "≥ 0.97",
        f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f} in {groups} times {TURNS} rounds; {house:.1f} / "
        f"{plain:.1f}, Table II at width {WIDTH}, {SIZE} px, batch {BATCH}, aggregated after every batch)",
        median(ratios) >= 0.97,
    )


def _recipe(sets: dict[str, Path], rounds: int) -> Recipe:
    tree = {
        "method": {"name": "fedgpad", "network": {"width": WIDTH}},
        "data": {"sites": {name: str(path) for name, path in sets.items()}},
        "input": {"size": SIZE, "colour": COLOUR},
        "training": {"rounds": rounds, "local": {"batches": 1}, "batch": BATCH, "sampling": "balanced"},
        "runtime": {"threads": torch.get_num_threads(), "checkpoint_every": 25},
    }
    return recipes.validate(tree, read_method)


def _plain(views: list[View]) -> Iterator[None]:
    """Take turns of a plain loop, a batch for each value."""
    compute = resolve_compute("cpu", "auto")
    nets = [_networks(compute) for _ in views]
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-2) for net in nets]
    orders = [epoch_batches(view, np.random.default_rng(0), size=BATCH, sampling="balanced") for view in views]
    for turn in count():
        for view, net, optimizer, batches in zip(views, nets, optimizers, orders, strict=True):
            optimizer.zero_grad(set_to_none=True)
            _loss(net, view.batch(batches[turn % len(batches)]), compute).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield


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
    """Return Eq. 8 of a stored batch."""
    assert batch.depth is not None
    return losses(net, prepare(batch.images, COLOUR, compute.device), batch.labels, batch.depth, compute)


def losses(net: nn.ModuleDict, images: Tensor, labels: Tensor, depths: Tensor, compute: Compute) -> Tensor:
    """Return Eq. 8 in plain calls, weighted as by default."""
    with compute.autocast():
        invariant, pooled = net["encoder"](images)
        specific, _ = net["specific"](images)
        logits, depth = net["classifier"](invariant).squeeze(1), net["depth"](pooled)
        rebuilt = net["decoder"](invariant + specific)
    one, other = (z.float() / (z.float().detach().norm(dim=1, keepdim=True) + 1e-6) for z in (invariant, specific))
    total: Tensor = (
        binary_cross_entropy_with_logits(logits.float(), labels)
        + 10 * mse_loss(depth.float(), depths)
        + 0.1 * mse_loss(rebuilt.float(), images)
        + (one.T @ other).square().mean()
    )
    return total
