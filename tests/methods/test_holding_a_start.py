"""Training that stays near a good start: L2-SP, and frozen statistics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.refusals import refused
from tests.toy import SIZE, Sets, recipe_of, run_toy, tree, weights

from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.server import members_of
from fedvisage.runs.export.export import export
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.scoring import mean_score


@pytest.fixture(scope="module")
def start(pad_run: Path) -> Path:
    """A model of one round."""
    return pad_run / "model.safetensors"


def content(sets: Sets, start: Path, **changes: Any) -> dict[str, Any]:
    fixed = {"training__rounds": 2, "training__optimizer": {"name": "sgd", "lr": 0.05}, "training__start": str(start)}
    return tree(sets, **{**fixed, **changes})


def distance(run: Path, start: Path) -> float:
    actual, given = load_file(run / "model.safetensors"), load_file(start)
    names = [name for name in given if name.endswith((".weight", ".bias"))]
    return float(torch.stack([(actual[name] - given[name]).square().sum() for name in names]).sum().sqrt())


@pytest.mark.long
def test_l2sp_holds_the_model_near_its_start_and_weight_zero_changes_nothing(
    sets: Sets, start: Path, tmp_path: Path
) -> None:
    run_toy(content(sets, start), tmp_path / "free")
    run_toy(content(sets, start, training__l2sp=1e-30), tmp_path / "null")
    run_toy(content(sets, start, training__l2sp=5.0), tmp_path / "held")
    assert weights(tmp_path / "null") == weights(tmp_path / "free")
    assert distance(tmp_path / "held", start) < 0.8 * distance(tmp_path / "free", start)
    rows = read_lines(tmp_path / "held" / "ledger.jsonl")
    assert {row["field"] for row in rows if row["direction"] == "down" and row["call"] == "train"} == {
        "model",
        "start/model",
    }


@pytest.mark.long
def test_l2sp_holds_only_the_parts_from_the_start(sets: Sets, start: Path, tmp_path: Path) -> None:
    """Only the file's first layer is a start, and only it is held."""
    from safetensors.torch import save_file

    given = {name: value for name, value in load_file(start).items() if name.startswith("model.conv1")}
    save_file(given, tmp_path / "first-layer.safetensors")
    loose = {"file": str(tmp_path / "first-layer.safetensors"), "strict": False}
    run_toy(content(sets, start, training__start=loose, training__l2sp=1.0), tmp_path / "run")
    rows = read_lines(tmp_path / "run" / "ledger.jsonl")
    sizes = {row["bytes"] for row in rows if row["field"] == "start/model"}
    assert sizes == {sum(value.numel() * 4 for value in given.values())}


@pytest.mark.long
def test_l2sp_holds_methods_with_their_own_loss(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, "vit-h-is", training__rounds=1), tmp_path / "first")
    start = tmp_path / "first" / "model.safetensors"
    changes = {"training__start": str(start), "training__optimizer": {"name": "sgd", "lr": 0.05}}
    run_toy(tree(sets, "vit-h-is", **changes), tmp_path / "free")
    run_toy(tree(sets, "vit-h-is", training__l2sp=5.0, **changes), tmp_path / "held")
    assert distance(tmp_path / "held", start) < 0.8 * distance(tmp_path / "free", start)


@pytest.mark.parametrize("name", ["scaffold", "fedsis", "festa"])
def test_l2sp_is_refused_without_a_start(name: str, sets: Sets, start: Path, tmp_path: Path) -> None:
    with refused("recipe.training.l2sp", name):
        run_toy(tree(sets, name, training__start=str(start), training__l2sp=0.1), tmp_path / "run")
    with refused("recipe.training", "l2sp", "start"):
        recipe_of(tree(sets, training__l2sp=0.1))


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedpad", pytest.param("fedavg", marks=pytest.mark.slow)])
def test_frozen_statistics_are_those_of_the_start(name: str, sets: Sets, tmp_path: Path) -> None:
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


@pytest.mark.long
def test_kept_average_contains_both_networks_and_averages_their_scores(sets: Sets, start: Path, tmp_path: Path) -> None:
    metrics = run_toy(content(sets, start, training__keep="average"), tmp_path / "average")
    run_toy(content(sets, start, training__keep="result"), tmp_path / "result")
    run_toy(tree(sets, training__rounds=1), tmp_path / "start")
    members = members_of(load_file(tmp_path / "average" / "model.safetensors"))
    for name, expected in (("start", start), ("result", tmp_path / "result" / "model.safetensors")):
        given = load_file(expected)
        assert members[name].keys() == given.keys()
        assert all(torch.equal(members[name][key], value) for key, value in given.items())
    faces = torch.randint(0, 256, (5, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    average, *alone = (open_model(tmp_path / name).score(faces) for name in ("average", "result", "start"))
    assert average == pytest.approx(mean_score(alone), abs=1e-9)
    assert metrics["kept.model"] == "average"
    for name in ("start", "result"):
        sites = metrics.parts(f"kept.{name}")
        assert sites.keys() == {"A", "B", "C"}
        assert all(0 <= row["auc"] <= 1 and 0 <= row["eer"] <= 1 for row in sites.values())
    export(open_model(tmp_path / "average"), tmp_path / "exported", data=None, cache=tmp_path / "cache")


@pytest.mark.long
def test_kept_start_and_kept_result_equal_runs_without_the_choice(sets: Sets, start: Path, tmp_path: Path) -> None:
    for keep in ("start", "result", None):
        changes = {} if keep is None else {"training__keep": keep}
        run_toy(content(sets, start, **changes), tmp_path / str(keep))
    assert weights(tmp_path / "result") == weights(tmp_path / "None")
    kept, given = load_file(tmp_path / "start" / "model.safetensors"), load_file(start)
    assert all(torch.equal(kept[name], value) for name, value in given.items())


@pytest.mark.parametrize(
    ("changes", "place", "keywords"),
    [
        ({"training__start": None}, "recipe.training", ("keep", "start")),
        ({"training__start": {"file": "start.safetensors", "strict": False}}, "recipe.training", ("keep", "start")),
        ({"training__statistics": "exact"}, "recipe.training", ("keep", "exact")),
        ({"method__name": "single"}, "recipe.training.keep", ("single",)),
    ],
)
def test_choice_between_start_and_result_needs_whole_models(
    changes: Mapping[str, Any], place: str, keywords: tuple[str, ...], sets: Sets, tmp_path: Path
) -> None:
    with refused(place, *keywords):
        run_toy(content(sets, tmp_path / "start.safetensors", training__keep="average", **changes), tmp_path / "run")
