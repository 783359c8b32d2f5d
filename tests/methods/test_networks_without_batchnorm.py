"""ResNet-18 without BatchNorm in runs: training, exports, unchanged recipes, and what needs BatchNorm's statistics."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.refusals import refused
from tests.toy import Sets, recipe_of, run_toy, tree, weights

from fedvisage import recipe as recipes
from fedvisage.methods import find
from fedvisage.runs.export.export import export
from fedvisage.tasks.finished_model import open_model

NORMS = ("group", "weight-standardised")


def without_batchnorm(sets: Sets, norm: str, method: str = "fedpad", **changes: Any) -> dict[str, Any]:
    return tree(sets, method, **{"method__network": {"width": 8, "norm": norm}, "training__rounds": 1, **changes})


@pytest.mark.long
@pytest.mark.parametrize("norm", NORMS)
def test_run_trains_all_weights_and_its_export_gives_the_same_scores(norm: str, sets: Sets, tmp_path: Path) -> None:
    """The export itself compares the graph with torch."""
    content = without_batchnorm(sets, norm, training__rounds=2)
    run_toy(content, tmp_path / "run")
    recipe = recipe_of(content)
    first = find(recipe.method).initial_network(recipe)
    actual = load_file(tmp_path / "run" / "model.safetensors")
    assert actual.keys() == first.state_dict().keys()
    assert not any(torch.equal(actual[name], value) for name, value in first.state_dict().items())
    model = open_model(tmp_path / "run")
    export(model, tmp_path / "exported", data=str(sets["U"]), cache=tmp_path / "cache")


@pytest.mark.long
def test_batch_is_the_default(sets: Sets, tmp_path: Path) -> None:
    run_toy(without_batchnorm(sets, "batch"), tmp_path / "batch")
    run_toy(tree(sets, "fedpad", training__rounds=1), tmp_path / "default")
    assert weights(tmp_path / "batch") == weights(tmp_path / "default")


def test_resolved_recipe_without_the_key_does_not_have_it(sets: Sets) -> None:
    assert "norm" not in recipes.tree_of(recipe_of(tree(sets, "fedpad")))["method"]["network"]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("method", "changes", "place"),
    [
        ("fedbn", {}, "recipe.method.network.norm"),
        ("fedpad", {"training__statistics": "exact"}, "recipe.training.statistics"),
        ("single", {"training__statistics": "frozen"}, "recipe.training.statistics"),
        ("fedprox", {"evaluation__adapt": "gated"}, "recipe.evaluation.adapt"),
    ],
)
def test_what_needs_statistics_of_batchnorm_is_refused(
    norm: str, method: str, changes: dict[str, Any], place: str, sets: Sets
) -> None:
    recipe = recipe_of(without_batchnorm(sets, norm, method, **changes))
    with refused(place, "BatchNorm", norm):
        find(recipe.method).check(recipe)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedprox", "model": "minifasnet"},
        {"name": "fedavg", "model": {"name": "timm", "arch": "resnet18"}},
        {"name": "fedgpad"},
        {"name": "fedma"},
        {"name": "fedfr"},
    ],
    ids=lambda method: method["name"],
)
def test_other_networks_refuse_the_key_with_the_reason(method: dict[str, Any], sets: Sets) -> None:
    content = tree(sets, "fedpad")
    content["method"] = method | {"network": {"norm": "group"}}
    with refused("recipe.method.network.norm", "resnet18", "weights"):
        recipe_of(content)
