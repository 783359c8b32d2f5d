"""With what is special about it switched off, a method equals its baseline, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.toy import run_toy, tree
from torch import nn

from fedvisage.federation.method import Home
from fedvisage.methods import METHODS, fedgpad
from fedvisage.recipe import Recipe


def shared_only(recipe: Recipe) -> nn.ModuleDict:
    whole = fedgpad.network(recipe)
    return nn.ModuleDict({part: whole[part] for part in fedgpad.SHARED})


def test_fedgpad_without_disentanglement_is_averaging_of_its_shared_parts(
    sets: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tree(sets, "fedgpad", training__rounds=2)
    run_toy(content, tmp_path / "whole")
    content["method"]["weights"] = {"reconstruction": 0, "difference": 0}
    run_toy(content, tmp_path / "null")
    baseline = replace(fedgpad.METHOD, network=shared_only, home=dict.fromkeys(fedgpad.SHARED, Home.LENT))
    monkeypatch.setitem(METHODS, "fedgpad", baseline)
    run_toy(content, tmp_path / "baseline")
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "null", "baseline")}
    assert weights["null"] == weights["baseline"]
    assert weights["whole"] != weights["baseline"]


def test_fused_members_are_those_of_single(sets: Mapping[str, Path], tmp_path: Path) -> None:
    for name in ("single", "fused"):
        run_toy(tree(sets, name, training__rounds=2), tmp_path / name)
    single, fused = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("single", "fused"))
    assert single == fused
