"""The memory layout and number format of a run: chosen by a rule, recorded in its recipe, and kept by a resume."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.refusals import refused
from tests.toy import NewRun, Sets, quiet_reporter, recipe_of, run_toy, tree, weights

from fedvisage.base.files import cache_directory
from fedvisage.methods import find
from fedvisage.nn.compute import Compute, Layout, has_fast_bf16
from fedvisage.nvflare.job import Job, read_job, without_local_parts, write_job
from fedvisage.runs.directory import RunDirectory
from fedvisage.runs.layout import NetworkTraits, choose_layout, describe_network, with_chosen_settings
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.catalogue import Setup, set_up

CPU = torch.device("cpu")
STORED = Path(__file__).parents[1] / "upgrade/from-0.1"

NARROW = """
title: a network of width 8, whose shortcuts are strided 1×1 convolutions of 8 channels
method: {name: privacyface, network: {name: iresnet18, width: 8, embedding: 32}, scale: 30, public_identities: 4,
         minimum: 2, epsilon: 8, delta: 0.1}
data:
  sites: {"site[1-2]": "synth: people identities=16 images=6 size=48 part=*/2"}
  public: "synth: people identities=16 images=6 size=48 first=1000 test=0 heldout=0.25"
  target: "synth: people identities=8 images=6 size=48 first=2000"
  target_name: benchmark
input: {size: 48, colour: rgb}
training: {rounds: 2, local: {epochs: 1}, batch: 16, pretrain: {epochs: 1, optimizer: {name: adam, lr: 0.001}},
           optimizer: {name: sgd, lr: 0.02, momentum: 0.9, weight_decay: 0.0005}}
privacy: {epsilon: 40, delta: 0.5, noise: derived}
runtime: {threads: 1}
"""


def set_up_recipe(content: Mapping[str, Any]) -> Setup:
    recipe = recipe_of(content)
    return set_up(recipe, find(recipe.method))


def traits(method: str, size: int, colour: str = "rgb+hsv", **network: Any) -> NetworkTraits:
    """Return the traits of a method's network at some image size."""
    content = {
        "method": {"name": method, "network": network},
        "data": {"sites": {"A": "sets/A"}},
        "input": {"size": size, "colour": colour},
        "training": {"rounds": 1},
    }
    recipe = recipe_of(content)
    return describe_network(find(recipe.method).network(recipe), recipe.input)


def fail() -> NetworkTraits:
    raise AssertionError("the rule needs no network here")


@pytest.fixture(scope="module")
def chosen_run(sets: Sets, new_run: NewRun) -> Path:
    """A finished run whose recipe left layout and number format open."""
    return new_run(open_recipe(sets))


def open_recipe(sets: Sets) -> dict[str, Any]:
    content = tree(sets)
    del content["runtime"]["precision"]
    return content


@pytest.mark.parametrize(
    ("width", "size", "row"), [(8, 96, 24 * 96), (16, 256, 48 * 256), (24, 96, 72 * 96), (64, 256, 196 * 256)]
)
def test_longest_row_of_fedgpad_is_in_its_widest_layer_at_full_size(width: int, size: int, row: int) -> None:
    assert traits("fedgpad", size, width=width) == NetworkTraits(row, group_norm=False)


def test_longest_row_accounts_for_strides_and_pooling() -> None:
    assert traits("fedpad", 256, width=64).longest_row == 64 * 64  # a stride and a pooling before the first stage
    assert traits("conventional", 112, "rgb", name="sphere20").longest_row == 64 * 56
    assert traits("conventional", 112, "rgb", name="iresnet18").longest_row == 64 * 112
    assert (
        traits("conventional", 112, "rgb", name="mobilefacenet").longest_row == 3 * 112
    )  # the other convolutions are grouped


def test_only_the_hybrid_transformer_has_group_norm() -> None:
    small = {"width": 24, "depth": 1, "heads": 3}
    assert traits("vit-h", 32, "rgb", stem=8, stages=(1, 1, 1), **small).group_norm
    assert not traits("vit", 32, "rgb", **small).group_norm


@pytest.mark.parametrize(
    ("row", "group_norm", "half", "instructions", "layout"),
    [
        (196 * 256, False, False, "AVX2", "first"),
        (7168, False, False, "AVX2", "first"),
        (72 * 96, False, False, "AVX2", "last"),
        (24 * 96, True, False, "AVX2", "last"),
        (196 * 256, False, True, "AVX512", "last"),
        (768, True, True, "AVX512", "first"),
    ],
)
def test_layout_depends_on_rows_in_fp32_on_avx2_and_on_group_norm_in_bf16(
    row: int, group_norm: bool, half: bool, instructions: str, layout: Layout
) -> None:
    assert choose_layout(Compute(CPU, half), instructions, lambda: NetworkTraits(row, group_norm)) == layout


@pytest.mark.parametrize(("device", "half"), [("cpu", False), ("cuda", False), ("cuda", True)])
def test_fp32_on_avx512_and_gpus_always_uses_channels_last(device: str, half: bool) -> None:
    assert choose_layout(Compute(torch.device(device), half), "AVX512", fail) == "last"


def test_run_records_its_layout_in_recipe_and_environment(chosen_run: Path) -> None:
    runtime = yaml.safe_load((chosen_run / "recipe.yaml").read_text())["runtime"]
    environment = json.loads((chosen_run / "environment.json").read_text())
    assert (runtime["layout"], runtime["precision"]) == ("last", "bf16" if has_fast_bf16(CPU) else "fp32")
    assert (environment["layout"], environment["precision"]) == (runtime["layout"], runtime["precision"])


@pytest.mark.long
def test_resolved_recipe_gives_the_same_bytes(chosen_run: Path, tmp_path: Path) -> None:
    run_toy(yaml.safe_load((chosen_run / "recipe.yaml").read_text()), tmp_path / "again")
    assert weights(tmp_path / "again") == weights(chosen_run)


def test_resume_accepts_an_open_layout_and_refuses_another_one(chosen_run: Path, sets: Sets) -> None:
    text = (chosen_run / "recipe.yaml").read_text()
    assert run_toy(open_recipe(sets), chosen_run, resume=True)
    assert (chosen_run / "recipe.yaml").read_text() == text
    other = open_recipe(sets)
    other["runtime"]["layout"] = "first"
    with refused("run", "recipe", "--out"):
        run_toy(other, chosen_run, resume=True)


def test_settings_of_a_stored_run_are_those_of_its_version() -> None:
    assert RunDirectory(STORED / "faces").settings == {"layout": "last", "precision": "fp32"}


@pytest.mark.parametrize("damage", ["", "[1]", "runtime: 3", "runtime: {layout: sideways, precision: fp32}"])
def test_damaged_recipe_has_no_settings(tmp_path: Path, damage: str) -> None:
    (tmp_path / "recipe.yaml").write_text(damage)
    assert RunDirectory(tmp_path).settings == {}


@pytest.mark.long
def test_narrow_network_trains_without_a_segmentation_fault(tmp_path: Path) -> None:
    (tmp_path / "narrow.yaml").write_text(NARROW)
    command = [sys.executable, "-m", "fedvisage", "run", "narrow.yaml", "--out", "run", "--quiet"]
    environment = {**os.environ, "FEDVISAGE_CACHE": str(tmp_path / "cache")}
    child = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (child.returncode, child.stderr) == (0, "")


@pytest.mark.long
def test_layouts_train_the_same_weights_up_to_rounding(sets: Sets, tmp_path: Path) -> None:
    for layout in ("first", "last"):
        content = tree(sets, "fedgpad", runtime__layout=layout, training__rounds=1)
        content["training"]["optimizer"] = {"name": "sgd", "lr": 0.001}  # Adam's first step is a sign
        run(Request(recipe_of(content), tmp_path / layout, tmp_path / "cache"), quiet_reporter())
    first, last = (load_file(tmp_path / layout / "model.safetensors") for layout in ("first", "last"))
    for name, value in last.items():
        torch.testing.assert_close(first[name], value, rtol=1e-3, atol=1e-4)


def test_layout_first_makes_kernels_contiguous(sets: Sets) -> None:
    setup = set_up_recipe(tree(sets, runtime__layout="first"))
    kernels = [p for p in setup.workspace().net.parameters() if p.dim() == 4 and min(p.shape[1:]) > 1]
    assert all(kernel.is_contiguous() for kernel in kernels)
    assert not any(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)


def test_federation_job_contains_the_layout(sets: Sets, tmp_path: Path) -> None:
    recipe = without_local_parts(with_chosen_settings(set_up_recipe(tree(sets, runtime__precision="bf16"))))
    write_job(tmp_path / "job", Job("job", recipe), "ABC")
    runtime = read_job(tmp_path / "job" / "app" / "config").recipe.runtime
    assert (runtime.layout, runtime.precision) == ("last", "bf16")


def test_network_gets_the_layout_of_its_images() -> None:
    net = torch.nn.Conv2d(3, 8, 3)
    Compute(torch.device("cpu"), half=False, layout=torch.contiguous_format).place(net)
    assert net.weight.is_contiguous()
    Compute(torch.device("cpu"), half=False).place(net)
    assert net.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FEDVISAGE_CACHE": "/ours", "XDG_CACHE_HOME": "/xdg"}, Path("/ours")),
        ({"XDG_CACHE_HOME": "/xdg"}, Path("/xdg/fedvisage")),
        ({"XDG_CACHE_HOME": "relative"}, Path.home() / ".cache" / "fedvisage"),
        ({}, Path.home() / ".cache" / "fedvisage"),
    ],
)
def test_cache_directory_follows_the_environment(environment: dict[str, str], expected: Path) -> None:
    assert cache_directory(environment) == expected
