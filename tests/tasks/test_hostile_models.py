"""Model files from untrusted sources: inconsistent ones are refused in one line that names the file."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.refusals import refused
from tests.toy import Sets, remove_seal

import fedvisage as fv
from fedvisage.base.errors import RunFailed
from fedvisage.federation.wire.message import digest_of
from fedvisage.tasks import saved_model
from fedvisage.tasks.seal import SETTINGS, WEIGHTS

Weights = dict[str, torch.Tensor]
Settings = dict[str, Any]


@pytest.fixture
def copy(pad_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished model for one test."""
    for name in (WEIGHTS, SETTINGS):
        shutil.copy(pad_run / name, tmp_path / name)
    return tmp_path


def with_weights(directory: Path, change: Callable[[Weights], object]) -> None:
    """Change the weights and their digest."""
    weights = load_file(directory / WEIGHTS)
    change(weights)
    save_file(weights, directory / WEIGHTS)
    with_settings(directory, lambda settings: settings.update(weights_sha256=digest_of(weights)))


def with_settings(directory: Path, change: Callable[[Settings], object]) -> None:
    settings = json.loads((directory / SETTINGS).read_text())
    change(settings)
    (directory / SETTINGS).write_text(json.dumps(settings))


def check_refused(directory: Path, name: str, *keywords: str) -> None:
    with refused(directory / name, *keywords):
        fv.open(directory)


def first(weights: Weights) -> str:
    return next(name for name in sorted(weights) if weights[name].is_floating_point())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nonfinite_weights_are_refused(value: float, copy: Path) -> None:
    with_weights(copy, lambda weights: weights[first(weights)].view(-1)[0].fill_(value))
    check_refused(copy, WEIGHTS, "NaN")


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
def test_weights_of_another_network_are_refused(change: Callable[[Weights], object], keyword: str, copy: Path) -> None:
    with_weights(copy, change)
    check_refused(copy, WEIGHTS, keyword)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", '"high"', "null", "[]"])
def test_nonnumeric_threshold_is_refused(number: str, copy: Path) -> None:
    with_settings(copy, lambda settings: settings["thresholds"][""].update(logit="HERE"))
    text = (copy / SETTINGS).read_text()
    (copy / SETTINGS).write_text(text.replace('"HERE"', number))
    check_refused(copy, SETTINGS, "settings")


@pytest.mark.parametrize(
    ("text", "keywords"),
    [
        ("", ["JSON"]),
        ("[]", ["object"]),
        ("{}", ["'format'"]),
        ('{"recipe": {}, "weights_sha256": "", "thresholds": []}', ["'format'"]),
        ('{"format": 3}', ["'recipe'"]),
        ('{"format": 3', []),
        ("[" * 100_000, []),
        ('{"format": ' + "[" * 200 + "]" * 200 + "}", []),
        ('{"format": 3, "recipe": "\\ud800"}', []),
        ("\xff", []),
        ('{"format": 3, "recipe": 7}', []),
    ],
)
def test_malformed_settings_are_refused(text: str, keywords: list[str], copy: Path) -> None:
    (copy / SETTINGS).write_bytes(text.encode("latin-1"))
    check_refused(copy, SETTINGS, *keywords)


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda recipe: recipe["method"]["network"].update(width=16), WEIGHTS),
        (lambda recipe: recipe["method"]["network"].update(width=8192), SETTINGS),
        (lambda recipe: recipe["method"].update(name="vit", network={}), SETTINGS),
        (lambda recipe: recipe.update(method="fedavg"), SETTINGS),
        (lambda recipe: recipe.update(method="nothing-like-it"), SETTINGS),
        (lambda recipe: recipe.update(runtime=[]), None),
        (lambda recipe: recipe.update(runtime=7), SETTINGS),
        (lambda recipe: recipe.update(evaluation="x"), SETTINGS),
        (lambda recipe: recipe.pop("data"), SETTINGS),
    ],
)
def test_unsuitable_recipe_is_refused(
    change: Callable[[dict[str, Any]], object], answer: str | None, copy: Path
) -> None:
    with_settings(copy, lambda settings: change(settings["recipe"]))
    if answer is None:
        fv.open(copy)  # missing keys have defaults
    else:
        check_refused(copy, answer)


@pytest.mark.parametrize(("name", "keyword"), [(WEIGHTS, "memory"), (SETTINGS, "bytes")])
def test_huge_file_is_refused_before_reading(name: str, keyword: str, copy: Path) -> None:
    os.truncate(copy / name, 1 << 43)  # a hole, which takes no room
    check_refused(copy, name, keyword)


def test_overflowed_model_is_not_written(copy: Path) -> None:
    saved = saved_model.load(copy)
    saved.finished[first(saved.finished)].view(-1)[0] = float("inf")
    (copy / "new").mkdir()
    with pytest.raises(RunFailed, match="infinite"):
        saved_model.save(copy / "new", saved)
    assert list((copy / "new").iterdir()) == []


def test_finite_weights_with_nonfinite_scores_end_in_one_line(pad_run: Path, sets: Sets, tmp_path: Path) -> None:
    """All weights are finite, but the scores overflow."""
    remove_seal(shutil.copytree(pad_run, tmp_path / "run"))
    with_weights(
        tmp_path / "run", lambda weights: [value.fill_(3e38) for value in weights.values() if value.is_floating_point()]
    )
    with pytest.raises(RunFailed, match="NaN"):
        fv.open(tmp_path / "run").score(torch.full((1, 3, 32, 32), 200, dtype=torch.uint8))
    with pytest.raises(RunFailed, match="NaN"):
        fv.evaluate(tmp_path / "run", str(sets["U"]), cache=tmp_path / "cache", out=tmp_path / "judged")
