"""The choice between start and result for recognition, compared at the sites on held-out people."""

import shutil
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.refusals import refused
from tests.toy import SITES, SIZE, Sets, deterministic_files, make_people, run_toy, tree

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.device.exported import Exported
from fedvisage.federation.server import members_of
from fedvisage.metrics.generic import within_counts
from fedvisage.metrics.recorded import read_metrics
from fedvisage.metrics.similarity import label_features
from fedvisage.metrics.threshold import auc_from_histogram
from fedvisage.nvflare.outcome import read_trained, write_trained
from fedvisage.runs.engine import LocalEngine
from fedvisage.runs.export.export import export
from fedvisage.runs.workers import SCRATCH, WorkerTransport
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.task import TrainingResult

pytestmark = pytest.mark.long

HELD_OUT = 3


@pytest.fixture(scope="module")
def people(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Sets of sites with held-out people; site C has none."""
    root = tmp_path_factory.mktemp("people")
    return {
        name: str(
            make_people(root / name, f"H{name}", seed + 20, identities=3 + HELD_OUT, heldout=HELD_OUT * (name != "C"))
        )
        for seed, name in enumerate(SITES)
    }


@pytest.fixture(scope="module")
def runs(sets: Sets, people: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A start, and runs from it that keep the average, the result and the start."""
    root = tmp_path_factory.mktemp("runs")
    run_toy(content(sets, people, training__rounds=1), root / "first")
    start = str(root / "first" / "model.safetensors")
    for keep in ("average", "result", "start"):
        run_toy(content(sets, people, training__start=start, training__keep=keep), root / keep)
    return root


def content(sets: Sets, people: Mapping[str, str], **changes: Any) -> dict[str, Any]:
    fixed = {"training__rounds": 1, "training__pretrain": None, "data__sites": dict(people)}
    return tree(sets, "fedavg", **{**fixed, **changes})


def test_a_kept_average_embeds_with_the_mean_of_both_networks_unit_features(runs: Path) -> None:
    members = members_of(load_file(runs / "average" / "model.safetensors"))
    for name in ("start", "result"):
        alone = load_file(runs / ("first" if name == "start" else name) / "model.safetensors")
        assert all(torch.equal(members[name][key], value) for key, value in alone.items())
    faces = torch.randint(0, 256, (5, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    average, start, result = (open_model(runs / name).embed(faces) for name in ("average", "start", "result"))
    assert not torch.allclose(start, result, atol=1e-3)
    torch.testing.assert_close(average, torch.nn.functional.normalize(start + result))


def test_a_kept_average_exports_to_a_graph_with_the_same_embeddings(runs: Path, tmp_path: Path) -> None:
    model = open_model(runs / "average")
    export(model, tmp_path / "exported", data=None, cache=tmp_path / "cache")
    faces = np.random.default_rng(0).integers(0, 256, (5, SIZE, SIZE, 3), dtype=np.uint8)
    embeddings = Exported.open(tmp_path / "exported").run(faces)
    assert np.allclose(embeddings, model.embed(faces).numpy(), atol=1e-4)


def test_sites_compare_start_and_result_on_held_out_people(runs: Path, people: Mapping[str, str]) -> None:
    kept = read_metrics(runs / "average" / "metrics.json").part("kept")
    assert kept["model"] == "average"
    for name in ("start", "result"):
        assert kept.part(f"{name}.C") == {"auc": None, "eer": None}
        for site in ("A", "B"):
            view = View.of(PreparedSet.open(Path(people[site])), "heldout")
            assert len(view.identities) == HELD_OUT
            scorer = open_model(runs / name).scorer
            scorer.load(load_file(runs / name / "model.safetensors"))
            identity = np.unique(view.subjects, return_inverse=True)[1]
            counts = within_counts(label_features(scorer.embeddings(view).numpy(), identity))
            assert kept[f"{name}.{site}.auc"] == pytest.approx(auc_from_histogram(counts))
            assert counts[0].sum() == 75  # pairs of images of two of three people, five images each
            assert kept.part(f"{name}.{site}").rates("tar").keys() == {"1e-1"}


def test_worker_processes_give_the_same_comparison(
    sets: Sets, people: Mapping[str, str], runs: Path, tmp_path: Path
) -> None:
    start = str(runs / "first" / "model.safetensors")
    with closing(LocalEngine(tmp_path / SCRATCH)) as engine:
        wire = partial(WorkerTransport, engine=engine, workers=engine.start(2, 1, "cpu"))
        changes = {"training__start": start, "training__keep": "average"}
        run_toy(content(sets, people, **changes), tmp_path / "run", wire=wire)
    assert deterministic_files(tmp_path / "run") == deterministic_files(runs / "average")


def test_federation_result_contains_the_comparison(runs: Path, tmp_path: Path) -> None:
    run, kept = tmp_path / "run", {"model": "average", "result": {"A": {"auc": 0.9, "tar@1e-1": 0.8}}}
    shutil.copytree(runs / "average", run)
    write_trained(run, TrainingResult(open_model(run).saved, 1, {}, kept=kept))
    assert read_trained(run).kept == kept


def test_margins_are_refused_for_aligned_faces(sets: Sets, people: Mapping[str, str], tmp_path: Path) -> None:
    with refused("recipe.input.margin", "aligned"):
        run_toy(content(sets, people, input__margin=2.7), tmp_path / "run")
