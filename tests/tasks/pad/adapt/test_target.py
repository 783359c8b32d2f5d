"""Adaptation of a finished model to the target, from the files of a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.refusals import refused
from tests.tasks.pad.adapt.examples import FORMS, PAPER
from tests.toy import NewRun, Sets, make_set, run_toy, scores_of, tree
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.nn.batchnorm import StatisticsMeter
from fedvisage.recipe import Adapt
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.pad.adaptation import (
    AdaptationSource,
    Learner,
    adapt_and_score,
    adapt_to_view,
    affine,
    parts_of,
    units_of,
)
from fedvisage.tasks.scoring import Scorer

ANYWHERE = AdaptationSource(threshold=0.0, scatter=0.0)


@pytest.fixture(scope="module")
def run(sets: Sets, new_run: NewRun) -> Path:
    return new_run(tree(sets))


@pytest.fixture
def scorer(run: Path) -> Scorer:
    found = open_model(run)
    found.scorer.load(found.saved.finished)
    return found.scorer


@pytest.fixture
def target(sets: Sets) -> View:
    return View.of(PreparedSet.open(sets["U"]))


@pytest.fixture
def balanced(scorer: Scorer, target: View) -> AdaptationSource:
    """A source whose threshold separates both classes of the target."""
    return AdaptationSource(threshold=float(np.median(scorer.logits(target))), scatter=0.0)


def content(scorer: Scorer) -> dict[str, list[float]]:
    return {name: value.flatten().tolist() for name, value in scorer.net.state_dict().items()}


def check_skipped(scorer: Scorer, view: View, settings: Adapt, source: AdaptationSource, reason: str) -> None:
    """Check that all images are skipped for a reason, and keep the scores of the source model."""
    logits, outcome = adapt_to_view(scorer, view, settings, source)
    assert outcome.skipped == {reason: len(view)}
    np.testing.assert_allclose(logits, scorer.logits(view), atol=1e-6)


def test_paper_loop_steps_in_one_pass_and_decides_in_a_second(scorer: Scorer, target: View) -> None:
    """The same written with PyTorch's own training mode, one Adam step a batch over all scales and shifts.

    In float64, because Adam's first steps have the same length whatever the gradient, be it only rounding.
    """
    first = scorer.net.double()["model"].get_submodule("conv1")
    first.register_forward_pre_hook(lambda _, images: images[0].double())
    found, _ = adapt_to_view(scorer, target, PAPER, ANYWHERE)

    net = scorer.net["model"].train()
    order = numpy_rng(scorer.recipe.runtime.seed, "user", "adaptation").permutation(len(target))
    batches = [order[start : start + 8] for start in range(0, len(order), 8)]
    layers = [layer for layer in net.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    adam = torch.optim.Adam([p for layer in layers for p in (layer.weight, layer.bias)], lr=5e-3)
    for positions in batches:
        logits = scorer.live(target, positions)
        adam.zero_grad()
        binary_cross_entropy_with_logits(logits, logits.sigmoid()).backward()
        adam.step()
    with torch.no_grad():
        expected = torch.cat([scorer.live(target, positions) for positions in batches])
    np.testing.assert_allclose(found[order], expected.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("settings", FORMS, ids=lambda form: f"{form.loop}-{'gated' if form.gate else 'open'}")
def test_scorer_holds_the_source_model_after_adaptation(
    scorer: Scorer, target: View, balanced: AdaptationSource, settings: Adapt
) -> None:
    """The outcome of the adaptation has no influence."""
    before, plain = content(scorer), scorer.logits(target)
    learned = [parameter.requires_grad for parameter in scorer.net.parameters()]
    logits, outcome = adapt_to_view(scorer, target, settings, balanced)
    assert outcome.adapted + sum((outcome.taken_back + outcome.skipped).values()) == len(target)
    assert np.isfinite(logits).all()
    assert content(scorer) == before
    assert np.array_equal(scorer.logits(target), plain)
    assert [parameter.requires_grad for parameter in scorer.net.parameters()] == learned


def test_adaptation_is_deterministic(scorer: Scorer, target: View) -> None:
    for settings in (PAPER, Adapt(batch=8)):
        first, second = (adapt_to_view(scorer, target, settings, ANYWHERE)[0] for _ in range(2))
        assert np.array_equal(first, second)


def test_stream_sorted_by_label_starts_with_all_attacks(target: View) -> None:
    units = units_of(target, PAPER.model_copy(update={"stream": "sorted-by-label"}), seed=0)
    labels = target.labels[np.concatenate(units)]
    assert (np.diff(labels.astype(int)) >= 0).all()


def test_settled_model_decides_on_images_independently(scorer: Scorer, target: View) -> None:
    with Learner(scorer, target, PAPER) as learner:
        with learner.collecting():
            learner.step(np.arange(12))
        together, alone = learner.decide(np.arange(6)), learner.decide(np.array([3]))
    assert alone[0] == pytest.approx(together[3], abs=1e-4)


def test_target_of_one_class_keeps_the_source_scores(scorer: Scorer, target: View) -> None:
    source = AdaptationSource(threshold=float(scorer.logits(target).min()) - 1, scatter=0.0)
    check_skipped(scorer, target, Adapt(), source, "one class")


def test_small_target_keeps_the_source_scores(scorer: Scorer, balanced: AdaptationSource, tmp_path: Path) -> None:
    path = make_set(tmp_path / "long", "long", 3, subjects=1, species=("bonafide", "print"), frames=10)
    view = View.of(PreparedSet.open(path))
    for some, reason in ((view, "too few videos"), (view.subset(np.arange(15)), "too small")):
        check_skipped(scorer, some, Adapt(), balanced, reason)


def test_scatter_is_that_of_mixed_batches_of_held_out_images(run: Path, scorer: Scorer, sets: Sets) -> None:
    saved = open_model(run).saved
    for name, found in saved.scatter.items():
        view = View.of(PreparedSet.open(sets[name]), "heldout")
        order = np.argsort(view.items)[numpy_rng(0, "scatter").permutation(len(view))]
        with torch.no_grad(), StatisticsMeter(scorer.net) as meter:
            for half in np.array_split(order, 2):
                scorer.live(view, half)
        assert found == pytest.approx(meter.scatter, rel=1e-5)
        assert found > 0


def test_episodes_are_independent(scorer: Scorer, target: View) -> None:
    settings = Adapt(loop="episodic", gate=False)
    whole, _ = adapt_to_view(scorer, target, settings, ANYWHERE)
    for positions in units_of(target, settings, seed=0)[:3]:
        alone, _ = adapt_to_view(scorer, target.subset(positions), settings, ANYWHERE)
        np.testing.assert_allclose(whole[positions], alone, atol=1e-5)


def test_units_of_every_loop_hold_each_image_once(target: View) -> None:
    for batch in (2, 5, 7, 35, 64):
        for settings in FORMS:
            changed = settings.model_copy(update={"batch": batch})
            units = units_of(target, changed, seed=1)
            assert sorted(np.concatenate(units).tolist()) == list(range(len(target)))
            parts = [part for unit in units for part in parts_of(unit, target, changed, seed=1)]
            assert sorted(np.concatenate(parts).tolist()) == list(range(len(target)))


@pytest.mark.long
@pytest.mark.parametrize("name", ["single", "fused", "fedgpad", "fedbn"])
def test_every_member_is_adapted_separately(name: str, sets: Sets, target: View, tmp_path: Path) -> None:
    run_toy(tree(sets, name, training__rounds=1), tmp_path / "run")
    found = open_model(tmp_path / "run")
    sources = dict.fromkeys(("", "A", "B", "C"), ANYWHERE)
    logits, outcomes = adapt_and_score(found.scorer, found.saved.finished, target, PAPER, sources)
    assert set(logits) == ({"A", "B", "C"} if name == "single" else {""})
    assert set(outcomes) == ({"A", "B", "C"} if name in ("single", "fused") else {""})
    assert all(outcome.adapted == len(target) for outcome in outcomes.values())


@pytest.mark.long
def test_model_without_normalisation_layers_is_refused_by_name(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, "fedma", training__rounds=1), tmp_path / "run")
    found = open_model(tmp_path / "run")
    view = View.of(PreparedSet.open(sets["U"]))
    with refused("evaluation.adapt", "no BatchNorm and no LayerNorm"):
        adapt_and_score(found.scorer, found.saved.finished, view, PAPER, {"": ANYWHERE})


@pytest.mark.parametrize(
    ("layer", "pictures", "advised"),
    [(torch.nn.LayerNorm(4), "batchnorm", "layernorm"), (torch.nn.BatchNorm1d(4), "layernorm", "batchnorm")],
)
def test_available_kind_of_layers_is_suggested(layer: torch.nn.Module, pictures: str, advised: str) -> None:
    with refused("evaluation.adapt.over", advised):
        affine(torch.nn.Sequential(layer), pictures)


def test_requested_layernorms_are_selected() -> None:
    net = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.BatchNorm1d(4), torch.nn.LayerNorm(3))
    assert [tuple(parameter.shape) for parameter in affine(net, "layernorm")] == [(4,), (4,), (3,), (3,)]


@pytest.mark.long
def test_recipe_adapts_and_records_the_outcome(sets: Sets, tmp_path: Path) -> None:
    metrics = run_toy(tree(sets, evaluation__adapt="paper"), tmp_path / "run")
    assert metrics.part("adaptation") == {"model.adapted": 36}
    plain = run_toy(tree(sets), tmp_path / "plain")
    assert not plain.part("adaptation")
    assert metrics["threshold"] == plain["threshold"]
    adapted, source = (scores_of(tmp_path / name)[""] for name in ("run", "plain"))
    assert np.abs(adapted["logit"] - source["logit"]).max() > 1e-3
    assert metrics["auc"] == pytest.approx(roc_auc_score(adapted["label"], adapted["logit"]))


def test_single_image_is_scored_without_adaptation(scorer: Scorer, target: View) -> None:
    single = target.subset(np.array([0]))
    for settings, reason in ((Adapt(), "too small"), (PAPER, "a single image"), (FORMS[-1], "a single image")):
        check_skipped(scorer, single, settings, ANYWHERE, reason)


@pytest.mark.parametrize(
    ("section", "keyword"),
    [
        ({"loop": "episodic"}, "gate: false"),
        ({"loop": "online", "batch": 8}, "16"),
        ({"stream": "stored"}, "settled"),
        ({"lr": 0, "over": "layernorm"}, "LayerNorm has none"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(section: dict[str, Any], keyword: str) -> None:
    with pytest.raises(ValueError, match=keyword):
        Adapt.model_validate(section)
