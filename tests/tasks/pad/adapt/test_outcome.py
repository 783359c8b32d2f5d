"""Outcomes of adaptation on a detector built by hand: images adapted to, withheld and reverted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.pad.adapt.examples import (
    BIAS,
    DARK,
    DEVIATION,
    FORMS,
    LIGHT,
    MEAN,
    PAPER,
    RUINOUS,
    SOURCE,
    detector,
    live_at,
)
from tests.toy import Sets

from fedvisage.data.batches import Batch, Positions, View
from fedvisage.data.prepared import PreparedSet
from fedvisage.metrics import gate
from fedvisage.nn.batchnorm import StatisticsMeter
from fedvisage.recipe import ADAPTATIONS, Adapt
from fedvisage.tasks.pad.adaptation import Learner, adapt_to_view, parts_of, units_of
from fedvisage.tasks.scoring import Scorer


@pytest.fixture
def scorer(sets: Sets) -> Scorer:
    return detector(sets)


@pytest.fixture
def target(sets: Sets) -> View:
    return View.of(PreparedSet.open(sets["U"]))


def test_detector_gives_the_scores_it_was_built_for(scorer: Scorer, target: View) -> None:
    expected = [live_at(DARK if kind == "print" else LIGHT) for kind in target.species]
    np.testing.assert_allclose(scorer.logits(target), expected, atol=0.4)


def test_statistics_alone_move_the_mean_and_the_deviation(scorer: Scorer, target: View) -> None:
    """Three quarters of the statistics are the target's; every logit follows from the brightness of the images."""
    small = 1e-5  # BatchNorm adds it to the variance
    brightness = MEAN + (scorer.logits(target) - BIAS) * np.sqrt(DEVIATION**2 + small)
    settings = Adapt.model_validate(ADAPTATIONS["statistics"] | {"batch": 18})
    batches = [brightness[positions] for positions in parts_of(np.arange(len(target)), target, settings, seed=0)]
    mean = 0.25 * MEAN + 0.75 * np.mean([batch.mean() for batch in batches])
    variance = 0.25 * DEVIATION**2 + 0.75 * np.mean([batch.var(ddof=1) for batch in batches])
    logits, outcome = adapt_to_view(scorer, target, settings, SOURCE)
    assert outcome.adapted == len(target)
    np.testing.assert_allclose(logits, BIAS + (brightness - mean) / np.sqrt(variance + small), rtol=1e-4)


@pytest.mark.parametrize("settings", FORMS, ids=lambda form: f"{form.loop}-{'gated' if form.gate else 'open'}")
def test_harmless_adaptation_covers_all_images(scorer: Scorer, target: View, settings: Adapt) -> None:
    logits, outcome = adapt_to_view(scorer, target, settings, SOURCE)
    assert outcome.as_json() == {"adapted": len(target), "skipped": {}, "taken_back": {}}
    assert (np.abs(logits - scorer.logits(target)) > 0.01).mean() > 0.8


def test_steps_change_only_scale_and_shift(scorer: Scorer, target: View) -> None:
    before = {name: value.clone() for name, value in scorer.net.state_dict().items()}
    with Learner(scorer, target, PAPER) as learner, learner.with_batch_statistics():
        learner.step(np.arange(8))
        moved = {name for name, value in scorer.net.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"model.2.weight", "model.2.bias"}


def test_settled_model_is_independent_of_the_order_of_images(scorer: Scorer, target: View) -> None:
    """A stream that starts with all attacks ruins batch statistics, so the settled loop draws its own batches."""
    by_label = np.argsort(target.labels, kind="stable")
    for settings, equal in ((Adapt(batch=18), True), (PAPER.model_copy(update={"stream": "stored"}), False)):
        first, outcome = adapt_to_view(scorer, target, settings, SOURCE)
        second, _ = adapt_to_view(scorer, target.subset(by_label), settings, SOURCE)
        assert outcome.adapted == len(target)
        assert np.allclose(first[by_label], second, atol=1e-5) is equal


class Darker(View):
    """The same images with half the light, many deviations away from the detector's statistics."""

    def batch(self, positions: Positions) -> Batch:
        result = super().batch(positions)
        return replace(result, images=result.images // 2)


def test_gate_adapts_only_to_targets_beyond_the_scatter_of_batches(scorer: Scorer, target: View) -> None:
    darker, shifts = Darker(target.slices), []
    for view in (target, darker):
        with torch.no_grad(), StatisticsMeter(scorer.net) as meter:
            scorer.logits(view)
        assert meter.shift is not None
        shifts.append(meter.shift)
    assert shifts[0] < 0.3
    assert shifts[1] > 10
    between = replace(SOURCE, scatter=1.0)
    _, near = adapt_to_view(scorer, target, Adapt(), between)
    _, far = adapt_to_view(scorer, darker, Adapt(), replace(between, threshold=live_at((LIGHT + DARK) / 4)))
    assert near.skipped == {"not moved": len(target)}
    assert far.skipped == {}


def test_harmful_adaptation_is_undone(scorer: Scorer, target: View) -> None:
    ruinous = Adapt(lr=RUINOUS, batch=18)
    logits, outcome = adapt_to_view(scorer, target, ruinous, SOURCE)
    assert outcome.as_json() == {"adapted": 0, "skipped": {}, "taken_back": {"one class is left": len(target)}}
    np.testing.assert_allclose(logits, scorer.logits(target), atol=1e-6)
    ruined, _ = adapt_to_view(scorer, target, ruinous.model_copy(update={"gate": False}), SOURCE)
    assert ruined.min() > SOURCE.threshold + 10, "without the gate every image is now live"


def test_online_adaptation_is_undone_per_batch(scorer: Scorer, target: View) -> None:
    """The first batch is decided before any step; the second one follows a harmful step and is reverted."""
    settings = Adapt(loop="online", lr=RUINOUS, batch=18)
    logits, outcome = adapt_to_view(scorer, target, settings, SOURCE)
    first, second = units_of(target, settings, scorer.recipe.runtime.seed)
    assert (outcome.adapted, outcome.taken_back) == (len(first), {"one class is left": len(second)})
    plain = scorer.logits(target)
    np.testing.assert_allclose(logits[second], plain[second], atol=1e-6)
    assert np.abs(logits[first] - plain[first]).max() > 0.1


@pytest.mark.parametrize(("rate", "stands"), [(0.005, True), (RUINOUS, False)])
def test_gate_scores_a_sample_and_each_image_passes_at_most_twice_more(
    scorer: Scorer, target: View, rate: float, stands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each image has a step and a decision, and a sample also has the source model's score, even after a reversion.

    Then the rest is decided by the source model, which costs no pass besides.
    """
    monkeypatch.setattr(gate, "SMALLEST_GLIMPSE", 16)
    passed, plain = list[int](), scorer.logits(target)

    def count(_: Any, images: tuple[torch.Tensor, ...]) -> None:
        passed.append(len(images[0]))

    scorer.net["model"].register_forward_pre_hook(count)
    logits, outcome = adapt_to_view(scorer, target, Adapt(lr=rate, batch=9), SOURCE)
    assert (outcome.adapted, sum(outcome.taken_back.values())) == ((len(target), 0) if stands else (0, len(target)))
    assert sum(passed) == 2 * len(target) + 18
    assert np.allclose(logits, plain, atol=1e-5) is not stands
