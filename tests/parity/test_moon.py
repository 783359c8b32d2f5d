"""MOON's Eq. 3 (FedFR's Eq. 5) against a few lines of NumPy, in float64, and the model that a site keeps for it."""

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.federation.wires import Wire
from tests.parity.gradients import Array, gradient_by_differences, value_and_gradients
from tests.toy import ROUNDS, SITES, Sets, run_toy, shortest_recipe, tree
from torch import Tensor, nn

from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.wire.message import Message, Order, under
from fedvisage.methods.algorithms import moon
from fedvisage.nn.losses.contrastive import model_contrastive

FEATURES, WANTED, UNWANTED = (np.random.default_rng(seed).normal(size=(6, 9)) for seed in range(3))


def cosines(first: Array, second: Array) -> Array:
    return np.array([a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in zip(first, second, strict=True)])


def expected_loss(features: Array, temperature: float) -> float:
    good, bad = (np.exp(cosines(features, other) / temperature) for other in (WANTED, UNWANTED))
    return float(-np.log(good / (good + bad)).mean())


@pytest.mark.parametrize("temperature", [0.5, 0.07])
def test_equation_3_and_its_gradient(temperature: float) -> None:
    features = torch.tensor(FEATURES, requires_grad=True)
    loss = model_contrastive(features, torch.tensor(WANTED), torch.tensor(UNWANTED), temperature)
    value, (gradient,) = value_and_gradients(loss, features)
    assert value == pytest.approx(expected_loss(FEATURES, temperature), rel=1e-10)
    expected = gradient_by_differences(partial(expected_loss, temperature=temperature), FEATURES)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8)


def test_equal_models_have_no_gradient() -> None:
    features, other = torch.tensor(FEATURES, requires_grad=True), torch.tensor(WANTED)
    value, (gradient,) = value_and_gradients(model_contrastive(features, other, other, 0.5), features)
    assert value == pytest.approx(math.log(2), rel=1e-12)
    assert np.abs(gradient).max() < 1e-15


def test_loss_is_finite_at_a_low_temperature() -> None:
    same, opposite = torch.ones(1, 4), -torch.ones(1, 4)
    assert model_contrastive(same, same, opposite, 0.005) == 0
    assert model_contrastive(same, opposite, same, 0.005) == pytest.approx(400)


def test_features_are_pulled_to_the_global_model_and_away_from_the_last_local_one() -> None:
    """Models that scale each input on its own: ``global`` and ``previous`` are those of Eq. 3, in this order."""
    held = {name: nn.ModuleDict({"model": Scales(seed)}) for seed, name in ((1, "global"), (2, "previous"))}
    recipe = shortest_recipe("moon", mu=3.0, temperature=0.7)
    images, features = torch.tensor(FEATURES), torch.tensor(UNWANTED)
    site = SimpleNamespace(recipe=recipe, held=held)
    actual = moon.contrast(site, images, features, lambda net, given: net["model"](given))  # type: ignore[arg-type]
    good, bad = (np.exp(cosines(UNWANTED, FEATURES * scales(seed)) / 0.7) for seed in (1, 2))
    assert actual.item() == pytest.approx(3 * -np.log(good / (good + bad)).mean(), rel=1e-5)
    assert actual.item() != pytest.approx(3 * -np.log(bad / (good + bad)).mean(), rel=1e-2)


def scales(seed: int) -> Array:
    return np.random.default_rng(10 + seed).normal(size=9)


class Scales(nn.Module):
    """A model that multiplies its inputs by fixed factors."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.factors = torch.from_numpy(scales(seed))

    def forward(self, images: Tensor) -> Tensor:
        return images * self.factors


def test_local_training_uses_the_lent_model_as_global_and_the_kept_one_as_previous() -> None:
    lent, kept = ({"model.weight": torch.full((1,), value)} for value in (2.0, 5.0))
    site = SimpleNamespace(
        recipe=shortest_recipe("moon"),
        held={},
        kept={f"{moon.PREVIOUS}{name}": value for name, value in kept.items()},
        frozen=lambda message, *parts: message,
        tensors=lambda *parts: {},
    )
    moon.with_frozen_models(lambda site, message: {}, "model")(site, lent)  # type: ignore[arg-type]
    assert site.held == {"global": lent, "previous": kept}


@pytest.mark.long
def test_a_site_keeps_the_model_that_it_sent_last(sets: Sets, tmp_path: Path) -> None:
    sent: dict[str, Message] = {}

    def record(site: str, _: Order, message: Message) -> None:
        if "loss" in message:
            sent[site] = {name: value for name, value in message.items() if name.startswith("model.")}

    run_toy(tree(sets, "moon"), tmp_path / "run", wire=partial(Wire, record=record))
    for site in SITES:
        store = SiteStore(tmp_path / "run" / "sites" / site)
        store.restore(ROUNDS)
        kept = under(moon.PREVIOUS, store.load())
        assert kept.keys() == sent[site].keys()
        assert all(torch.equal(value, sent[site][name]) for name, value in kept.items())
