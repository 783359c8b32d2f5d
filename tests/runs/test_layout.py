"""Where channels lie in memory: measured once where a recipe asks, written down, and the same ever after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, cycle, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.contract.examples import two_exchanges
from tests.refusals import refused
from tests.toy import recipe_of, run_toy, silent, tree, unheard, weights

from fedvisage.base.files import cache_directory
from fedvisage.federation.declared import Member
from fedvisage.methods import find
from fedvisage.nn.compute import Compute
from fedvisage.nvflare.job import Job, read_job, without_local_parts, write_job
from fedvisage.recipe import Recipe, text_of
from fedvisage.runs.layout import (
    LayoutChoice,
    candidates,
    choose_layout,
    measure_layouts,
    with_earlier_choice,
    with_layout,
)
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.catalogue import Setup, set_up

FIRST = LayoutChoice("first", "fp32", {"channels first, fp32": 0.5, "channels last, fp32": 1.0})


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


def ready(content: Mapping[str, Any]) -> Setup:
    recipe = recipe_of(content)
    return set_up(recipe, find(recipe.method))


def clock(*seconds: float) -> Callable[[], float]:
    """Return a clock by which steps take these seconds in turn, and nothing else takes any."""
    ticks: Iterator[float] = accumulate(value for pair in zip(repeat(0.0), cycle(seconds)) for value in pair)
    return lambda: next(ticks)


def never(_: Setup) -> LayoutChoice:
    raise AssertionError("was measured although it was known")


def crash_with_channels_last(member: Member) -> torch.Tensor:
    """End this process as a faulty kernel would, if the channels lie last."""
    if member.images.is_contiguous(memory_format=torch.channels_last):
        os.kill(os.getpid(), signal.SIGSEGV)
    return two_exchanges.METHOD.prediction.predict(member)


@pytest.fixture(scope="module")
def measured_run(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose recipe asked for a measurement."""
    out = tmp_path_factory.mktemp("measured") / "run"
    run_toy(tree(sets, runtime__layout="auto"), out)
    return out


@pytest.mark.parametrize(("first", "chosen"), [(0.75, "first"), (0.85, "last"), (1.5, "last")])
def test_another_layout_is_chosen_only_where_it_saves_more_than_noise(
    sets: Mapping[str, Path], first: float, chosen: str
) -> None:
    choice = measure_layouts(ready(tree(sets, runtime__layout="auto")), clock(1.0, first))
    assert (choice.layout, choice.precision) == (chosen, "fp32")
    assert choice.seconds == pytest.approx({"channels last, fp32": 1.0, "channels first, fp32": first})


def test_both_number_formats_are_candidates_only_where_the_recipe_leaves_it_open(sets: Mapping[str, Path]) -> None:
    setup = ready(tree(sets, runtime__layout="auto", runtime__precision="bf16", input__size=32))
    assert [str(one) for one in candidates(setup)] == ["channels last, bf16", "channels first, bf16"]


@pytest.mark.parametrize("method", ["fedgpad", "fedsis", "fedfr"])
def test_a_step_of_every_kind_of_method_can_be_timed(sets: Mapping[str, Path], method: str) -> None:
    before = torch.random.get_rng_state()
    choice = measure_layouts(ready(tree(sets, method, runtime__layout="auto", input__size=32)))
    assert all(seconds > 0 for seconds in choice.seconds.values())
    assert len(choice.seconds) == 2
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_was_decided_stands_in_the_recipe_and_how_beside_it(measured_run: Path) -> None:
    runtime = yaml.safe_load((measured_run / "recipe.yaml").read_text())["runtime"]
    seen = json.loads((measured_run / "environment.json").read_text())
    assert runtime["layout"] == seen["layout"]
    assert runtime["layout"] in ("first", "last")
    assert runtime["precision"] == "fp32"
    assert set(seen["seconds_of_a_step"]) == {"channels last, fp32", "channels first, fp32"}


def test_the_resolved_recipe_gives_the_same_bytes_and_is_not_measured_again(
    measured_run: Path, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    run_toy(yaml.safe_load((measured_run / "recipe.yaml").read_text()), tmp_path / "again")
    assert weights(tmp_path / "again") == weights(measured_run)
    assert not (tmp_path / "cache" / "layouts").exists()


def test_a_run_that_was_measured_is_resumed_with_what_it_began_with(
    measured_run: Path, sets: Mapping[str, Path]
) -> None:
    other = {"last": "first", "first": "last"}
    recipe = recipe_of(tree(sets, runtime__layout="auto"))
    began = with_earlier_choice(recipe, measured_run).runtime.layout
    text = (measured_run / "recipe.yaml").read_text()
    assert f"layout: {began}" in text
    assert run_toy(tree(sets, runtime__layout="auto"), measured_run, resume=True)
    assert (measured_run / "recipe.yaml").read_text() == text
    with refused("run", "recipe", "--out"):
        run_toy(tree(sets, runtime__layout=other[str(began)]), measured_run, resume=True)


def test_a_choice_is_remembered_for_the_same_network_batch_and_processor(
    sets: Mapping[str, Path], tmp_path: Path
) -> None:
    setup = ready(tree(sets, runtime__layout="auto"))
    assert choose_layout(setup, tmp_path, unheard, lambda _: FIRST) == FIRST
    assert choose_layout(setup, tmp_path, unheard, never) == FIRST
    with pytest.raises(AssertionError, match="measured"):
        choose_layout(ready(tree(sets, runtime__layout="auto", training__batch=16)), tmp_path, unheard, never)


@pytest.mark.parametrize("damage", ["", "[1]", '{"layout": "sideways", "precision": "fp32", "seconds": {}}', "{}"])
def test_a_damaged_memory_is_measured_again(sets: Mapping[str, Path], tmp_path: Path, damage: str) -> None:
    setup = ready(tree(sets, runtime__layout="auto"))
    choose_layout(setup, tmp_path, unheard, lambda _: LayoutChoice("last", "fp32", {}))
    (path,) = (tmp_path / "layouts").glob("*.json")
    path.write_text(damage)
    assert choose_layout(setup, tmp_path, unheard, lambda _: FIRST) == FIRST
    assert json.loads(path.read_text())["layout"] == "first"


def test_a_cache_that_cannot_be_written_to_stops_no_run(sets: Mapping[str, Path], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a directory should be")
    assert (
        choose_layout(ready(tree(sets, runtime__layout="auto")), tmp_path / "cache", unheard, lambda _: FIRST) == FIRST
    )


def test_a_crash_of_a_timed_step_leaves_the_run_alive_with_the_channels_first(
    sets: Mapping[str, Path], tmp_path: Path
) -> None:
    fatal = replace(
        two_exchanges.METHOD,
        prediction=replace(two_exchanges.METHOD.prediction, timed_step=crash_with_channels_last),
    )
    content = tree(sets, runtime__layout="auto")
    content["method"] = {**content["method"], "name": fatal.name}
    lines: list[str] = []
    assert choose_layout(set_up(recipe_of(content, fatal), fatal), tmp_path, lines.append) == LayoutChoice(
        "first", "fp32", {}
    )
    assert lines == ["layout: channels first, fp32 (the process that timed both layouts crashed)"]
    assert not list((tmp_path / "layouts").glob("*.json"))  # the next run may have better luck


@pytest.mark.whole
def test_a_narrow_network_trains_without_a_segmentation_fault(tmp_path: Path) -> None:
    (tmp_path / "narrow.yaml").write_text(NARROW)
    command = [sys.executable, "-m", "fedvisage", "run", "narrow.yaml", "--out", "run", "--quiet"]
    environment = {**os.environ, "FEDVISAGE_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_method_that_no_other_process_can_import_is_not_timed(sets: Mapping[str, Path], tmp_path: Path) -> None:
    setup = ready(tree(sets, runtime__layout="auto"))
    timed = replace(setup.method.prediction, timed_step=lambda member: member.images.mean())
    local = replace(setup, method=replace(setup.method, name="local", prediction=timed))
    lines: list[str] = []
    assert choose_layout(local, tmp_path, lines.append, never) == LayoutChoice("last", "fp32", {})
    assert lines == ["layout: channels last, fp32 (local cannot be sent to another process to be timed)"]


def test_a_recipe_without_the_key_is_written_as_before_and_not_measured(
    sets: Mapping[str, Path], tmp_path: Path
) -> None:
    setup = ready(tree(sets))
    assert "layout" not in text_of(setup.recipe)
    assert setup.compute.layout == torch.channels_last
    assert choose_layout(setup, tmp_path, unheard, never) is None


def test_channels_first_train_the_same_up_to_rounding(sets: Mapping[str, Path], tmp_path: Path) -> None:
    for layout in ("first", "last"):
        content = tree(sets, "fedgpad", runtime__layout=layout, input__size=32, training__rounds=1)
        content["training"]["optimizer"] = {"name": "sgd", "lr": 0.001}  # Adam's first step is a sign
        run(Request(recipe_of(content), tmp_path / layout, tmp_path / "cache"), silent())
    first, last = (load_file(tmp_path / layout / "model.safetensors") for layout in ("first", "last"))
    for name, value in last.items():
        torch.testing.assert_close(first[name], value, rtol=1e-3, atol=1e-4)


def test_images_and_convolutions_lie_as_they_should(sets: Mapping[str, Path]) -> None:
    setup = ready(tree(sets, runtime__layout="first"))
    kernels = [p for p in setup.workspace().net.parameters() if p.dim() == 4 and min(p.shape[1:]) > 1]
    assert all(kernel.is_contiguous() for kernel in kernels)
    assert not any(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)


def test_a_federation_carries_what_was_decided_and_no_open_question(sets: Mapping[str, Path], tmp_path: Path) -> None:
    asked = recipe_of(tree(sets, runtime__layout="auto"))
    known: Recipe = with_layout(asked, FIRST)
    assert without_local_parts(known).runtime.layout == "first"
    write_job(tmp_path / "known", Job("known", without_local_parts(known)), "ABC")
    assert read_job(tmp_path / "known" / "app" / "config").recipe.runtime.layout == "first"
    write_job(tmp_path / "asked", Job("asked", without_local_parts(asked)), "ABC")
    with refused("recipe.runtime.layout", "first", "last"):
        read_job(tmp_path / "asked" / "app" / "config")


def test_a_network_is_placed_in_the_layout_of_its_images() -> None:
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
def test_the_cache_lies_where_the_user_keeps_caches(environment: dict[str, str], expected: Path) -> None:
    assert cache_directory(environment) == expected
