"""Without matching, FedMA is FedAvg on its network; a site alone is matched to itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.toy import recipe_of, run_toy, tree

from fedvisage.base.streams import seed_global_rng
from fedvisage.methods.pad import fedma
from fedvisage.nn.vgg import LAYERS


@pytest.mark.parametrize("weight", ["uniform", "examples"])
def test_without_matching_fedma_is_fedavg_on_its_network_byte_for_byte(
    weight: str, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    content = tree(sets, "fedma", training__rounds=2, training__optimizer={"lr": 0.01, "state": "kept"})
    content["method"] |= {"matching": "none", "weight": weight}
    run_toy(content, tmp_path / "null")
    content["method"] = {"name": "fedavg", "model": "fedma-vgg", "network": {"width": 8}, "weight": weight}
    run_toy(content, tmp_path / "fedavg")
    null, baseline = (load_file(tmp_path / name / "model.safetensors") for name in ("null", "fedavg"))
    assert len(null) == len(baseline) == 2 * len(LAYERS)
    assert all(torch.equal(value, baseline[name]) for name, value in null.items())


def test_matching_changes_the_model(sets: Mapping[str, Path], tmp_path: Path) -> None:
    content = tree(sets, "fedma", training__rounds=1)
    run_toy(content, tmp_path / "matched")
    content["method"]["matching"] = "none"
    run_toy(content, tmp_path / "null")
    matched, null = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("matched", "null"))
    assert matched != null


def test_single_site_keeps_the_order_of_its_neurons(sets: Mapping[str, Path], tmp_path: Path) -> None:
    """With a rate so small that nothing is learned, passes over one site leave the server's weights as they were."""
    content = tree(sets, "fedma", data__sites={"A": str(sets["A"])}, training__optimizer={"lr": 1e-30})
    content["method"]["matching"] = {"initial": "shared"}
    run_toy(content, tmp_path / "run")
    with seed_global_rng(content["runtime"].get("seed", 0), "initial weights"):
        first = fedma.network(recipe_of(content)).state_dict()
    for name, value in load_file(tmp_path / "run" / "model.safetensors").items():
        torch.testing.assert_close(value, first[name], rtol=0, atol=1e-25)
