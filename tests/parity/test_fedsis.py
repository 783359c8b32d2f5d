"""FedSIS's training against a loop written from §3.3 that knows no split: one network, one backward pass a batch."""

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
from tests.toy import SITES, Sets, make_set, recipe_of, run_toy, tree
from torch import Tensor, nn

from fedvisage.base.streams import numpy_rng, seed_global_rng, torch_rng
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.site import Batch
from fedvisage.methods.pad import fedsis, festa, split
from fedvisage.methods.pad.vit_h_is import VIT
from fedvisage.nn.compute import resolve_compute
from fedvisage.nn.inputs import prepare

RATE, BATCH, ROUNDS = 0.1, 8, 3


@dataclass
class Joined:
    """The whole network of one site: its own tokenizer and head around what all sites share."""

    tokenizer: nn.Module
    head: nn.Module
    shared: nn.ModuleDict
    images: Tensor
    labels: Tensor
    order: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def batch(self, name: str, number: int) -> tuple[Tensor, Tensor]:
        """Return the batch with this number: shuffled epochs, one after another."""
        while len(self.order) <= number:
            epoch = len(self.order) // -(-len(self.labels) // BATCH)
            shuffled = numpy_rng(0, name, "order", epoch).permutation(len(self.labels))
            self.order += [shuffled[start : start + BATCH] for start in range(0, len(shuffled), BATCH)]
        chosen = self.order[number]
        return prepare(self.images[chosen], "rgb+hsv", torch.device("cpu")), self.labels[chosen]


def descend(*parts: nn.Module, scale: float = 1.0) -> None:
    for parameter in (p for part in parts for p in part.parameters()):
        if parameter.grad is not None:
            parameter.data -= RATE * scale * parameter.grad
            parameter.grad = None


def average_models(models: Mapping[str, Joined], part: str) -> dict[str, Tensor]:
    """Eq. 3 with ρ_k = N_k / N."""
    total = sum(len(model.labels) for model in models.values())
    states = [(len(model.labels) / total, getattr(model, part).state_dict()) for model in models.values()]
    return {key: sum(share * state[key].double() for share, state in states).float() for key in states[0][1]}


def first_models(content: dict[str, Any]) -> tuple[nn.ModuleDict, dict[str, Joined]]:
    """Return what all share, and each site's network around it."""
    recipe = recipe_of(content)
    with seed_global_rng(0, "initial weights"):
        net = fedsis.METHOD.network(recipe)
    resolve_compute("cpu", "fp32").place(net)
    models = {}
    for name in SITES:
        actual = PreparedSet.open(Path(content["data"]["sites"][name]))
        chosen = actual.rows.split == "train"
        images = torch.from_numpy(np.array(actual.images)[chosen]).permute(0, 3, 1, 2)
        labels = torch.from_numpy(actual.rows.label[chosen]).long()
        models[name] = Joined(copy.deepcopy(net["tokenizer"]), copy.deepcopy(net["head"]), net, images, labels)
    return net, models


def backward(model: Joined, name: str, number: int, depth: int) -> None:
    """Eq. 4 for one batch, through the first blocks only."""
    images, labels = model.batch(name, number)
    tokens = model.tokenizer(images)
    for block in list(model.shared["blocks"].children())[:depth]:
        tokens = block(tokens)
    two = model.head(model.shared["adapter"](tokens))
    loss = -torch.log_softmax(two, dim=1)[torch.arange(len(labels)), labels].mean()
    loss.backward()


def drawn_block(number: int, name: str) -> int:
    """Return the block of a site and round."""
    return int(torch.randint(1, 3, (1,), generator=torch_rng(0, "server", number, "block", name)))


def train_joined(content: dict[str, Any], unify_every: int, batches: int) -> dict[str, Tensor]:
    """Train FedSIS as §3.3 says it, without a split; blocks step down the mean over all batches of a round."""
    net, models = first_models(content)
    for number in range(1, ROUNDS + 1):
        for name, model in models.items():
            for index in range(batches):
                backward(model, name, (number - 1) * batches + index, drawn_block(number, name))
                descend(model.head, model.tokenizer, net["adapter"])
        descend(net["blocks"], scale=1 / (len(models) * batches))
        if number % unify_every == 0 or number == ROUNDS:
            for part in ("tokenizer", "head"):
                mean = average_models(models, part)
                net[part].load_state_dict(mean)
                for model in models.values():
                    getattr(model, part).load_state_dict(mean)
    return net.state_dict()


def train_averaged(content: dict[str, Any], batches: int) -> dict[str, Tensor]:
    """Train FedSIS as the authors' code does: blocks step with the rest, and each round their weights are averaged."""
    net, models = first_models(content)
    total = sum(len(model.labels) for model in models.values())
    for number in range(1, ROUNDS + 1):
        start, mean = copy.deepcopy(net["blocks"].state_dict()), dict[str, Tensor]()
        for name, model in models.items():
            net["blocks"].load_state_dict(start)
            for index in range(batches):
                backward(model, name, (number - 1) * batches + index, drawn_block(number, name))
                descend(model.head, model.tokenizer, net["adapter"], net["blocks"])
            for key, value in net["blocks"].state_dict().items():
                mean[key] = mean.get(key, 0) + len(model.labels) / total * value.double()
        net["blocks"].load_state_dict({key: value.float() for key, value in mean.items()})
    for part in ("tokenizer", "head"):
        net[part].load_state_dict(average_models(models, part))
    return net.state_dict()


@pytest.mark.long
def test_averaged_encoders_are_those_of_a_loop(sets: Sets, tmp_path: Path) -> None:
    """Three rounds of two batches at each of three sites, one of them larger, from the same blocks in every visit."""
    actual = {**sets, "B": make_set(tmp_path / "B", "B", 7, subjects=9)}
    sgd = {"name": "sgd", "lr": RATE}
    content = tree(actual, "fedsis", training__local={"batches": 2}, training__optimizer=sgd, training__augment={})
    content["method"] |= {"encoder_update": "average", "unify_every": ROUNDS}
    run_toy(content, tmp_path / "run")
    expected, trained = train_averaged(content, 2), load_file(tmp_path / "run" / "model.safetensors")
    assert trained.keys() == expected.keys()
    for key, value in trained.items():
        torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-6, msg=key)


@pytest.mark.long
@pytest.mark.parametrize(("unify_every", "batches"), [(1, 1), (2, 1), (2, 2)])
def test_split_training_is_joint_training(sets: Sets, tmp_path: Path, unify_every: int, batches: int) -> None:
    """Every weight after three rounds of three sites, one of them larger; a wrong gradient anywhere would show."""
    actual = {**sets, "B": make_set(tmp_path / "B", "B", 7, subjects=9)}
    sgd = {"name": "sgd", "lr": RATE}
    content = tree(
        actual, "fedsis", training__local={"batches": batches}, training__optimizer=sgd, training__augment={}
    )
    content["method"]["unify_every"] = unify_every
    run_toy(content, tmp_path / "run")
    expected = train_joined(content, unify_every, batches)
    trained = load_file(tmp_path / "run" / "model.safetensors")
    assert trained.keys() == expected.keys()
    for key, value in trained.items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-7, msg=key)


@pytest.mark.parametrize("seed", range(3))
def test_loss_of_the_site_is_cross_entropy_over_two_classes(seed: int) -> None:
    """-log softmax(Wz + b)_y, and its gradient by z, (softmax - onehot) W / N."""
    draws = np.random.default_rng(seed)
    pseudo, weight, bias = draws.normal(0, 2, (16, 5)), draws.normal(0, 1, (2, 5)), draws.normal(0, 1, 2)
    labels = draws.integers(0, 2, 16)
    outputs = pseudo @ weight.T + bias
    probability = np.exp(outputs - outputs.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    expected = -np.log(probability[np.arange(16), labels]).mean()

    linear = nn.Linear(5, 2).double()
    linear.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
    losses: list[float] = []

    def step(_: None, value: Tensor) -> None:
        value.backward()
        losses.append(value.item())

    site = SimpleNamespace(
        net={"head": linear},
        held={"batch": Batch(torch.zeros(1), torch.from_numpy(labels).float(), None, np.array([]))},
        autocast=lambda: torch.autocast("cpu", enabled=False),
        optimizer=lambda part: None,
        step=step,
    )
    actual = split.learn_head(site, torch.from_numpy(pseudo))  # type: ignore[arg-type]
    assert losses[0] == pytest.approx(expected, rel=1e-6)
    gradient = (probability - np.eye(2)[labels]) @ weight / 16
    np.testing.assert_allclose(actual.numpy(), gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["fedsis", "festa"])
def test_the_delivered_parts_are_the_whole_network(name: str) -> None:
    method = {"fedsis": fedsis.METHOD, "festa": festa.METHOD}[name]
    assert set(method.finished) == set(method.home)
    assert VIT.finished == ("tokenizer", "blocks", "norm", "head")
