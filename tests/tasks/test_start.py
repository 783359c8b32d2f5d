"""Weights to start from: what fits is taken, what does not is told by name, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.refusals import refused
from tests.toy import run_toy, tree

from fedvisage.base.files import read_json, write_tensors
from fedvisage.recipe import Start
from fedvisage.starts.start import read_start

PRESENT = {"model.w": torch.full((3, 2), 5.0), "model.n": torch.tensor(7), "head.b": torch.zeros(1)}
STILL = {"name": "sgd", "lr": 1e-12}


def start(path: Path, **more: object) -> Start:
    return Start.model_validate({"file": str(path), **more})


@pytest.mark.parametrize(
    ("found", "keyword"),
    [
        ({"model.w": torch.zeros(3, 2)}, "model.n"),
        ({"model.w": torch.zeros(2, 3), "model.n": torch.tensor(0)}, "(2, 3)"),
        ({"other.w": torch.zeros(1)}, "other.w"),
        ({}, "lacks"),
    ],
)
def test_a_strict_start_must_fit(found: dict[str, torch.Tensor], keyword: str, tmp_path: Path) -> None:
    save_file(found, tmp_path / "start.safetensors")
    with refused("recipe.training.start", keyword):
        read_start(tmp_path / "start.safetensors", start(tmp_path / "start.safetensors"), PRESENT)


def test_a_strict_start_may_hold_some_parts_only(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file({"model.w": torch.ones(3, 2), "model.n": torch.tensor(1)}, path)
    found = read_start(path, start(path), PRESENT)
    assert set(found.weights) == {"model.w", "model.n"}
    assert found.untouched == ("head",)


def test_a_loose_start_takes_what_fits_and_names_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file({"model.w": torch.ones(3, 2), "head.b": torch.zeros(4), "adapter.w": torch.zeros(2)}, path)
    found = read_start(path, start(path, strict=False), PRESENT)
    assert found.taken == ("model.w",)
    assert found.weights["model.w"].tolist() == torch.ones(3, 2).tolist()
    assert int(found.weights["model.n"]) == 7, "what the file lacks stays as it was drawn, and the part is whole"
    assert (found.lacking, found.unknown, found.reshaped) == (("model.n",), ("adapter.w",), ("head.b",))
    said = " ".join(found.lines())
    assert all(name in said for name in ("model.n", "adapter.w", "head.b", "randomly"))


def test_parts_that_are_named_are_the_ones_that_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file({"model.w": torch.ones(3, 2), "model.n": torch.tensor(1), "head.b": torch.ones(1)}, path)
    assert set(read_start(path, start(path, parts=["head"]), PRESENT).weights) == {"head.b"}
    with refused("recipe.training.start.parts", "'haed'", "head"):
        read_start(path, start(path, parts=["haed"]), PRESENT)
    save_file({"model.w": torch.ones(3, 2), "model.n": torch.tensor(1)}, path)
    with refused("recipe.training.start", "head.b"):
        read_start(path, start(path, parts=["head"]), PRESENT)


def test_a_loose_start_that_gives_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file({"other.w": torch.ones(3, 2)}, path)
    with refused("recipe.training.start", "network"):
        read_start(path, start(path, strict=False), PRESENT)


def test_a_converted_file_says_for_which_network_it_is(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    about = '{"network": {"name": "iresnet50"}, "input": {"size": 112}, "licence": "research only"}'
    write_tensors(path, {"model.stem.weight": torch.ones(1)}, about)
    with refused("recipe.training.start", "iresnet50", "112"):
        read_start(path, start(path), PRESENT)


def test_one_file_of_a_model_with_more_parts_starts_one_with_fewer(sets: Mapping[str, Path], tmp_path: Path) -> None:
    """A transformer that was trained with FedSIS's adapter starts one without; the run keeps what fitted."""
    run_toy(tree(sets, "fedsis", training__rounds=1), tmp_path / "first")
    given = tmp_path / "first" / "model.safetensors"
    still = {"training__optimizer": STILL, "training__rounds": 1}
    with refused("recipe.training.start", "adapter.layers.0.weight", "strict: false"):
        run_toy(tree(sets, "vit-h", **still, training__start=str(given)), tmp_path / "strict")
    loose = {"file": str(given), "strict": False}
    run_toy(tree(sets, "vit-h", **still, training__start=loose), tmp_path / "second")
    said = read_json(tmp_path / "second" / "start.json")
    assert any(name.startswith("adapter.") for name in said["unknown"])
    found, source = load_file(tmp_path / "second" / "model.safetensors"), load_file(given)
    name = "blocks.0.attn.qkv.weight"
    torch.testing.assert_close(found[name], source[name])
    assert read_json(tmp_path / "second" / "data.json")["training.start"]
