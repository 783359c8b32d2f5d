"""FedSR's regularisers against NumPy in float64, and the loss of a site from its pieces."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.parity.gradients import Array, gradient_by_differences, value_and_gradients
from tests.toy import shortest_recipe

from fedvisage.base.streams import torch_rng
from fedvisage.federation.site import Batch
from fedvisage.methods.models import resnet18
from fedvisage.methods.pad import fedsr

MEAN = np.random.default_rng(0).normal(size=(4, 3))
SPREAD = np.random.default_rng(1).uniform(0.3, 2, (4, 3))
CENTRES, WIDTHS = (np.random.default_rng(seed).normal(size=(2, 3)) for seed in (2, 3))
LABELS, SCALE = np.array([1, 0, 0, 1]), 0.7


def divergence(mean: Array) -> float:
    """Return the mean of KL(N(Cµ, C²σ²) ‖ N(m_y, softplus(s_y)²)), summed over the dimensions."""
    own, wide = SCALE * SPREAD, np.log1p(np.exp(WIDTHS))[LABELS]
    squares = (own**2 + (SCALE * mean - CENTRES[LABELS]) ** 2) / (2 * wide**2)
    return float((np.log(wide / own) + squares - 0.5).sum(axis=1).mean())


def reference() -> fedsr.Reference:
    actual = fedsr.Reference(3).double()
    with torch.no_grad():
        actual.mean.copy_(torch.tensor(CENTRES))
        actual.spread.copy_(torch.tensor(WIDTHS))
        actual.scale.fill_(SCALE)
    return actual


def test_divergence_from_the_distribution_of_the_class_and_its_gradient() -> None:
    mean = torch.tensor(MEAN, requires_grad=True)
    loss = reference().divergence(mean, torch.tensor(SPREAD), torch.tensor(LABELS, dtype=torch.float64))
    value, (gradient,) = value_and_gradients(loss, mean)
    assert value == pytest.approx(divergence(MEAN), rel=1e-10)
    np.testing.assert_allclose(gradient, gradient_by_differences(divergence, MEAN), rtol=1e-5, atol=1e-8)


def test_loss_classifies_one_draw_and_adds_both_regularisers() -> None:
    recipe = shortest_recipe("fedsr", l2=0.3, information=0.2, network={"width": 8})
    torch.manual_seed(0)
    net = fedsr.network(recipe).eval()
    images, labels = torch.rand(4, 6, 32, 32), torch.tensor(LABELS).float()
    site = SimpleNamespace(
        recipe=recipe,
        net=net,
        losses=[None] * 5,
        rng=lambda *purpose: torch_rng(0, "A", 1, *purpose),
        autocast=torch.no_grad,
    )
    with torch.no_grad():
        actual = float(fedsr.loss(site, Batch(images, labels, None, np.array(["print"] * 4))))  # type: ignore[arg-type]
        whole = net["distribution"](resnet18.represent(net, images)).double().numpy()
    mean, spread = whole[:, :64], np.log1p(np.exp(whole[:, 64:]))
    noise = torch.randn(4, 64, generator=torch_rng(0, "A", 1, "representation", 5)).double().numpy()
    drawn = mean + spread * noise
    last = {name: value.double().numpy() for name, value in net["model"].get_submodule("fc").state_dict().items()}
    logits = drawn @ last["weight"][0] + last["bias"]
    entropy = np.log1p(np.exp(-(2 * LABELS - 1) * logits)).mean()
    # The reference distributions start at N(0, softplus(1)²), the scale at 1.
    wide = np.log1p(np.e)
    information = (np.log(wide / spread) + (spread**2 + mean**2) / (2 * wide**2) - 0.5).sum(axis=1).mean()
    expected = entropy + 0.3 * np.sqrt((drawn**2).sum(axis=1)).mean() + 0.2 * information
    assert actual == pytest.approx(expected, rel=1e-5)
