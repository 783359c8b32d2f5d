"""What keeps a federation near a start that is good already: L2-SP, and statistics that stay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.refusals import refused
from tests.toy import recipe_of, run_toy, tree, weights


@pytest.fixture(scope="module")
def start(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one round."""
    out = tmp_path_factory.mktemp("start") / "run"
    run_toy(tree(sets, training__rounds=1), out)
    return out / "model.safetensors"


def content(sets: Mapping[str, Path], start: Path, **changes: Any) -> dict[str, Any]:
    fixed = {"training__rounds": 2, "training__optimizer": {"name": "sgd", "lr": 0.05}, "training__start": str(start)}
    return tree(sets, **{**fixed, **changes})


def distance(run: Path, start: Path) -> float:
    found, given = load_file(run / "model.safetensors"), load_file(start)
    names = [name for name in given if name.endswith((".weight", ".bias"))]
    return float(torch.stack([(found[name] - given[name]).square().sum() for name in names]).sum().sqrt())


def test_l2sp_holds_the_model_near_its_start_and_a_pull_of_nothing_changes_nothing(
    sets: Mapping[str, Path], start: Path, tmp_path: Path
) -> None:
    run_toy(content(sets, start), tmp_path / "free")
    run_toy(content(sets, start, training__l2sp=1e-30), tmp_path / "null")
    run_toy(content(sets, start, training__l2sp=5.0), tmp_path / "held")
    assert weights(tmp_path / "null") == weights(tmp_path / "free")
    assert distance(tmp_path / "held", start) < 0.8 * distance(tmp_path / "free", start)
    rows = [json.loads(line) for line in (tmp_path / "held" / "ledger.jsonl").read_text().splitlines()]
    assert {row["field"] for row in rows if row["direction"] == "down" and row["call"] == "train"} == {
        "model",
        "start/model",
    }


def test_a_start_that_gave_a_part_alone_holds_that_part_alone(
    sets: Mapping[str, Path], start: Path, tmp_path: Path
) -> None:
    """Training goes on from the file's first layer only, and so does the pull."""
    from safetensors.torch import save_file

    given = {name: value for name, value in load_file(start).items() if name.startswith("model.conv1")}
    save_file(given, tmp_path / "first-layer.safetensors")
    loose = {"file": str(tmp_path / "first-layer.safetensors"), "strict": False}
    run_toy(content(sets, start, training__start=loose, training__l2sp=1.0), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    sizes = {row["bytes"] for row in rows if row["field"] == "start/model"}
    assert sizes == {sum(value.numel() * 4 for value in given.values())}


def test_l2sp_holds_a_method_that_declares_its_own_loss(sets: Mapping[str, Path], tmp_path: Path) -> None:
    run_toy(tree(sets, "vit-h-is", training__rounds=1), tmp_path / "first")
    start = tmp_path / "first" / "model.safetensors"
    changes = {"training__start": str(start), "training__optimizer": {"name": "sgd", "lr": 0.05}}
    run_toy(tree(sets, "vit-h-is", **changes), tmp_path / "free")
    run_toy(tree(sets, "vit-h-is", training__l2sp=5.0, **changes), tmp_path / "held")
    assert distance(tmp_path / "held", start) < 0.8 * distance(tmp_path / "free", start)


@pytest.mark.parametrize("name", ["scaffold", "fedsis", "festa"])
def test_where_nobody_is_held_a_pull_is_refused(
    name: str, sets: Mapping[str, Path], start: Path, tmp_path: Path
) -> None:
    with refused("recipe.training.l2sp", name):
        run_toy(tree(sets, name, training__start=str(start), training__l2sp=0.1), tmp_path / "run")
    with refused("recipe.training", "l2sp", "start"):
        recipe_of(tree(sets, training__l2sp=0.1))


@pytest.mark.parametrize("name", ["fedpad", pytest.param("fedavg", marks=pytest.mark.slow)])
def test_frozen_statistics_are_those_of_the_start(name: str, sets: Mapping[str, Path], tmp_path: Path) -> None:
    network = {"method__network": {"name": "iresnet18", "width": 8, "embedding": 16}} if name == "fedavg" else {}
    run_toy(tree(sets, name, training__rounds=1, **network), tmp_path / "first")
    given = tmp_path / "first" / "model.safetensors"
    changes = {**network, "training__start": str(given), "training__statistics": "frozen", "training__rounds": 2}
    if name == "fedavg":
        changes["training__pretrain"] = None
    run_toy(tree(sets, name, **changes), tmp_path / "second")
    before, after = load_file(given), load_file(tmp_path / "second" / "model.safetensors")
    stored = [key for key in before if "running_" in key]
    assert stored
    assert all(torch.equal(before[key], after[key]) for key in stored)
    assert any(not torch.equal(before[key], after[key]) for key in before if key.endswith(".weight"))
