"""FedGPAD's Algorithm 2 and Table II written out by hand: networks as functions of weights, rounds as a loop.

Nothing of the product's networks takes part. Each data centre keeps its specific encoder and decoder from round to
round, steps once a round with an optimizer that begins anew, and the shared networks are averaged after every batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.toy import SITES, recipe_of, run_toy, tree
from torch import Tensor
from torch.nn import functional as F

from fedvisage.data.prepared import PreparedSet
from fedvisage.methods import fedgpad
from fedvisage.nn.inputs import prepare
from fedvisage.streams import numpy_rng, scoped

RATE, BATCH, ROUNDS = 0.05, 8, 3
WEIGHTS = {"depth": 3.0, "reconstruction": 5.0, "difference": 20.0}
SHARED = ("encoder", "classifier", "depth")


@dataclass
class Network:
    """Weights by name; BatchNorm's running statistics follow the batch that is normalised."""

    state: dict[str, Tensor]
    trained: set[str] = field(default_factory=set)

    def begin(self) -> None:
        """Ask for gradients of all that is trained."""
        for name in self.trained:
            self.state[name] = self.state[name].detach().clone().requires_grad_()

    def norm(self, name: str, values: Tensor) -> Tensor:
        count = values.numel() / values.shape[1]
        mean, variance = values.mean(dim=(0, 2, 3)), values.var(dim=(0, 2, 3), unbiased=False)
        running = {"running_mean": mean, "running_var": variance * count / (count - 1)}
        for kind, now in running.items():
            self.state[f"{name}.{kind}"] = 0.9 * self.state[f"{name}.{kind}"] + 0.1 * now.detach()
        normal = (values - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
        return normal * self.state[f"{name}.weight"][:, None, None] + self.state[f"{name}.bias"][:, None, None]

    def convolved(self, name: str, values: Tensor) -> Tensor:
        """Convolution without bias, BatchNorm, ReLU."""
        flat = self.norm(f"{name}.1", F.conv2d(values, self.state[f"{name}.0.weight"], padding=1))
        return flat * (flat > 0)

    def encoded(self, part: str, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Table II: conv1-1, three times three convolutions and a pooling, and the three last ones."""
        values, pools = self.convolved(f"{part}.stem", images), []
        for block in range(3):
            for layer in range(3):
                values = self.convolved(f"{part}.blocks.{block}.{layer}", values)
            values = F.max_pool2d(values, 2)
            pools.append(values)
        values = F.max_pool2d(self.convolved(f"{part}.tail.0", values), 2)
        values = F.max_pool2d(self.convolved(f"{part}.tail.2", values), 2)
        return self.convolved(f"{part}.tail.4", values).mean(dim=(2, 3)), pools

    def classified(self, features: Tensor) -> Tensor:
        """fc3-1 with ReLU, fc3-2."""
        hidden = features @ self.state["classifier.0.weight"].T + self.state["classifier.0.bias"]
        return (hidden.clamp(min=0) @ self.state["classifier.2.weight"].T + self.state["classifier.2.bias"])[:, 0]

    def depth_of(self, pools: list[Tensor], resizing: str) -> Tensor:
        """pool1-1 to pool1-3, each made 32×32, side by side through conv4-1 to conv4-3."""
        maps = [resized(one, resizing) for one in pools]
        values = torch.cat(maps, dim=1)
        for layer in range(3):
            values = self.convolved(f"depth.layers.{layer}", values)
        return values[:, 0]

    def decoded(self, features: Tensor) -> Tensor:
        """fc2-1, deconvolutions with BatchNorm and LeakyReLU of slope 0.2 between them, Tanh at the end."""
        values = (features @ self.state["decoder.spread.weight"].T).reshape(len(features), -1, 4, 4)
        for number, layer in enumerate((0, 3, 6)):
            values = F.conv_transpose2d(values, self.state[f"decoder.layers.{layer}.weight"], stride=2, padding=1)
            if number < 2:
                flat = self.norm(f"decoder.layers.{layer + 1}", values)
                values = torch.where(flat > 0, flat, 0.2 * flat)
        return (values.exp() - (-values).exp()) / (values.exp() + (-values).exp())


def resized(values: Tensor, resizing: str) -> Tensor:
    """32×32 out of 16, 8 or 4: each value repeated ("pooled"), or interpolated between the centres of pixels."""
    times = 32 // values.shape[-1]
    if resizing == "pooled":
        return values.repeat_interleave(times, 2).repeat_interleave(times, 3)
    at = ((torch.arange(32) + 0.5) / times - 0.5).clamp(0, values.shape[-1] - 1)
    low = at.floor().long()
    high, share = (low + 1).clamp(max=values.shape[-1] - 1), at - low
    rows = values[:, :, low] * (1 - share)[:, None] + values[:, :, high] * share[:, None]
    return rows[..., low] * (1 - share) + rows[..., high] * share


def loss(net: Network, images: Tensor, labels: Tensor, depth: Tensor, resizing: str) -> Tensor:
    """Eq. 8 with means; Eq. 7 on features of unit length, whose lengths are constants."""
    invariant, pools = net.encoded("encoder", images)
    specific, _ = net.encoded("specific", images)
    live = torch.sigmoid(net.classified(invariant))
    total = -(labels * live.log() + (1 - labels) * (1 - live).log()).mean()
    total = total + WEIGHTS["depth"] * (net.depth_of(pools, resizing) - depth).square().mean()
    total = total + WEIGHTS["reconstruction"] * (net.decoded(invariant + specific) - images).square().mean()
    one, other = (z / (z.detach().square().sum(1, keepdim=True).sqrt() + 1e-6) for z in (invariant, specific))
    return total + WEIGHTS["difference"] * (one.T @ other).square().mean()


def stepped(net: Network, optimizer: str) -> None:
    """Down the gradient; or as Adam's first step goes, which is its only one: both moments are of this gradient."""
    for name in net.trained:
        gradient = net.state[name].grad
        assert gradient is not None, name
        if optimizer == "adam":
            gradient = gradient / (gradient.square().sqrt() + 1e-8)
        net.state[name] = (net.state[name] - RATE * gradient).detach()


def algorithm_2(content: dict[str, Any], optimizer: str, resizing: str) -> dict[str, Tensor]:
    """Return all shared weights after the last round."""
    with scoped(0, "initial weights"):
        first = fedgpad.METHOD.network(recipe_of(content))
    trained = {name for name, _ in first.named_parameters()}
    shared = {name: value.clone() for name, value in first.state_dict().items() if name.split(".")[0] in SHARED}
    private = {name: {key: value.clone() for key, value in first.state_dict().items() if key not in shared}
               for name in SITES}  # fmt: skip
    for number in range(ROUNDS):
        sent = []
        for name in SITES:
            images, labels, depth = batch(content, name, number)
            net = Network(shared | private[name], trained)
            net.begin()
            loss(net, images, labels, depth, resizing).backward()  # type: ignore[no-untyped-call]
            stepped(net, optimizer)
            sent.append({key: net.state[key] for key in shared})
            private[name] = {key: net.state[key] for key in private[name]}
        shared = {key: torch.stack([one[key].double() for one in sent]).mean(dim=0).to(shared[key].dtype)
                  for key in shared}  # fmt: skip
    return shared


def batch(content: dict[str, Any], name: str, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the batch of a round: shuffled epochs, one after another."""
    found = PreparedSet.open(Path(content["data"]["sites"][name]))
    chosen = np.flatnonzero(found.rows.split == "train")
    epoch, index = divmod(number, len(chosen) // BATCH)
    at = chosen[numpy_rng(0, name, "order", epoch).permutation(len(chosen))[index * BATCH : (index + 1) * BATCH]]
    images = prepare(torch.from_numpy(np.array(found.images)[at]).permute(0, 3, 1, 2), "rgb+hsv", torch.device("cpu"))
    assert found.depth is not None
    return images, torch.from_numpy(found.rows.label[at]).float(), torch.from_numpy(np.array(found.depth)[at]) / 255


def product(sets: Mapping[str, Path], out: Path, optimizer: str, resizing: str) -> tuple[dict[str, Any], Path]:
    content = tree(sets, "fedgpad", training__local={"batches": 1}, training__rounds=ROUNDS, training__augment={},
                   training__optimizer={"name": optimizer, "lr": RATE}, evaluation__every=0)  # fmt: skip
    content["method"] |= {"weights": WEIGHTS}
    content["method"]["network"] |= {"depth_input": resizing}
    run_toy(content, out)
    return content, out


def largest_gap(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Return by how much a weight is off, of the size that its tensor has."""
    assert found
    return max(
        float((value.float() - expected[name].float()).abs().max() / expected[name].float().abs().max().clamp(min=1e-3))
        for name, value in found.items()
        if value.is_floating_point()
    )


@pytest.mark.parametrize("resizing", ["bilinear", "pooled"])
def test_training_is_algorithm_2_on_table_ii(sets: Mapping[str, Path], tmp_path: Path, resizing: str) -> None:
    content, out = product(sets, tmp_path / "run", "sgd", resizing)
    assert largest_gap(load_file(out / "model.safetensors"), algorithm_2(content, "sgd", resizing)) < 1e-3


def test_each_turn_begins_with_a_new_adam(sets: Mapping[str, Path], tmp_path: Path) -> None:
    """The first step of Adam is the sign of the gradient: one that was kept would be another in the second round.

    Where a gradient is about zero its sign hangs on rounding, so nearly all weights must agree.
    """
    content, out = product(sets, tmp_path / "run", "adam", "bilinear")
    expected = algorithm_2(content, "adam", "bilinear")
    found = {name: value for name, value in load_file(out / "model.safetensors").items() if "running" not in name}
    off = torch.cat([((value - expected[name]).abs() > RATE / 10).flatten() for name, value in found.items()])
    assert float(off.float().mean()) < 0.02
