"""FedGPAD's depth loss (Eq. 5) with species left out, against NumPy, values and gradients, in float64."""

import numpy as np
import pytest
import torch
from tests.parity.gradients import value_and_gradients

from fedvisage.methods.pad.fedgpad import depth_error
from fedvisage.nn.losses.disentanglement import Form

ESTIMATED, EXACT = (np.random.default_rng(seed).normal(size=(4, 3, 3)) for seed in (0, 1))
SPECIES = np.array(["bonafide", "mask", "print", "mask"])


def error(species: np.ndarray, form: Form, *without: str) -> tuple[float, np.ndarray]:
    estimated = torch.tensor(ESTIMATED, requires_grad=True)
    loss = depth_error(estimated, torch.tensor(EXACT), species, form, without)
    value, (gradient,) = value_and_gradients(loss, estimated)
    return value, gradient


@pytest.mark.parametrize(
    ("form", "without", "weights", "share"),
    [
        ("printed", (), [1, 1, 1, 1], 1),
        ("mean", (), [1, 1, 1, 1], 36),
        ("printed", ("mask",), [1, 0, 1, 0], 1),
        ("mean", ("mask",), [1, 0, 1, 0], 18),
        ("mean", ("mask", "print"), [1, 0, 0, 0], 9),
        ("mean", ("resin",), [1, 1, 1, 1], 36),
    ],
)
def test_excluded_species_do_not_count_in_sum_or_mean(
    form: Form, without: tuple[str, ...], weights: list[int], share: int
) -> None:
    value, gradient = error(SPECIES, form, *without)
    counted = np.array(weights)[:, None, None]
    assert value == pytest.approx((counted * (ESTIMATED - EXACT) ** 2).sum() / share, rel=1e-12)
    np.testing.assert_allclose(gradient, counted * 2 * (ESTIMATED - EXACT) / share, rtol=1e-12)


@pytest.mark.parametrize("form", ["printed", "mean"])
def test_a_batch_of_masks_alone_has_no_depth_loss_and_no_gradient(form: Form) -> None:
    value, gradient = error(np.array(["mask"] * 4), form, "mask")
    assert value == 0.0
    assert not gradient.any()
