"""FedGPAD's Table II and Algorithm 2 written out by hand: networks as functions of weights, rounds as a loop.

Table II is compared in float64, where a wrong layer cannot hide behind rounding; nothing of the product's networks
takes part. In Algorithm 2 each data centre keeps its specific encoder and decoder from round to round, steps once a
round with an optimizer that begins anew, and the shared networks are averaged after every batch.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.toy import SITES, Sets, recipe_of, run_toy, tree
from torch import Tensor, nn
from torch.nn import functional as F

from fedvisage.base.streams import numpy_rng, seed_global_rng
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.site import Batch
from fedvisage.methods.pad import fedgpad
from fedvisage.nn.compute import resolve_compute
from fedvisage.nn.inputs import prepare

pytestmark = pytest.mark.long

RATES = {"sgd": 0.05, "adam": 0.003}
BATCH, ROUNDS = 24, 2
WEIGHTS = {"depth": 3.0, "reconstruction": 5.0, "difference": 20.0}
SHARED = ("encoder", "classifier", "depth")


@dataclass
class Network:
    """Weights by name, and what BatchNorm's running statistics become."""

    state: dict[str, Tensor]
    running: dict[str, Tensor] = field(default_factory=dict)

    def norm(self, name: str, values: Tensor) -> Tensor:
        count = values.numel() / values.shape[1]
        mean, variance = values.mean(dim=(0, 2, 3)), values.var(dim=(0, 2, 3), unbiased=False)
        for kind, now in (("running_mean", mean), ("running_var", variance * count / (count - 1))):
            self.running[f"{name}.{kind}"] = 0.9 * self.state[f"{name}.{kind}"] + 0.1 * now.detach()
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
        maps = [resize(one, resizing) for one in pools]
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


def resize(values: Tensor, resizing: str) -> Tensor:
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


@pytest.mark.parametrize("resizing", ["bilinear", "pooled"])
def test_the_five_networks_are_those_of_table_ii(sets: Sets, resizing: str) -> None:
    """Eq. 8, its gradient by every weight, and BatchNorm's statistics, on a batch of noise."""
    content = content_of(sets, resizing=resizing)
    recipe = recipe_of(content)
    with seed_global_rng(0, "initial weights"):
        net = fedgpad.METHOD.network(recipe).double().train()
    by_hand = Network({name: value.clone() for name, value in net.state_dict().items()})
    for name, _ in net.named_parameters():
        by_hand.state[name].requires_grad_()
    images, labels, depth = (values.double() for values in batch(content, "A", 0))
    expected = loss(by_hand, images, labels, depth, resizing)
    expected.backward()
    site: Any = SimpleNamespace(name="A", recipe=recipe, net=net)
    actual = fedgpad.loss(site, Batch(images, labels, depth, np.full(BATCH, "print")))
    actual.backward()
    assert actual.item() == pytest.approx(expected.item(), rel=1e-6)
    for name, parameter in net.named_parameters():
        gradient = by_hand.state[name].grad
        assert gradient is not None, name
        assert parameter.grad is not None, name
        np.testing.assert_allclose(
            parameter.grad, gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()), err_msg=name
        )
    for name, value in net.state_dict().items():
        if "running" in name:
            np.testing.assert_allclose(value, by_hand.running[name], rtol=1e-6, err_msg=name)


@dataclass
class Centre:
    """A data centre: its networks, and the moments of an Adam that begins anew in every round unless it is kept."""

    net: nn.ModuleDict
    steps: int = 0
    moments: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def step(self, optimizer: str) -> None:
        """Down the gradient, or as Kingma and Ba's Algorithm 1 goes."""
        self.steps += 1
        for name, parameter in self.net.named_parameters():
            assert parameter.grad is not None
            direction = parameter.grad
            if optimizer == "adam":
                first, second = self.moments.get(name, (torch.zeros_like(direction), torch.zeros_like(direction)))
                first, second = 0.9 * first + 0.1 * direction, 0.999 * second + 0.001 * direction.square()
                self.moments[name] = first, second
                spread = (second / (1 - 0.999**self.steps)).sqrt() + 1e-8
                direction = first / (1 - 0.9**self.steps) / spread
            parameter.data -= RATES[optimizer] * direction
            parameter.grad = None


def algorithm_2(
    content: dict[str, Any], optimizer: str, *, forgets: bool = False, keeps_adam: bool = False
) -> dict[str, Tensor]:
    """Return all shared weights after the last round, with the product's loss for a batch and nothing else of it.

    ``forgets`` and ``keeps_adam`` are mistakes: private parts that begin anew in every round, an Adam that does not.
    """
    recipe = recipe_of(content)
    with seed_global_rng(0, "initial weights"):
        first = fedgpad.METHOD.network(recipe).train()
    resolve_compute("cpu", "fp32").place(first)
    centres = {name: Centre(copy.deepcopy(first)) for name in SITES}
    begun = copy.deepcopy(first.state_dict())
    shared = {name: value for name, value in begun.items() if name.split(".")[0] in SHARED}
    for number in range(ROUNDS):
        sent = []
        for name, centre in centres.items():
            centre.net.load_state_dict({**(begun if forgets else {}), **shared}, strict=False)
            images, labels, depth = batch(content, name, number)
            site: Any = SimpleNamespace(name=name, recipe=recipe, net=centre.net)
            value = fedgpad.loss(site, Batch(images, labels, depth, np.full(BATCH, "print")))
            value.backward()
            if not keeps_adam:
                centre.steps, centre.moments = 0, {}
            centre.step(optimizer)
            sent.append(copy.deepcopy({key: centre.net.state_dict()[key] for key in shared}))
        shared = {
            key: torch.stack([one[key].double() for one in sent]).mean(dim=0).to(value.dtype)
            for key, value in shared.items()
        }
    return shared


def batch(content: dict[str, Any], name: str, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the batch of a round: shuffled epochs, one after another."""
    actual = PreparedSet.open(Path(content["data"]["sites"][name]))
    chosen = np.flatnonzero(actual.rows.split == "train")
    epoch, index = divmod(number, len(chosen) // BATCH)
    at = chosen[numpy_rng(0, name, "order", epoch).permutation(len(chosen))[index * BATCH : (index + 1) * BATCH]]
    images = prepare(torch.from_numpy(np.array(actual.images)[at]).permute(0, 3, 1, 2), "rgb+hsv", torch.device("cpu"))
    assert actual.depth is not None
    return images, torch.from_numpy(actual.rows.label[at]).float(), torch.from_numpy(np.array(actual.depth)[at]) / 255


def content_of(sets: Sets, optimizer: str = "sgd", resizing: str = "bilinear") -> dict[str, Any]:
    """Return FedGPAD's recipe with one batch per round."""
    content = tree(
        sets,
        "fedgpad",
        training__local={"batches": 1},
        training__rounds=ROUNDS,
        training__augment={},
        training__optimizer={"name": optimizer, "lr": RATES[optimizer]},
        training__batch=BATCH,
        evaluation__every=0,
    )
    content["method"] |= {"weights": WEIGHTS}
    content["method"]["network"] |= {"depth_input": resizing}
    return content


def apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return how far two models lie from each other."""
    return float(torch.cat([(value.double() - other[name].double()).flatten() for name, value in one.items()]).norm())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_is_algorithm_2_without_its_misprints(sets: Sets, tmp_path: Path, optimizer: str) -> None:
    """BatchNorm on few values makes much of the last bits, so the loop must be far nearer than those with a mistake."""
    content = content_of(sets, optimizer)
    run_toy(content, tmp_path / "run")
    trained = load_file(tmp_path / "run" / "model.safetensors")
    assert len(trained) > 80
    mistakes = [{"forgets": True}, *([{"keeps_adam": True}] if optimizer == "adam" else [])]
    nearest = min(apart(trained, algorithm_2(content, optimizer, **mistake)) for mistake in mistakes)
    assert apart(trained, algorithm_2(content, optimizer)) < nearest / 10
