"""A robust rule in a run: the same bytes for any order of sites, its baseline when switched off, refused where void."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.refusals import failed, refused
from tests.toy import Sets, deterministic_files, make_set, recipe_of, run_toy, tree, weights

from fedvisage.base.errors import RunFailed
from fedvisage.federation.protections.combine import combination_of
from fedvisage.federation.protections.compatible import check_protection
from fedvisage.methods import METHODS
from fedvisage.recipe import Federation

RULES: list[Any] = ["norm-clip", {"rule": "norm-clip", "bound": 0.5}, "trimmed-mean", "median"]


@pytest.fixture(scope="module")
def five(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("five")
    more = {name: make_set(root / name, name, seed) for seed, name in ((10, "D"), (11, "E"))}
    return {name: str(path) for name, path in {**sets, **more}.items() if name in "ABCDE"}


@pytest.fixture(scope="module")
def mean(pad_run: Path) -> bytes:
    return weights(pad_run)


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_gives_the_same_bytes_for_any_order_of_sites(rule: Any, mean: bytes, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, training__rounds=1, federation__combine=rule)
    run_toy(content, tmp_path / "forwards")
    content["data"]["sites"] = dict(reversed(content["data"]["sites"].items()))
    run_toy(content, tmp_path / "backwards")
    names = ("model.safetensors", "ledger.jsonl", "scores.csv")
    assert deterministic_files(tmp_path / "backwards", names=names) == deterministic_files(
        tmp_path / "forwards", names=names
    )
    assert weights(tmp_path / "forwards") != mean


def test_clipping_beyond_every_update_is_the_mean(mean: bytes, sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, training__rounds=1, federation__combine={"rule": "norm-clip", "bound": 1e6}), tmp_path / "run")
    assert weights(tmp_path / "run") == mean


@pytest.mark.long
def test_krum_takes_over_one_of_the_uploads(five: dict[str, str], sets: Sets, tmp_path: Path) -> None:
    common: dict[str, Any] = {"training__rounds": 1, "evaluation__every": 0}
    run_toy(tree(sets, data__sites=five, federation__combine="krum", **common), tmp_path / "krum")
    alone = set()
    for name, path in five.items():
        run_toy(tree(sets, data__sites={name: path}, **common), tmp_path / name)
        alone.add(weights(tmp_path / name))
    assert weights(tmp_path / "krum") in alone


def test_a_round_with_fewer_uploads_than_the_rule_needs_has_no_quorum(sets: Sets, tmp_path: Path) -> None:
    federation = {"combine": "trimmed-mean", "offline": 1, "offline_policy": "one-site", "give_up_after": 2}
    with failed(RunFailed, "2 of 3", "3 needed"):
        run_toy(tree(sets, federation=federation), tmp_path / "run")


@pytest.mark.parametrize("name", ["single", "fused", "afl", "fedma", "fedsis", "festa"])
def test_methods_without_a_single_mean_refuse_robust_rules(name: str, sets: Sets) -> None:
    recipe = recipe_of(tree(sets, name, federation__combine="median"))
    with refused("recipe.federation.combine", name):
        check_protection(recipe, METHODS[name])


def test_a_claimed_number_of_examples_cannot_outweigh_a_rule(sets: Sets, tmp_path: Path) -> None:
    with refused("recipe.federation.combine", "method.weight"):
        run_toy(tree(sets, federation__combine="median", method__weight="examples"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("combine", "place", "keyword"),
    [
        ("mode", "recipe.federation.combine.rule", "'mode'"),
        ("krum", "recipe", "5 uploads"),
        ({"rule": "trimmed-mean", "hostile": 2}, "recipe", "5 uploads"),
        ({"rule": "krum", "select": 3}, "recipe", "6 uploads"),
        ({"rule": "median", "hostile": 2}, "recipe.federation.combine", "hostile"),
        ({"rule": "median", "select": 2}, "recipe.federation.combine", "select"),
        ({"rule": "mean", "bound": 2}, "recipe.federation.combine", "bound"),
        ({"rule": "norm-clip", "bound": 0}, "recipe.federation.combine.bound", "0"),
    ],
)
def test_impossible_rule_is_refused_with_its_reason(combine: Any, place: str, keyword: str, sets: Sets) -> None:
    with refused(place, keyword):
        recipe_of(tree(sets, federation__combine=combine))


@pytest.mark.parametrize("rule", ["norm-clip", "trimmed-mean", "median", "krum"])
def test_counters_stay_within_the_range_of_the_sites(rule: Any) -> None:
    base = {"w": torch.zeros(4), "n": torch.tensor(0)}
    combined = combination_of(Federation(combine=rule), lambda: base)
    for site in range(5):
        combined.add({"w": torch.full((4,), float(site)), "n": torch.tensor(100 + site)}, 1.0)
    result = combined.exact()
    assert 100 <= float(result["n"]) <= 104
    assert all(value.dtype == torch.float64 for value in result.values())


@pytest.mark.long
def test_the_members_of_a_robust_run_are_finite(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, "fedgpad", training__rounds=1, federation__combine="median"), tmp_path / "run")
    assert all(torch.isfinite(value).all() for value in load_file(tmp_path / "run" / "model.safetensors").values())
