"""Finished models are read completely or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.refusals import refused
from tests.toy import SIZE, recipe_of, tree

from fedvisage.metrics.threshold import Threshold
from fedvisage.recipe import tree_of
from fedvisage.tasks import saved_model

FINISHED = {"model.w": torch.rand(3, 2, generator=torch.Generator().manual_seed(0)), "model.n": torch.tensor(7)}
THRESHOLDS = {"": Threshold(0.25, "source-eer", 0.1, None)}
SCATTER = {"A": 0.5, "B": 0.25}


@pytest.fixture
def recipe() -> dict[str, Any]:
    return tree_of(recipe_of(tree({name: Path(f"sets/{name}") for name in "ABCU"})))


@pytest.fixture
def model_directory(recipe: dict[str, Any], tmp_path: Path) -> Path:
    saved_model.save(tmp_path, saved_model.SavedModel(recipe, FINISHED, THRESHOLDS, SCATTER))
    return tmp_path


def test_saved_model_is_read_unchanged(model_directory: Path, recipe: dict[str, Any]) -> None:
    result = saved_model.load(model_directory)
    assert {name: value.tolist() for name, value in result.finished.items()} == {
        name: value.tolist() for name, value in FINISHED.items()
    }
    assert result.thresholds == THRESHOLDS
    assert result.scatter == SCATTER
    assert result.recipe == recipe


def test_settings_describe_the_model_for_other_programs(model_directory: Path) -> None:
    settings = json.loads((model_directory / "model.json").read_text())
    assert settings["input"]["size"] == SIZE
    assert settings["input"]["colour_order"] == "RGB"
    assert settings["thresholds"][""] == {"logit": 0.25, "rule": "source-eer", "far": 0.1, "frr": None}


def test_flipped_bytes_of_the_weights_are_refused(model_directory: Path) -> None:
    path = model_directory / "model.safetensors"
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with refused(path):
            saved_model.load(model_directory)


def test_weights_of_another_model_are_refused(model_directory: Path, recipe: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = saved_model.SavedModel(recipe, {"model.w": torch.zeros(3, 2)}, THRESHOLDS, SCATTER)
    saved_model.save(tmp_path / "other", other)
    (tmp_path / "other" / "model.safetensors").replace(model_directory / "model.safetensors")
    with refused("model.safetensors", "digest", "model.json"):
        saved_model.load(model_directory)


def test_model_of_another_format_is_refused_by_number(model_directory: Path) -> None:
    settings = json.loads((model_directory / "model.json").read_text())
    (model_directory / "model.json").write_text(json.dumps({**settings, "format": 1}))
    with refused("model.json", "format 1", "3"):
        saved_model.load(model_directory)


def test_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with refused("model.json", "exist"):
        saved_model.load(tmp_path)
    with refused("nowhere", "directory not found"):
        saved_model.load(tmp_path / "nowhere")
    (tmp_path / "cells").mkdir()
    with refused(tmp_path, "study", "cells"):
        saved_model.load(tmp_path)
