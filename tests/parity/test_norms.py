"""Group normalisation and scaled weight standardisation against a few lines of NumPy, in float64."""

from functools import partial

import numpy as np
import pytest
import torch
from tests.parity.gradients import Array, gradient_by_differences, value_and_gradients
from torch import nn

from fedvisage.nn.norms import ScaleAndShift, StandardisedConv2d, replace_batchnorm, standardise
from fedvisage.nn.resnet import ResNet18, resnet18

WEIGHT, SHARES = (np.random.default_rng(seed).normal(0.3, 0.7, (4, 3, 2, 2)) for seed in (0, 1))
MAPS = np.random.default_rng(2).normal(1, 3, (2, 24, 4, 5))


def expected_weights(weight: Array) -> Array:
    result = np.zeros_like(weight)
    for channel, values in enumerate(weight):
        mean, spread = values.sum() / 12, np.sqrt(((values - values.sum() / 12) ** 2).sum() / 12)
        result[channel] = np.sqrt(2 / (1 - 1 / np.pi)) * (values - mean) / (spread * np.sqrt(12))
    return result


def weighted_sum(weight: Array, shares: Array) -> float:
    return float((expected_weights(weight) * shares).sum())


def test_standardised_weights_and_their_gradient_are_those_of_the_equation() -> None:
    weight = torch.tensor(WEIGHT, requires_grad=True)
    np.testing.assert_allclose(standardise(weight).detach().numpy(), expected_weights(WEIGHT), rtol=1e-12)
    value, (gradient,) = value_and_gradients((standardise(weight) * torch.tensor(SHARES)).sum(), weight)
    assert value == pytest.approx(weighted_sum(WEIGHT, SHARES), rel=1e-10)
    expected = gradient_by_differences(partial(weighted_sum, shares=SHARES), WEIGHT)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8)


def test_equal_weights_stay_finite() -> None:
    weight = torch.ones(2, 3, 2, 2, requires_grad=True)
    _, (gradient,) = value_and_gradients(standardise(weight).square().sum(), weight)
    assert np.isfinite(gradient).all()


def test_convolution_uses_the_standardised_weights() -> None:
    net = replace_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 2, bias=False)), "weight-standardised")
    (layer,) = net.children()
    assert isinstance(layer, StandardisedConv2d)
    layer.weight.data = torch.tensor(WEIGHT)
    images = np.random.default_rng(3).normal(size=(1, 3, 2, 2))
    expected = [(expected_weights(WEIGHT)[channel] * images[0]).sum() for channel in range(4)]
    np.testing.assert_allclose(net(torch.tensor(images)).detach().numpy().ravel(), expected, rtol=1e-12)


def test_group_normalisation_is_that_of_the_equations() -> None:
    """24 channels in eight groups of three, each image by itself."""
    net = replace_batchnorm(nn.Sequential(nn.BatchNorm2d(24)), "group").double()
    rows = MAPS.reshape(2, 4, 6, 4, 5)
    mean, variance = rows.mean((2, 3, 4), keepdims=True), rows.var((2, 3, 4), keepdims=True)
    expected = ((rows - mean) / np.sqrt(variance + 1e-5)).reshape(MAPS.shape)
    np.testing.assert_allclose(net(torch.tensor(MAPS)).detach().numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("channels", [8, 16, 24, 32, 40, 64, 320, 512])
def test_every_group_has_two_channels_or_more(channels: int) -> None:
    (layer,) = replace_batchnorm(nn.Sequential(nn.BatchNorm2d(channels)), "group").children()
    assert isinstance(layer, nn.GroupNorm)
    assert channels // layer.num_groups >= 2
    assert channels < 64 or channels % 64 or layer.num_groups == 32, "the paper's number, where it divides the channels"


@pytest.mark.parametrize("norm", ["group", "weight-standardised"])
def test_network_starts_from_the_weights_of_the_one_with_batchnorm(norm: str) -> None:
    plain, other = (build(choice) for choice in (None, norm))
    expected = dict(plain.named_parameters())
    actual = dict(other.named_parameters())
    assert actual.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in actual.items())
    assert not list(other.buffers())
    kinds = {type(layer) for layer in other.modules() if list(layer.parameters(recurse=False))}
    assert kinds == {nn.Linear} | (
        {nn.Conv2d, nn.GroupNorm} if norm == "group" else {StandardisedConv2d, ScaleAndShift}
    )


@pytest.mark.parametrize("norm", ["group", "weight-standardised"])
def test_output_of_an_image_does_not_depend_on_its_batch_or_on_the_mode(norm: str) -> None:
    net = build(norm).double()
    images = torch.rand(3, 6, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together, alone = net.train()(images), net.eval()(images[1:2])
    torch.testing.assert_close(together[1:2], alone, rtol=1e-9, atol=1e-12)


def build(norm: str | None) -> nn.Module:
    torch.manual_seed(0)
    return resnet18(ResNet18.model_validate({"width": 8, "norm": norm}), "rgb+hsv")
