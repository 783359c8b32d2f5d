"""FedPAD's equations against a few lines of NumPy written from the paper, in float64."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.parity.gradients import value_and_gradients
from torch import nn

from fedvisage.federation.protections.combine import Mean
from fedvisage.federation.site import Batch
from fedvisage.methods.models import resnet18

ROUNDING = 2.0**-22
"""Absolute error of a difference of two float32 probabilities, rounding of their logits included."""


@pytest.mark.parametrize("seed", range(5))
def test_equation_1_and_its_gradient(seed: int) -> None:
    """-Σ y log D(x) + (1 - y) log(1 - D(x)), as a mean; its derivative by the logit is (D(x) - y) / N."""
    draws = np.random.default_rng(seed)
    logits, labels = draws.normal(0, 3, 16), draws.integers(0, 2, 16).astype(np.float64)
    live = 1 / (1 + np.exp(-logits))
    expected = -np.mean(labels * np.log(live) + (1 - labels) * np.log(1 - live))

    images = torch.from_numpy(logits)[:, None].requires_grad_()
    site = SimpleNamespace(net={"model": nn.ModuleDict({"fc": nn.Identity()})})
    batch = Batch(images, torch.from_numpy(labels).float(), None, np.array([]))
    loss = resnet18.MODEL.supervise(site, batch, images)  # type: ignore[arg-type]
    value, (gradient,) = value_and_gradients(loss, images)
    assert value == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(gradient[:, 0], (live - labels) / 16, rtol=1e-5, atol=ROUNDING / 16)


def test_equations_2_and_3_the_server_takes_the_plain_mean() -> None:
    draws = np.random.default_rng(0)
    uploads = [{"w": draws.normal(size=(4, 3)), "b": draws.normal(size=4)} for _ in range(5)]
    mean = Mean()
    for upload in uploads:
        mean.add({name: torch.from_numpy(value) for name, value in upload.items()}, 1.0)
    for name, value in mean.result().items():
        np.testing.assert_allclose(value.numpy(), sum(upload[name] for upload in uploads) / 5, rtol=1e-14)


def test_weights_by_number_of_images_are_shares_of_the_whole() -> None:
    draws = np.random.default_rng(1)
    uploads, counts = [draws.normal(size=7) for _ in range(4)], [10, 200, 3000, 1]
    mean = Mean()
    for upload, count in zip(uploads, counts, strict=True):
        mean.add({"w": torch.from_numpy(upload)}, float(count))
    expected = np.average(uploads, axis=0, weights=counts)
    np.testing.assert_allclose(mean.result()["w"].numpy(), expected, rtol=1e-13)
