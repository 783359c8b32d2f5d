"""FedMA's Algorithm 1 against NumPy: permutation matrices, plain sums, and the gradients of what is trained."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.optimize import linear_sum_assignment
from tests.toy import SITES, Sets, recipe_of, run_toy, tree

from fedvisage.base.streams import seed_global_rng
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.site import Batch
from fedvisage.methods.pad import fedma
from fedvisage.nn.vgg import LAYERS, VGG, apply_layers, vgg

Array = NDArray[np.float64]
Network = dict[str, Array]
"""A weight as (outputs, inputs, places in the kernel), and a bias, for each layer."""


def algorithm_1(networks: list[Network], classes: Array) -> Network:
    """Algorithm 1 without training between the layers; ``classes`` counts each site's images of each class."""
    actual: Network = {}
    for name, following in zip(LAYERS, [*LAYERS[1:], ""], strict=True):
        if not following:
            share = (classes / classes.sum(axis=0)).mean(axis=1)
            for kind in ("weight", "bias"):
                actual[f"{name}.{kind}"] = sum(
                    p * one[f"{name}.{kind}"] for p, one in zip(share, networks, strict=True)
                )
            break
        vectors = [
            np.c_[one[f"{name}.weight"].reshape(len(one[f"{name}.bias"]), -1), one[f"{name}.bias"]] for one in networks
        ]
        matrices = match_until_stable(vectors)
        for kind in ("weight", "bias"):
            moved = [
                np.einsum("ol,l...->o...", pi, one[f"{name}.{kind}"])
                for pi, one in zip(matrices, networks, strict=True)
            ]
            actual[f"{name}.{kind}"] = sum(moved) / len(moved)
        for pi, one in zip(matrices, networks, strict=True):
            one[f"{following}.weight"] = np.einsum("oik,ji->ojk", one[f"{following}.weight"], pi)
    return actual


def match_until_stable(vectors: list[Array]) -> list[Array]:
    """Eq. 2: permutation matrices, one network at a time given all others, until nothing changes."""
    matrices: list[Array] = [np.eye(len(vectors[0]))]
    for j in range(1, len(vectors)):
        matrices.append(best(vectors[j], [pi @ v for pi, v in zip(matrices, vectors, strict=False)]))
    while True:
        before = [pi.copy() for pi in matrices]
        for j, own in enumerate(vectors):
            others = [pi @ v for k, (pi, v) in enumerate(zip(matrices, vectors, strict=True)) if k != j]
            matrices[j] = best(own, others)
        if all((old == new).all() for old, new in zip(before, matrices, strict=True)):
            return matrices


def best(own: Array, others: list[Array]) -> Array:
    centre = np.mean(others, axis=0)
    cost = [np.sum((own - slot) ** 2, axis=1) for slot in centre]
    rows, columns = linear_sum_assignment(cost)
    matrix = np.zeros((len(own), len(own)))
    matrix[rows, columns] = 1
    return matrix


def drawn_at(recipe: Any, site: str) -> Network:
    with seed_global_rng(recipe.runtime.seed, site, "initial weights"):
        net = fedma.network(recipe)
    actual = {}
    for name in LAYERS:
        weight, bias = (net[name].get_parameter(f"0.{kind}").detach().double().numpy() for kind in ("weight", "bias"))
        actual[f"{name}.weight"] = weight.reshape(*weight.shape[:2], -1)
        actual[f"{name}.bias"] = bias
    return actual


@pytest.mark.long
def test_pass_with_learning_rate_zero_is_algorithm_1(sets: Sets, tmp_path: Path) -> None:
    """A rate so small that no float32 changes; sites start from networks of their own, and A has more attacks."""
    content = tree(sets, "fedma", training__rounds=1, training__optimizer={"lr": 1e-30}, evaluation__every=0)
    run_toy(content, tmp_path / "run")
    labels = {name: labels_of(sets[name]) for name in SITES}
    classes = np.array([[np.sum(labels[name] == label) for label in (0, 1)] for name in SITES], dtype=float)
    expected = algorithm_1([drawn_at(recipe_of(content), name) for name in SITES], classes)
    for name, value in load_file(tmp_path / "run" / "model.safetensors").items():
        layer, _, kind = name.rsplit(".", 2)
        wanted = expected[f"{layer}.{kind}"].reshape(value.shape)
        np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5, atol=1e-7, err_msg=name)


def labels_of(path: Path) -> Array:
    rows = PreparedSet.open(path).rows
    return np.asarray(rows.label[rows.split == "train"])


def test_last_layer_weighs_a_site_by_its_share_of_each_class() -> None:
    """A logit is the difference of two scores, whose weights the paper averages each by the shares of its class."""
    draws = np.random.default_rng(0)
    scores, counts = draws.normal(size=(3, 2, 5)), np.array([[30, 10], [5, 20], [65, 0]])
    scores[:, 0] = -scores[:, 1]
    averaged = [sum(counts[j, k] / counts[:, k].sum() * scores[j, k] for j in range(3)) for k in (0, 1)]
    replies = {
        f"site {j}": {
            "output.0.weight": torch.from_numpy(scores[j, 1] - scores[j, 0])[None],
            "classes": torch.from_numpy(counts[j]),
        }
        for j in range(3)
    }
    actual = fedma.average_by_class(replies, "output")["output.0.weight"]
    np.testing.assert_allclose(actual[0].numpy(), averaged[1] - averaged[0], rtol=1e-12)


@pytest.mark.parametrize(("weight", "shares"), [("uniform", (0.5, 0.5)), ("examples", (0.75, 0.25))])
def test_matched_neurons_are_averaged_by_the_recipes_weight(
    weight: str, shares: tuple[float, float], sets: Sets
) -> None:
    """The second site has the first one's neurons in reverse, a little away."""
    draws = torch.Generator().manual_seed(0)
    kernel, bias = torch.randn(5, 3, 2, 2, generator=draws), torch.randn(5, generator=draws)
    sent = {"A": (kernel, bias, 30), "B": (kernel.flip(0) + 0.01, bias.flip(0) + 0.02, 10)}
    replies = {
        name: {"layer.0.weight": one, "layer.0.bias": other, "examples": torch.tensor(count)}
        for name, (one, other, count) in sent.items()
    }
    options = recipe_of(tree(sets, "fedma", method__weight=weight)).options(fedma.Options)
    mean, orders = fedma.match_layer(replies, "layer", options)
    assert orders["B"]["order"].tolist() == [4, 3, 2, 1, 0]
    torch.testing.assert_close(mean["layer.0.weight"], kernel + shares[1] * 0.01)
    torch.testing.assert_close(mean["layer.0.bias"], bias + shares[1] * 0.02)


@pytest.mark.parametrize("fixed", [0, 3, 7])
def test_matched_layers_are_frozen_and_the_others_get_their_whole_gradient(fixed: int) -> None:
    with seed_global_rng(0, "initial weights"):
        net = vgg(VGG(width=8), 6).double()
    draws = torch.Generator().manual_seed(0)
    images, labels = torch.rand(4, 6, 32, 32, generator=draws, dtype=torch.float64), torch.tensor([0.0, 1, 1, 0])
    batch = Batch(images, labels, None, np.array([]))
    fedma.loss(SimpleNamespace(net=net), batch, fixed).backward()  # type: ignore[arg-type]
    with torch.no_grad():
        live = torch.sigmoid(apply_layers(net, images, LAYERS)[:, 0]).numpy()
        hidden = apply_layers(net, images, LAYERS[:-1]).numpy()
    expected = (live - labels.numpy()) / 4 @ hidden
    gradient = net["output"].get_parameter("0.weight").grad
    assert gradient is not None
    np.testing.assert_allclose(gradient[0].numpy(), expected, rtol=1e-4, atol=1e-7)
    frozen = [net[name].get_parameter("0.weight").grad is None for name in LAYERS]
    assert frozen == [number < fixed for number in range(8)]
