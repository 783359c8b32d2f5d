"""With what is special about it switched off, a method equals its baseline, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.toy import SITES, run_toy, run_toy_once, tree
from torch import Tensor, nn

from fedvisage.federation.method import Home
from fedvisage.federation.wire.message import digest_of
from fedvisage.methods.pad import fedgpad
from fedvisage.nn.resnet import ResNet18, resnet18
from fedvisage.recipe import Recipe


def shared_only(recipe: Recipe) -> nn.ModuleDict:
    whole = fedgpad.network(recipe)
    return nn.ModuleDict({part: whole[part] for part in fedgpad.SHARED})


def test_fedgpad_without_disentanglement_is_averaging_of_its_shared_parts(
    sets: Mapping[str, Path], tmp_path: Path
) -> None:
    content = tree(sets, "fedgpad", training__rounds=2)
    run_toy(content, tmp_path / "whole")
    content["method"]["weights"] = {"reconstruction": 0, "difference": 0}
    run_toy(content, tmp_path / "null")
    baseline = replace(fedgpad.METHOD, network=shared_only, home=dict.fromkeys(fedgpad.SHARED, Home.LENT))
    run_toy(content, tmp_path / "baseline", method=baseline)
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "null", "baseline")}
    assert weights["null"] == weights["baseline"]
    assert weights["whole"] != weights["baseline"]


def test_fused_members_are_those_of_single(sets: Mapping[str, Path], tmp_path: Path) -> None:
    for name in ("single", "fused"):
        run_toy_once(tree(sets, name, training__rounds=2), tmp_path / name)
    single, fused = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("single", "fused"))
    assert single == fused


@pytest.fixture(scope="module")
def fedpad_weights(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("fedpad") / "run"
    run_toy_once(tree(sets), out)
    return (out / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("method", "option"), [("fedprox", "mu"), ("moon", "mu"), ("afl", "step")])
def test_averaging_method_without_its_own_term_is_fedpad(
    method: str, option: str, fedpad_weights: bytes, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    weights = {}
    for value in (0.0, 0.5):
        run_toy_once(tree(sets, method, **{f"method__{option}": value}), tmp_path / str(value))
        weights[value] = (tmp_path / str(value) / "model.safetensors").read_bytes()
    assert weights[0.0] == fedpad_weights
    assert weights[0.5] != fedpad_weights


def join_parts(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return FedBN's two parts under the names that they have in FedPAD's one."""
    whole = resnet18(ResNet18(width=8), "rgb+hsv")
    names = [name for name, module in whole.named_modules() if isinstance(module, nn.BatchNorm2d)]
    actual = {}
    for key, value in parts.items():
        part, place, rest = key.split(".", 2)
        actual[f"model.{names[int(place)]}.{rest}" if part == "norms" else key] = value
    return actual


@pytest.mark.parametrize(("norms", "sites"), [("shared", 3), ("private", 1)])
def test_fedbn_without_private_layers_is_fedpad(
    norms: str, sites: int, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    few = {name: str(sets[name]) for name in SITES[:sites]}
    run_toy(tree(sets, data__sites=few, training__rounds=2), tmp_path / "fedpad")
    run_toy(tree(sets, "fedbn", data__sites=few, training__rounds=2, method__norms=norms), tmp_path / "fedbn")
    expected = load_file(tmp_path / "fedpad" / "model.safetensors")
    assert digest_of(join_parts(load_file(tmp_path / "fedbn" / "model.safetensors"))) == digest_of(expected)
