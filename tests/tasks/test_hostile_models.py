"""A model is a file from anywhere: what does not hold together is refused in one line that names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.refusals import refused
from tests.toy import remove_seal, run_toy, tree

import fedvisage as fv
from fedvisage.base.errors import RunFailed
from fedvisage.federation.wire.message import digest_of
from fedvisage.tasks import saved_model

Weights = dict[str, torch.Tensor]
Settings = dict[str, Any]


@pytest.fixture(scope="module")
def whole(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("hostile") / "run"
    run_toy(tree(sets, training__rounds=1), out)
    return out


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """A copy of its model for one test."""
    for name in (saved_model.WEIGHTS, saved_model.SETTINGS):
        shutil.copy(whole / name, tmp_path / name)
    return tmp_path


def with_weights(directory: Path, change: Callable[[Weights], object]) -> None:
    """Change the weights, and the digest with them, as a forger would."""
    weights = load_file(directory / saved_model.WEIGHTS)
    change(weights)
    save_file(weights, directory / saved_model.WEIGHTS)
    with_settings(directory, lambda settings: settings.update(weights_sha256=digest_of(weights)))


def with_settings(directory: Path, change: Callable[[Settings], object]) -> None:
    settings = json.loads((directory / saved_model.SETTINGS).read_text())
    change(settings)
    (directory / saved_model.SETTINGS).write_text(json.dumps(settings))


def check_refused(directory: Path, name: str, *keywords: str) -> None:
    with refused(directory / name, *keywords):
        fv.open(directory)


def first(weights: Weights) -> str:
    return next(name for name in sorted(weights) if weights[name].is_floating_point())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value: float, copy: Path) -> None:
    with_weights(copy, lambda weights: weights[first(weights)].view(-1)[0].fill_(value))
    check_refused(copy, saved_model.WEIGHTS, "NaN")


@pytest.mark.parametrize(
    ("change", "keyword"),
    [
        (lambda weights: weights.pop(first(weights)), "lacks"),
        (lambda weights: weights.update({"encoder.more": torch.zeros(1)}), "encoder.more"),
        (lambda weights: weights.update({"B/encoder.more": torch.zeros(1)}), "single model"),
        (lambda weights: weights.update({first(weights): torch.zeros(1, 2, 3)}), "(1, 2, 3)"),
        (lambda weights: weights.update({first(weights): weights[first(weights)].double()}), "float64"),
        (lambda weights: weights.clear(), "single model"),
    ],
)
def test_weights_that_are_not_the_networks_are_refused(
    change: Callable[[Weights], object], keyword: str, copy: Path
) -> None:
    with_weights(copy, change)
    check_refused(copy, saved_model.WEIGHTS, keyword)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", '"high"', "null", "[]"])
def test_a_threshold_that_is_no_number_is_refused(number: str, copy: Path) -> None:
    with_settings(copy, lambda settings: settings["thresholds"][""].update(logit="HERE"))
    text = (copy / saved_model.SETTINGS).read_text()
    (copy / saved_model.SETTINGS).write_text(text.replace('"HERE"', number))
    check_refused(copy, saved_model.SETTINGS, "settings")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 3',
        "[" * 100_000,
        '{"format": ' + "[" * 200 + "]" * 200 + "}",
        '{"format": 3, "recipe": "\\ud800"}',
        "\xff",
        '{"format": 3, "recipe": 7}',
    ],
)
def test_settings_that_are_none_are_refused(text: str, copy: Path) -> None:
    (copy / saved_model.SETTINGS).write_bytes(text.encode("latin-1"))
    check_refused(copy, saved_model.SETTINGS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda recipe: recipe["method"]["network"].update(width=16), saved_model.WEIGHTS),
        (lambda recipe: recipe["method"]["network"].update(width=8192), saved_model.SETTINGS),
        (lambda recipe: recipe["method"].update(name="vit", network={}), saved_model.SETTINGS),
        (lambda recipe: recipe.update(method="fedavg"), saved_model.SETTINGS),
        (lambda recipe: recipe.update(method="nothing-like-it"), saved_model.SETTINGS),
        (lambda recipe: recipe.update(runtime=[]), None),
        (lambda recipe: recipe.update(runtime=7), saved_model.SETTINGS),
        (lambda recipe: recipe.update(evaluation="x"), saved_model.SETTINGS),
        (lambda recipe: recipe.pop("data"), saved_model.SETTINGS),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(
    change: Callable[[dict[str, Any]], object], said: str | None, copy: Path
) -> None:
    with_settings(copy, lambda settings: change(settings["recipe"]))
    if said is None:
        fv.open(copy)  # what is left out has its default
    else:
        check_refused(copy, said)


def test_weights_larger_than_memory_are_refused_before_they_are_read(copy: Path) -> None:
    with (copy / saved_model.WEIGHTS).open("r+b") as file:
        file.truncate(1 << 43)  # a hole, which takes no room
    check_refused(copy, saved_model.WEIGHTS, "memory")


def test_settings_of_absurd_size_are_refused_before_they_are_read(copy: Path) -> None:
    with (copy / saved_model.SETTINGS).open("r+b") as file:
        file.truncate(1 << 43)
    check_refused(copy, saved_model.SETTINGS, "bytes")


def test_a_model_that_overflowed_is_not_written(copy: Path) -> None:
    saved = saved_model.load(copy)
    saved.finished[first(saved.finished)].view(-1)[0] = float("inf")
    (copy / "new").mkdir()
    with pytest.raises(RunFailed, match="infinite"):
        saved_model.save(copy / "new", saved)
    assert list((copy / "new").iterdir()) == []


def test_weights_that_are_numbers_and_give_none_end_in_one_line(
    whole: Path, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    """Each is finite; what they come to is not."""
    remove_seal(shutil.copytree(whole, tmp_path / "run"))
    with_weights(
        tmp_path / "run", lambda weights: [value.fill_(3e38) for value in weights.values() if value.is_floating_point()]
    )
    with pytest.raises(RunFailed, match="NaN"):
        fv.open(tmp_path / "run").score(torch.full((1, 3, 32, 32), 200, dtype=torch.uint8))
    with pytest.raises(RunFailed, match="NaN"):
        fv.evaluate(tmp_path / "run", str(sets["U"]), cache=tmp_path / "cache", out=tmp_path / "judged")
