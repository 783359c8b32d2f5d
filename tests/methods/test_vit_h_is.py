"""Sampled blocks: draws, computed depth, and the prediction over several draws."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.refusals import refused
from tests.toy import NETWORK, Sets, recipe_of, run_toy, tree
from torch import Generator, Tensor, nn

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.method import Member
from fedvisage.federation.site import Batch, Site
from fedvisage.methods.pad import fedsis, vit_h_is
from fedvisage.nn.compute import resolve_compute
from fedvisage.recipe import Recipe

DEPTH = 4


def recipe(sets: Sets, **method: Any) -> Recipe:
    content = tree(sets, "vit-h-is", input__colour="rgb")
    content["method"] |= {"network": {**NETWORK, "depth": DEPTH}, **method}
    return recipe_of(content)


def member(recipe: Recipe, count: int = 6, seed: int = 0) -> Member:
    """Return a network whose blocks' predictions differ much, and images."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = fedsis.METHOD.network(recipe).eval()
        for parameter in (p for p in net["blocks"].parameters() if p.dim() > 1):
            nn.init.normal_(parameter, std=0.7)
        nn.init.normal_(net["head"].get_parameter("weight"), std=5.0)
    images = torch.rand(count, 3, 32, 32, generator=Generator().manual_seed(1))
    return Member(net, images, Generator().manual_seed(seed), recipe)


def live_at(one: Member, depth: int) -> Tensor:
    """Return the live probability after one block, computed plainly."""
    tokens = one.net["tokenizer"](one.images)
    for number in range(depth):
        tokens = one.net["blocks"].get_submodule(str(number))(tokens)
    return torch.softmax(one.net["head"](one.net["adapter"](tokens)), dim=1)[:, 1]


def test_all_blocks_are_the_mean_probability_over_the_range(sets: Sets) -> None:
    actual = member(recipe(sets, blocks={"first": 2, "last": 3}, inference={"blocks": "all"}))
    with torch.inference_mode():
        expected = (live_at(actual, 2) + live_at(actual, 3)) / 2
        torch.testing.assert_close(torch.sigmoid(vit_h_is.predict(actual)), expected)


def test_one_draw_equals_the_prediction_of_one_block(sets: Sets) -> None:
    actual = member(recipe(sets, inference={"draws": 1}), count=40)
    with torch.inference_mode():
        single = torch.stack([live_at(actual, depth) for depth in range(1, DEPTH + 1)])
        nearest = (torch.sigmoid(vit_h_is.predict(actual)) - single).abs().min(dim=0)
        assert nearest.values.max() < 1e-5
        assert set(nearest.indices.tolist()) == set(range(DEPTH))


def test_many_draws_converge_to_all_blocks(sets: Sets) -> None:
    with torch.inference_mode():
        every = torch.sigmoid(vit_h_is.predict(member(recipe(sets, inference={"blocks": "all"}))))
        few, many = (torch.sigmoid(vit_h_is.predict(member(recipe(sets, inference={"draws": n})))) for n in (3, 4000))
    assert (many - every).abs().max() < 0.03
    assert (few - every).abs().max() > 0.03


def test_draws_follow_from_the_generator_alone(sets: Sets) -> None:
    settings = recipe(sets, inference={"draws": 2})
    with torch.inference_mode():
        first, again, other = (vit_h_is.predict(member(settings, seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_draws_are_uniform_over_the_range(sets: Sets) -> None:
    options = recipe(sets, blocks={"first": 2, "last": 4}).options(vit_h_is.Options)
    drawn = vit_h_is.draw_blocks(options, 9000, Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=DEPTH + 1)
    assert counts[:2].tolist() == [0, 0]
    assert (counts[2:] - 3000).abs().max() < 5 * (9000 * 2 / 9) ** 0.5


def test_training_draws_another_block_for_each_batch(sets: Sets) -> None:
    """Each loss is the cross-entropy after one block of the range, and 40 losses show all four."""
    settings = recipe(sets)
    actual = member(settings, count=8)
    labels = torch.arange(8) % 2
    view = View.of(PreparedSet.open(sets["A"]), "train")
    site = Site("A", settings, 1, view, actual.net, resolve_compute("cpu", "fp32"), kept={}, scratch={})
    batch = Batch(actual.images, labels.float(), None, view.species[:8])
    with torch.inference_mode():
        live = torch.stack([live_at(actual, depth) for depth in range(1, DEPTH + 1)])
        by_depth = -torch.where(labels == 1, live, 1 - live).log().mean(dim=1)
        losses = torch.stack([vit_h_is.loss(site, batch) for _ in range(40)])
    nearest = (losses[:, None] - by_depth).abs().min(dim=1)
    assert float(nearest.values.max()) < 1e-4
    assert set(nearest.indices.tolist()) == set(range(DEPTH))


@pytest.mark.parametrize("depth", range(1, DEPTH + 1))
def test_only_the_sampled_depth_is_computed(sets: Sets, depth: int) -> None:
    actual = member(recipe(sets))
    seen: list[int] = []
    for number, block in enumerate(actual.net["blocks"].children(), start=1):
        block.register_forward_hook(lambda module, inputs, output, number=number: seen.append(number))
    vit_h_is.pseudo_class_token(actual.net, actual.net["tokenizer"](actual.images), depth)
    assert seen == list(range(1, depth + 1))


def test_blocks_beyond_the_range_are_not_built(sets: Sets) -> None:
    blocks = fedsis.METHOD.network(recipe(sets, blocks={"last": 3}))["blocks"]
    assert len(list(blocks.children())) == 3


def test_features_are_the_mean_input_of_the_head(sets: Sets) -> None:
    actual = member(recipe(sets, blocks={"first": 3, "last": 3}))
    with torch.inference_mode():
        two = actual.net["head"](vit_h_is.features(actual))
        torch.testing.assert_close(torch.softmax(two, dim=1)[:, 1], live_at(actual, 3))


def test_spread_equals_that_of_single_predictions(sets: Sets) -> None:
    actual = member(recipe(sets, blocks={"first": 2}, inference={"blocks": "all"}))
    with torch.inference_mode():
        single = torch.stack([live_at(actual, depth) for depth in (2, 3, 4)])
        torch.testing.assert_close(vit_h_is.draw_spread(actual), single.std(dim=0, correction=0))
        one = member(recipe(sets, inference={"draws": 1}))
        assert vit_h_is.draw_spread(one).max() < 1e-6


@pytest.mark.long
def test_a_run_reports_the_spread_at_the_target(sets: Sets, tmp_path: Path) -> None:
    for method, reported in (("vit-h-is", True), ("vit-h", False)):
        metrics = run_toy(tree(sets, method, training__rounds=1), tmp_path / method)
        assert ("spread" in metrics) == reported
    assert 0 <= run_toy(tree(sets, "vit-h-is", training__rounds=1), tmp_path / "vit-h-is", resume=True)["spread"] < 0.5


@pytest.mark.parametrize("blocks", [{"last": DEPTH + 1}, {"first": 3, "last": 2}])
def test_a_range_outside_the_network_is_refused(sets: Sets, blocks: dict[str, int]) -> None:
    with refused("recipe.method", "blocks", f"1 … {DEPTH}"):
        recipe(sets, blocks=blocks)


def test_the_released_adapter_adds_its_tokens_and_the_released_head_norms(sets: Sets) -> None:
    """Both written out in float64: two convolutions with BatchNorm, a shortcut before the last ReLU; LayerNorm."""
    net = vit_h_is.network(recipe(sets, adapter="residual", head="normed")).double().eval()
    tokens = torch.randn(3, 4, 8, dtype=torch.float64, generator=Generator().manual_seed(2))
    square = values = tokens.transpose(1, 2).reshape(3, 8, 2, 2)
    for number in (0, 3):
        kernel = net.get_parameter(f"adapter.layers.{number}.weight")
        values = torch.nn.functional.conv2d(values, kernel, padding=1) / (1 + 1e-5) ** 0.5  # statistics are 0 and 1
        values = values if number == 3 else values.clamp(min=0)
    pseudo = (values + square).clamp(min=0).mean(dim=(2, 3))
    torch.testing.assert_close(net["adapter"](tokens), pseudo)
    normal = (pseudo - pseudo.mean(1, keepdim=True)) / (pseudo.var(1, unbiased=False, keepdim=True) + 1e-6).sqrt()
    weight, bias = net.get_parameter("head.1.weight"), net.get_parameter("head.1.bias")
    torch.testing.assert_close(net["head"](pseudo), normal @ weight.T + bias)


@pytest.mark.long
def test_run_with_the_released_networks_trains(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, "fedsis", training__rounds=1, evaluation__every=0)
    content["method"] |= {"adapter": "residual", "head": "normed", "weight": "uniform", "encoder_update": "average"}
    assert run_toy(content, tmp_path / "run")["rounds"] == 1
