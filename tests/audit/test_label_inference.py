"""Inference of labels from the gradients of plain split learning."""

import html
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.refusals import refused
from tests.toy import NewRun, Sets, discard, files_below, run_toy, tree

from fedvisage.audit import label_inference
from fedvisage.audit.audit import audit_run

pytestmark = pytest.mark.long


def gradients(labels: np.ndarray, weight: np.ndarray, outputs: np.ndarray) -> torch.Tensor:
    """Return (softmax − onehot) W / N."""
    probability = np.exp(outputs - outputs.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    return torch.from_numpy((probability - np.eye(2)[labels]) @ weight / len(labels))


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_every_label_is_inferred_at_any_confidence(scale: float) -> None:
    draws = np.random.default_rng(0)
    labels, weight = draws.integers(0, 2, 40), draws.normal(size=(2, 7))
    observed = gradients(labels, weight, scale * draws.normal(size=(40, 2)))
    assert label_inference.by_the_head(observed, torch.from_numpy(weight)).tolist() == labels.tolist()
    groups = label_inference.without_the_head(observed).numpy()
    assert (groups == labels).all() or (groups == 1 - labels).all()


def test_noise_hides_labels() -> None:
    draws = np.random.default_rng(1)
    labels, weight = draws.integers(0, 2, 2000), draws.normal(size=(2, 7))
    observed = gradients(labels, weight, draws.normal(size=(2000, 2))).numpy()
    noisy = torch.from_numpy(observed + draws.normal(0, 100 * np.abs(observed).max(), observed.shape))
    right = (label_inference.by_the_head(noisy, torch.from_numpy(weight)).numpy() == labels).mean()
    assert right == pytest.approx(0.5, abs=0.05)


@pytest.fixture(scope="module")
def split_run(sets: Sets, new_run: NewRun) -> Path:
    return new_run(tree(sets, "fedsis", training__rounds=1))


def test_audit_infers_all_labels_of_split_learning_and_the_report_shows_it(split_run: Path) -> None:
    before = (split_run / "model.safetensors").read_bytes()
    (record,) = [
        entry
        for entry in audit_run(split_run, None, split_run.parent / "cache", discard)
        if entry["name"] == "label-inference"
    ]
    assert record["numbers"]["labels_right"] == 1.0
    assert record["numbers"]["images"] >= label_inference.IMAGES
    audit_file = json.loads((split_run / "audit" / "audit.json").read_text())
    assert record in audit_file["audits"]
    assert record["says"] in html.unescape((split_run / "report.html").read_text())
    assert (split_run / "model.safetensors").read_bytes() == before


def test_audit_into_another_directory_keeps_the_run(split_run: Path, tmp_path: Path) -> None:
    files = files_below(split_run)
    audit_run(split_run, tmp_path / "there", split_run.parent / "cache", discard)
    assert (tmp_path / "there" / "audit.json").exists()
    assert files_below(split_run) == files


def test_inapplicable_audit_states_the_reason(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, "fedpad", training__rounds=1), tmp_path / "run")
    records = {record["name"]: record for record in audit_run(tmp_path / "run", None, tmp_path / "cache", discard)}
    assert not records["label-inference"]["applies"]
    assert records["label-inference"]["why"] == "no gradients of a head cross the wire"


def test_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with refused("nothing", "directory"):
        audit_run(tmp_path / "nothing", None, tmp_path / "cache", discard)
