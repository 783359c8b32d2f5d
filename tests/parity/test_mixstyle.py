"""MixStyle's equations and its place in the network, against NumPy in float64."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.parity.gradients import Array, value_and_gradients
from tests.toy import shortest_recipe
from torch import Tensor, nn

from fedvisage.base.streams import numpy_rng
from fedvisage.federation.site import Batch
from fedvisage.methods.models import resnet18
from fedvisage.methods.pad import mixstyle

MAPS, SLOPES = (np.random.default_rng(seed).normal(1, 2, (3, 2, 4, 5)) for seed in (0, 1))
SHARES, PARTNERS = np.array([0.25, 1.0, 0.6]), np.array([2, 1, 0])


def style_of(maps: Array) -> tuple[Array, Array]:
    pixels = maps.shape[2] * maps.shape[3]
    mean = maps.sum((2, 3)) / pixels
    spread = np.sqrt(((maps - mean[:, :, None, None]) ** 2).sum((2, 3)) / pixels + 1e-6)
    return mean, spread


def expected_maps(maps: Array, shares: Array, partners: NDArray[np.int64]) -> Array:
    mean, spread = style_of(maps)
    result = np.zeros_like(maps)
    for image, (share, partner) in enumerate(zip(shares, partners, strict=True)):
        for channel in range(maps.shape[1]):
            plain = (maps[image, channel] - mean[image, channel]) / spread[image, channel]
            scale = share * spread[image, channel] + (1 - share) * spread[partner, channel]
            result[image, channel] = scale * plain + share * mean[image, channel] + (1 - share) * mean[partner, channel]
    return result


def test_styles_are_mixed_by_equation_6_and_carry_no_gradient() -> None:
    maps = torch.tensor(MAPS, requires_grad=True)
    actual = mixstyle.mix_styles(maps, torch.tensor(SHARES), torch.tensor(PARTNERS))
    np.testing.assert_allclose(actual.detach().numpy(), expected_maps(MAPS, SHARES, PARTNERS), rtol=1e-10)
    _, (gradient,) = value_and_gradients((actual * torch.tensor(SLOPES)).sum(), maps)
    spread = style_of(MAPS)[1]
    scale = SHARES[:, None] * spread + (1 - SHARES[:, None]) * spread[PARTNERS]
    np.testing.assert_allclose(gradient, SLOPES * (scale / spread)[:, :, None, None], rtol=1e-10)


def test_image_with_a_share_of_one_keeps_its_maps() -> None:
    actual = mixstyle.mix_styles(torch.tensor(MAPS), torch.ones(3), torch.tensor(PARTNERS))
    np.testing.assert_allclose(actual.numpy(), MAPS, rtol=1e-6)


@pytest.mark.parametrize("probability", [0.0, 0.6, 1.0])
def test_site_mixes_after_the_first_two_stages_with_the_draws_of_its_step(probability: float) -> None:
    """In the third step of round 1 of site A; each stage draws whether it mixes, then shares and partners."""
    recipe = shortest_recipe("mixstyle", probability=probability, alpha=0.4, network={"width": 8})
    torch.manual_seed(0)
    net = resnet18.network(recipe).double().eval()
    images, labels = torch.rand(4, 6, 32, 32, dtype=torch.float64), torch.tensor([1.0, 0, 1, 0])
    site = SimpleNamespace(recipe=recipe, net=net, name="A", round=1, losses=[None] * 2, autocast=torch.no_grad)
    batch = Batch(images, labels, None, np.array(["bonafide", "print"] * 2))
    actual = mixstyle.loss(site, batch)  # type: ignore[arg-type]

    model, rng = net["model"], numpy_rng(0, "A", 1, "styles", 2)
    with torch.no_grad():
        values = apply(model, images, "conv1", "bn1", "act1", "maxpool")
        for stage in ("layer1", "layer2"):
            values = apply(model, values, stage)
            if rng.random() < probability:
                shares = rng.beta(0.4, 0.4, 4).astype(np.float32).astype(np.float64)
                values = torch.from_numpy(expected_maps(values.numpy(), shares, rng.permutation(4)))
        pooled = apply(model, values, "layer3", "layer4").mean((2, 3))
        logits = model.get_submodule("fc")(pooled).squeeze(1).float().numpy()
    signs = 2 * labels.numpy() - 1
    assert float(actual.detach()) == pytest.approx(float(np.log1p(np.exp(-signs * logits)).mean()), rel=1e-5)


def apply(model: nn.Module, values: Tensor, *names: str) -> Tensor:
    for name in names:
        values = model.get_submodule(name)(values)
    return values
