"""FedGPAD's options: weights that go with the form of the losses, and image sizes that its networks fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.refusals import refused
from tests.toy import Sets, recipe_of, run_toy, tree

from fedvisage.base.streams import seed_global_rng
from fedvisage.methods import METHODS
from fedvisage.recipe import apply_override, tree_of
from fedvisage.tasks.saved_model import load

NAMES = ("depth", "reconstruction", "difference")


def weights_of(sets: Sets, *overrides: str) -> list[float]:
    content = tree(sets, "fedgpad")
    for override in overrides:
        apply_override(content, override)
    resolved: dict[str, Any] = tree_of(recipe_of(content))
    assert tree_of(recipe_of(resolved)) == resolved
    return [resolved["method"]["weights"][name] for name in NAMES]


def test_default_weights_are_equal_for_sums_and_released_for_means(sets: Sets) -> None:
    printed = "method.losses=printed"
    assert weights_of(sets) == [10, 0.1, 1]
    assert weights_of(sets, "method.weights.depth=0") == [0, 0.1, 1]
    assert weights_of(sets, printed) == [1, 1, 1]
    assert weights_of(sets, "method.weights.depth=0", printed) == [0, 1, 1]
    assert weights_of(sets, printed, "method.weights.reconstruction=2") == [1, 2, 1]


@pytest.mark.parametrize("losses", ["mean", "printed"])
def test_misspelt_weight_is_refused_in_both_forms(sets: Sets, losses: str) -> None:
    with refused("recipe.method.weights.dept", "depth"):
        weights_of(sets, f"method.losses={losses}", "method.weights.dept=0")
    with refused("recipe.method.weights", "3"):
        weights_of(sets, f"method.losses={losses}", "method.weights=3")


@pytest.mark.parametrize("size", [16, 33, 97, 112, 250])
@pytest.mark.parametrize("method", ["fedgpad", "depth_only"])
def test_a_size_that_table_ii_does_not_fit_is_refused(sets: Sets, method: str, size: int) -> None:
    recipe = recipe_of(tree(sets, method, input__size=size))
    with refused("recipe.input.size", "32", str(size)):
        METHODS[method].network(recipe)


def test_copied_specific_encoder_starts_as_the_invariant_one(sets: Sets) -> None:
    for specific, same in (("copied", True), ("own", False), (None, False)):
        content = tree(sets, "fedgpad")
        content["method"]["network"] |= {} if specific is None else {"specific": specific}
        net = METHODS["fedgpad"].network(recipe_of(content))
        first, other = net["encoder"].state_dict(), net["specific"].state_dict()
        assert all(torch.equal(value, other[name]) for name, value in first.items()) is same


def test_unset_network_keys_are_not_in_the_resolved_recipe(sets: Sets) -> None:
    resolved = tree_of(recipe_of(tree(sets, "fedgpad")))
    assert set(resolved["method"]["network"]) == {"width", "classifier"}


def test_resnet18_encoders_start_like_fedpad_by_default(sets: Sets) -> None:
    given = {"width": 8, "encoder": "resnet18"}
    for drawing, same in ((None, True), ("xavier", False)):
        own = {**given, **({} if drawing is None else {"initialisation": drawing})}
        nets = []
        for method, network in (("fedgpad", own), ("fedpad", {"width": 8})):
            with seed_global_rng(0, "initial weights"):
                nets.append(METHODS[method].network(recipe_of(tree(sets, method, method__network=network))))
        ours = {name.removeprefix("trunk."): value for name, value in nets[0]["encoder"].state_dict().items()}
        theirs = {name: value for name, value in nets[1]["model"].state_dict().items() if not name.startswith("fc.")}
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items()) is same


def test_stem_is_refused_with_resnet18(sets: Sets) -> None:
    with refused("recipe.method.network", "stem", "resnet18"):
        recipe_of(tree(sets, "fedgpad", method__network={"width": 8, "encoder": "resnet18", "stem": "unshuffled"}))


@pytest.mark.long
@pytest.mark.parametrize("network", [{"encoder": "resnet18"}, {"stem": "unshuffled"}], ids=str)
def test_another_network_trains_and_is_evaluated(sets: Sets, tmp_path: Path, network: Mapping[str, Any]) -> None:
    content = tree(sets, "fedgpad", method__network={"width": 8, **network}, training__rounds=1)
    figures = run_toy(content, tmp_path / "run")
    assert 0 <= figures["auc"] <= 1
    assert load(tmp_path / "run").recipe["method"]["network"].items() >= network.items()
