"""Presentation attack detection: a method with what is special about it switched off is its baseline."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.contract.comparing import run_to_weights
from tests.toy import Sets, recipe_of, run_toy, tree, weights
from torch import nn

from fedvisage.base.streams import seed_global_rng
from fedvisage.federation.method import Home
from fedvisage.methods.pad import fedgpad, fedma
from fedvisage.nn.vgg import LAYERS
from fedvisage.recipe import Recipe

pytestmark = pytest.mark.long


def shared_only(recipe: Recipe) -> nn.ModuleDict:
    whole = fedgpad.network(recipe)
    return nn.ModuleDict({part: whole[part] for part in fedgpad.SHARED})


def test_fedgpad_without_disentanglement_is_averaging_of_its_shared_parts(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, "fedgpad", training__rounds=2)
    run_toy(content, tmp_path / "whole")
    content["method"]["weights"] = {"reconstruction": 0, "difference": 0}
    run_toy(content, tmp_path / "null")
    baseline = replace(fedgpad.METHOD, network=shared_only, home=dict.fromkeys(fedgpad.SHARED, Home.LENT))
    run_toy(content, tmp_path / "baseline", method=baseline)
    assert weights(tmp_path / "null") == weights(tmp_path / "baseline")
    assert weights(tmp_path / "whole") != weights(tmp_path / "baseline")


def test_fused_members_are_those_of_single(sets: Sets, tmp_path: Path) -> None:
    single, fused = (
        run_to_weights(tree(sets, name, training__rounds=2), tmp_path / name) for name in ("single", "fused")
    )
    assert single == fused


@pytest.mark.parametrize(
    ("name", "off"), [("mixstyle", {"probability": 0.0}), ("ssdg", {"triplet": 0.0}), ("feddf", {"epochs": 0})]
)
def test_method_for_unseen_cameras_without_its_own_part_is_fedpad(
    name: str, off: dict[str, float], sets: Sets, tmp_path: Path
) -> None:
    content = tree(sets, name, training__rounds=2)
    run_toy(content, tmp_path / "on")
    content["method"] |= off
    run_toy(content, tmp_path / "off")
    run_toy(tree(sets, "fedpad", training__rounds=2), tmp_path / "fedpad")
    assert weights(tmp_path / "off") == weights(tmp_path / "fedpad")
    assert weights(tmp_path / "on") != weights(tmp_path / "fedpad")


@pytest.mark.parametrize("weight", ["uniform", "examples"])
def test_fedma_without_matching_is_fedavg_on_its_network(weight: str, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, "fedma", training__rounds=2, training__optimizer={"lr": 0.01, "state": "kept"})
    content["method"] |= {"matching": "none", "weight": weight}
    run_toy(content, tmp_path / "null")
    content["method"] = {"name": "fedavg", "model": "fedma-vgg", "network": {"width": 8}, "weight": weight}
    run_toy(content, tmp_path / "fedavg")
    null, baseline = (load_file(tmp_path / name / "model.safetensors") for name in ("null", "fedavg"))
    assert len(null) == len(baseline) == 2 * len(LAYERS)
    assert all(torch.equal(value, baseline[name]) for name, value in null.items())


def test_fedma_keeps_the_order_of_a_single_sites_neurons(sets: Sets, tmp_path: Path) -> None:
    """With a rate so small that nothing is learned, passes over one site leave the server's weights as they were."""
    content = tree(sets, "fedma", data__sites={"A": str(sets["A"])}, training__optimizer={"lr": 1e-30})
    content["method"]["matching"] = {"initial": "shared"}
    run_toy(content, tmp_path / "run")
    with seed_global_rng(content["runtime"].get("seed", 0), "initial weights"):
        first = fedma.network(recipe_of(content)).state_dict()
    for name, value in load_file(tmp_path / "run" / "model.safetensors").items():
        torch.testing.assert_close(value, first[name], rtol=0, atol=1e-25)
