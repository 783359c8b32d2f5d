"""Sites without held-out people, such as one with frames of one person: the others choose the threshold."""

from pathlib import Path

import numpy as np
import pytest
from tests.refusals import refused
from tests.toy import SITES, Sets, open_run_data, run_toy, tree

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer
from fedvisage.tasks.finished_model import open_model


def write_training_only(source: Path, out: Path) -> Path:
    """Copy the training pictures of a set."""
    prepared = PreparedSet.open(source)
    chosen = prepared.select("train")
    rows = prepared.rows
    with Writer(out, name=out.name, size=prepared.size, source="copy", depth=True) as writer:
        writer.add(
            np.asarray(prepared.images)[chosen],
            label=rows.label[chosen],
            species=rows.species[chosen],
            subject=rows.subject[chosen],
            video=rows.video[chosen],
            frame=rows.frame[chosen],
            split=rows.split[chosen],
            item=rows.item[chosen],
            depth=np.asarray(prepared.depth)[chosen],
        )
    return out


@pytest.fixture
def sets_without(sets: Sets, tmp_path: Path) -> Sets:
    """The sets; that of site C has no held-out people."""
    return {**sets, "C": write_training_only(sets["C"], tmp_path / "C")}


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedpad", "ditto", "fused"])
def test_the_other_sites_choose_the_threshold(name: str, sets_without: Sets, tmp_path: Path) -> None:
    metrics = run_toy(tree(sets_without, name, evaluation__every=1, evaluation__features=4), tmp_path / "run")
    rows = metrics.parts("sites_heldout")
    assert [rows[site].number("auc") is None for site in SITES] == [False, False, True]
    model = open_model(tmp_path / "run")
    far, frr, bounds = [], [], []
    for site in ("A", "B"):
        view = View.of(PreparedSet.open(sets_without[site]), "heldout")
        logits = model.score(view.batch(np.arange(len(view))).images)
        far.append(np.mean(logits[view.labels == 0] >= metrics["threshold"]))
        frr.append(np.mean(logits[view.labels == 1] < metrics["threshold"]))
        # The threshold is an edge of the bins; the run and this test may round a logit to different sides of it.
        near = np.abs(logits - metrics["threshold"]) < 1e-4
        bounds.append([np.mean(near[view.labels == label]) for label in (0, 1)])
    far_bound, frr_bound = np.mean(bounds, axis=0) + 1e-6
    assert metrics["threshold_source.far"] == pytest.approx(np.mean(far), abs=far_bound)
    assert metrics["threshold_source.frr"] == pytest.approx(np.mean(frr), abs=frr_bound)


def test_a_threshold_needs_people_that_some_site_holds_out(sets: Sets, tmp_path: Path) -> None:
    training_only = {**sets, **{name: write_training_only(sets[name], tmp_path / name) for name in SITES}}
    with refused("recipe.data.sites", "threshold", "source-train-eer"):
        open_run_data(tree(training_only, "fedpad"), tmp_path)
    run_toy(tree(training_only, "fedpad", evaluation__threshold="fixed"), tmp_path / "run")


def test_a_model_per_site_needs_people_that_each_site_holds_out(sets_without: Sets, tmp_path: Path) -> None:
    with refused("data.sites.C", "single", "threshold"):
        open_run_data(tree(sets_without, "single"), tmp_path)
