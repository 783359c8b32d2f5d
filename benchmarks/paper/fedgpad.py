"""FedGPAD's local step at paper size: one batch through the five networks of Table II at full width."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from benchmarks.measurement import Measurement, rendered
from benchmarks.paper.at_work import CPU, FIRST, Precision, at_work, compared, recipe_of
from fedvisage.base.streams import seed_global_rng
from fedvisage.data.batches import View, epoch_batches
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.site import Site
from fedvisage.methods.pad import fedgpad
from fedvisage.nn.inputs import prepare

SIZE, BATCH = 256, 2


def measure(cache: Path) -> Measurement:
    """Time the turn of a site: one batch through the five networks of Table II at full width, in the layout of a run.

    A batch of two images stands for the paper's of 32: a step takes as long, image for image.
    """
    return _measure(cache, "fp32", 1.05)


def measure_bf16(cache: Path) -> Measurement:
    """Time the same in bf16, against plain PyTorch in fp32."""
    return _measure(cache, "bf16", 2.0)


def _measure(cache: Path, precision: Precision, bound: float) -> Measurement:
    view = View.of(PreparedSet.open(rendered(cache, "O", 2, SIZE)), "train")
    training = {"local": {"batches": 1}, "batch": BATCH}
    site = at_work(recipe_of("fedgpad", {}, SIZE, "rgb+hsv", training, precision=precision), view)
    lent = site.tensors(*fedgpad.SHARED)
    positions = epoch_batches(view, np.random.default_rng(0), size=BATCH, sampling="shuffled")[0]
    nets = _plain_networks(site)

    def house() -> object:
        return fedgpad.METHOD.calls["train"].run(replace(site, losses=[], held={}), dict(lent))

    return compared(
        f"FedGPAD's local step at paper size against plain PyTorch as the authors wrote it (processor time; Table II "
        f"at width 64, {SIZE} px, batch {BATCH})",
        bound,
        house,
        lambda: _fedgpad_step(nets, view, positions),
        site,
    )


def _plain_networks(site: Site) -> nn.ModuleDict:
    with seed_global_rng(0, "initial weights"):
        net = fedgpad.network(site.recipe)
    return net.train()


def _fedgpad_step(net: nn.ModuleDict, view: View, positions: np.ndarray) -> list[Any]:
    """Take a step with an optimizer of its own, and hand all weights back: Algorithm 2 aggregates after every batch."""
    batch = view.batch(positions)
    images = prepare(batch.images, "rgb+hsv", CPU, FIRST)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    optimizer.zero_grad()
    invariant, pooled = net["encoder"](images)
    specific, _ = net["specific"](images)
    depth, logits = net["depth"](pooled), net["classifier"](invariant)
    rebuilt = net["decoder"](invariant + specific)
    assert batch.depth is not None
    one, other = (values / (values.norm(dim=1, keepdim=True).detach() + 1e-6) for values in (invariant, specific))
    loss: Tensor = (
        binary_cross_entropy_with_logits(logits.squeeze(1), batch.labels)
        + 10 * mse_loss(depth, batch.depth)
        + (one.T @ other).square().mean()
        + 0.1 * mse_loss(rebuilt, images)
    )
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return [part.state_dict() for part in net.values()]
