"""Matching of neurons, compared with the best of all assignments."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from fedvisage.base.streams import seed_global_rng
from fedvisage.nn.matching import (
    Order,
    Prior,
    Rows,
    assign,
    combine_slots,
    match_neurons,
    reorder_inputs,
    rows_of,
    squared_distances,
    weights_of,
)
from fedvisage.nn.vgg import LAYERS, VGG, apply_layers, vgg

Weights = dict[str, tuple[torch.Tensor, torch.Tensor]]
IMAGES = torch.rand(4, 6, 32, 32, generator=torch.Generator().manual_seed(0))


def scatter(layers: Sequence[Rows], orders: Sequence[Order]) -> float:
    """Eq. 2's objective with each slot's weights at their best: squared distances of all neurons to their slots."""
    placed = np.array([rows[np.argsort(order)] for rows, order in zip(layers, orders, strict=True)])
    return float(np.square(placed - placed.mean(axis=0)).sum())


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_two_networks_are_matched_as_well_as_by_trying_all_permutations(count: int, inputs: int, seed: int) -> None:
    first, second = np.random.default_rng(seed).normal(size=(2, count, inputs))
    orders = match_neurons([first, second], [1, 1]).orders
    best = min(scatter([first, second], [np.arange(count), np.array(one)]) for one in permutations(range(count)))
    assert scatter([first, second], orders) == pytest.approx(best, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_no_single_network_can_be_matched_better_to_the_others(seed: int) -> None:
    layers = list(np.random.default_rng(seed).normal(size=(4, 5, 3)))
    orders = match_neurons(layers, [1] * 4).orders
    for number in range(4):
        for other in permutations(range(5)):
            swapped = [*orders[:number], np.array(other), *orders[number + 1 :]]
            assert scatter(layers, orders) <= scatter(layers, swapped) + 1e-9


def test_distances_are_those_of_the_definition() -> None:
    rows, slots = np.random.default_rng(0).normal(size=(2, 5, 7))
    expected = [[((row - slot) ** 2).sum() for slot in slots] for row in rows]
    np.testing.assert_allclose(squared_distances(rows, slots), expected, rtol=1e-10)


def test_weights_move_the_mean_and_a_single_network_is_unchanged() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 3))
    other = rows[::-1] + 0.01
    actual = match_neurons([rows, other], [0.5, 1.5])
    np.testing.assert_allclose(actual.mean, rows + 0.0075, rtol=0, atol=1e-12)
    alone = match_neurons([rows], [1.0], Prior(1, 1, 7))
    assert (alone.orders[0] == np.arange(4)).all()
    assert (alone.mean == rows).all()


def log_posterior(layers: Sequence[Rows], orders: Sequence[Order], prior: Prior) -> float:
    """Twice the log of what beta-Bernoulli process and Gaussians say, from the sums over slots; popularity apart."""
    total = 0.0
    for slot in range(len(layers[0])):
        kept = [rows[list(order).index(slot)] for rows, order in zip(layers, orders, strict=True)]
        kept = [row for row in kept if row.any()]
        if kept:
            natural = np.sum(kept, axis=0) / prior.sigma**2
            total += float(natural @ natural) / (1 / prior.sigma0**2 + len(kept) / prior.sigma**2)
    return total


def popularity(order: Sequence[int], real: int, held: NDArray[np.int64], networks: int, prior: Prior) -> float:
    """Twice the log odds of one network's slots: m / (J - m) for an old one, Poisson's (gamma / J)^k / k! for new."""
    new = sorted(slot for slot in order[:real] if held[slot] == 0)
    free = [slot for slot in range(len(held)) if held[slot] == 0]
    total = sum(np.log(held[slot] / (networks - held[slot])) for slot in order[:real] if held[slot])
    return 2 * float(total + sum(np.log(prior.gamma / networks / (1 + free.index(slot))) for slot in new))


def all_orders(places: int, real: int) -> Iterator[Order]:
    """Every way to put the real neurons (the first ones) into slots; empty places follow in order."""
    for slots in permutations(range(places), real):
        rest = [slot for slot in range(places) if slot not in slots]
        yield np.array([*slots, *rest])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("prior", [Prior(1.0, 1.0, 7.0), Prior(0.5, 2.0, 3.0)])
def test_growing_assignment_is_the_most_probable_of_all(seed: int, prior: Prior) -> None:
    draws = np.random.default_rng(seed)
    layers = list(draws.normal(size=(3, 7, 3)))
    for rows in layers:
        rows[3:] = 0
    stable = [np.arange(7), np.array([2, 0, 3, 1, 4, 5, 6])]  # three places are free
    others = combine_slots(layers[:2], stable, [1, 1], range(2))
    actual = assign(layers[2], others, 1.0, 3, prior)

    def value(order: Order) -> float:
        return log_posterior(layers, [*stable, order], prior) + popularity(list(order), 3, others.held, 3, prior)

    assert value(actual) == pytest.approx(max(value(order) for order in all_orders(7, 3)), rel=1e-10)
    assert sorted(actual) == list(range(7))


def test_unmatched_neurons_open_slots_and_are_not_diluted() -> None:
    common = 10 * np.eye(4, 6)
    first, second = np.zeros((2, 8, 6))
    first[:4], second[:4] = common, common[::-1]
    first[4], second[4] = [0, 0, 0, 0, 9, 0], [0, 0, 0, 0, 0, 9]
    actual = match_neurons([first, second], [1, 1], Prior(1, 1, 1))
    kept = actual.mean[actual.mean.any(axis=1)]
    expected = {tuple(row) for row in (*common, first[4], second[4])}
    assert {tuple(row) for row in kept} == expected


def weights_of_net(seed: int, spare: int = 0) -> Weights:
    with seed_global_rng(seed, "initial weights"):
        net = vgg(VGG(width=8), 6, spare)
    layers = {}
    for name in LAYERS:
        weight, bias = (net[name].get_parameter(f"0.{kind}").detach() for kind in ("weight", "bias"))
        real = weight.flatten(1).any(dim=1)
        bias[real] = 0.1 * torch.randn(int(real.sum()), generator=torch.Generator().manual_seed(seed))
        layers[name] = weight, bias
    return layers


def outputs(weights: Weights, spare: int = 0) -> torch.Tensor:
    net = vgg(VGG(width=8), 6, spare)
    net.load_state_dict(
        {
            f"{name}.0.{kind}": value
            for name, both in weights.items()
            for kind, value in zip(("weight", "bias"), both, strict=True)
        }
    )
    with torch.no_grad():
        return apply_layers(net, IMAGES, LAYERS)


def shuffle_neurons(weights: Weights, seed: int) -> Weights:
    """Put each hidden layer's neurons in another order."""
    generator, actual = torch.Generator().manual_seed(seed), dict(weights)
    for name, following in pairwise(LAYERS):
        order = torch.randperm(len(weights[name][0]), generator=generator)
        inverse = torch.argsort(order)
        actual[name] = (actual[name][0][inverse], actual[name][1][inverse])
        actual[following] = (reorder_inputs(actual[following][0], order), actual[following][1])
    return actual


def matched_average(copies: list[Weights], prior: Prior | None = None) -> Weights:
    """Go through the layers as FedMA does, without any training between them."""
    copies, actual = [dict(copy) for copy in copies], {}
    for name, following in pairwise(LAYERS):
        result = match_neurons([rows_of(*copy[name]) for copy in copies], [1.0] * len(copies), prior)
        actual[name] = weights_of(result.mean, copies[0][name][0])
        for copy, order in zip(copies, result.orders, strict=True):
            copy[following] = (reorder_inputs(copy[following][0], torch.from_numpy(order)), copy[following][1])
    return actual | {"output": plain_average(copies)["output"]}


def plain_average(copies: list[Weights]) -> Weights:
    def mean_of(name: str, kind: int) -> torch.Tensor:
        return torch.stack([copy[name][kind] for copy in copies]).mean(dim=0)

    return {name: (mean_of(name, 0), mean_of(name, 1)) for name in LAYERS}


def test_the_matched_average_of_shuffled_copies_is_the_network_itself() -> None:
    weights = weights_of_net(0)
    copies = [weights, *(shuffle_neurons(weights, seed) for seed in (1, 2, 3))]
    actual = matched_average(copies)
    for name in LAYERS[:-1]:
        assert torch.equal(actual[name][0], weights[name][0]), name
        assert torch.equal(actual[name][1], weights[name][1]), name
    torch.testing.assert_close(outputs(actual), outputs(weights), rtol=0, atol=1e-5)
    assert (outputs(plain_average(copies)) - outputs(weights)).abs().max() > 0.01


def test_shuffled_copies_alone_are_the_network_up_to_the_order_of_its_neurons() -> None:
    weights = weights_of_net(0)
    actual = matched_average([shuffle_neurons(weights, seed) for seed in (1, 2)])
    torch.testing.assert_close(outputs(actual), outputs(weights), rtol=0, atol=1e-5)
    first = {tuple(row) for row in rows_of(*weights["convolution1"])}
    assert {tuple(row) for row in rows_of(*actual["convolution1"])} == first


def test_matching_with_growth_keeps_the_function_of_copies() -> None:
    weights = weights_of_net(0, spare=2)
    actual = matched_average([weights, shuffle_neurons(weights, 1)], Prior(1.0, 1.0, 7.0))
    torch.testing.assert_close(outputs(actual, spare=2), outputs(weights, spare=2), rtol=0, atol=1e-5)
    assert any(
        int(actual[name][0].flatten(1).any(dim=1).sum()) > 8 * factor
        for name, factor in zip(LAYERS, (1, 2, 4, 4, 8, 8, 8), strict=False)
    )


def test_rows_and_weights_are_inverse() -> None:
    for layer in (nn.Conv2d(3, 5, 3), nn.Linear(4, 6)):
        before = [value.detach() for value in layer.parameters()]
        weight, bias = weights_of(rows_of(*before), before[0])
        assert torch.equal(weight, before[0])
        assert torch.equal(bias, before[1])


@pytest.mark.parametrize("seed", range(5))
def test_growth_without_new_slots_is_matching_at_constant_width(seed: int) -> None:
    layers = list(np.random.default_rng(seed).normal(size=(3, 6, 4)))
    kept = match_neurons(layers, [0.5, 1.0, 1.5])
    roomy = match_neurons([np.pad(rows, ((0, 3), (0, 0))) for rows in layers], [0.5, 1.0, 1.5], Prior(1.0, 2.0, 1e-300))
    assert all((order[:6] == other).all() for order, other in zip(roomy.orders, kept.orders, strict=True))
    assert (roomy.mean[:6] == kept.mean).all()
    assert not roomy.mean[6:].any()
