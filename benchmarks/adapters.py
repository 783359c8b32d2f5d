"""A training step at ViT-B size: adapters of rank 8, a linear probe, and the whole network.

And what a site sends in a round: the tensors that are uploaded, counted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.measurement import Measurement, in_turn, middle, processor_seconds
from fedvisage.federation.wire.message import size_of
from fedvisage.nn.adapters import AdaptedNetwork, adapted_network
from fedvisage.nn.compute import Compute, resolve_compute
from fedvisage.nn.timm_network import TimmNetwork, timm_network
from fedvisage.recipe import Input

ARCH, SIZE, BATCH = "vit_base_patch16_224", 224, 4
MOST = 5e6
"""Bytes that a site may send in a round."""


def measure(cache: Path, repeats: int = 3) -> Measurement:
    """Time steps of all three in turn, in the run's precision."""
    image, compute = Input(size=SIZE, colour="rgb"), resolve_compute("cpu", "auto")
    pieces, probe = (adapted_network(AdaptedNetwork(arch=ARCH, rank=rank), image) for rank in (8, 0))
    whole = timm_network(TimmNetwork(arch=ARCH), image, outputs=0)
    nets = [nn.Sequential(body, nn.Linear(whole.width, 1)) for body in (pieces, probe, whole)]
    taken_by = [_step(net, compute) for net in nets]
    taken = in_turn(repeats, *taken_by)
    sent = [size_of(net.state_dict().values()) for net in nets]
    said = "; ".join(
        f"{name}: {middle(values)}, {size / 1e6:.2f} MB"
        for name, values, size in zip(("adapters", "linear probe", "all weights"), taken, sent, strict=True)
    )
    return Measurement(
        f"a step of a ViT-B with adapters of rank 8 at {SIZE} px and batch {BATCH} (processor time), and what a site "
        "sends in a round",
        "≤ 5 MB",
        said,
        sent[0] <= MOST,
    )


def _step(net: nn.Module, compute: Compute) -> Callable[[], float]:
    """Return what takes one step, after a first one that nobody counts, and says its processor time."""
    compute.place(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    images, labels = torch.rand(BATCH, 3, SIZE, SIZE), torch.tensor([0.0, 1.0] * (BATCH // 2))

    def step() -> None:
        with compute.autocast():
            logits = net(images).squeeze(1)
        optimizer.zero_grad(set_to_none=True)
        binary_cross_entropy_with_logits(logits.float(), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    step()
    return lambda: processor_seconds(step)
