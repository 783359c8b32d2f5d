"""A copied toy run equals a real one, file by file, and only runs of the same recipe are copied."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.toy import Sets, deterministic_files, files_below, make_sets, run_toy, run_toy_once, tree, weights

pytestmark = pytest.mark.long

CHECKPOINT = "checkpoints/000001.safetensors"
TIMED = {"metrics.json", "rounds.jsonl", "environment.json", "seal.json", CHECKPOINT}
"""Files with durations, sizes of memory, digests of such files, or their sizes, which a checkpoint records."""


@pytest.fixture(scope="module")
def own_sets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Sets that no other test has used, so that the first run trains."""
    return make_sets(tmp_path_factory.mktemp("own") / "sets")


def test_copied_run_has_the_files_of_a_trained_one(own_sets: Sets, tmp_path: Path) -> None:
    content = tree(own_sets, training__rounds=1)
    first, copied, real = (tmp_path / name for name in ("first", "copied", "real"))
    run_toy_once(content, first)
    run_toy_once(content, copied)
    run_toy(content, real)
    assert files_below(copied) == files_below(first), "it was copied, with its durations"
    assert deterministic_files(copied) == deterministic_files(real)
    assert files_below(copied).keys() == files_below(real).keys()
    untimed = files_below(real).keys() - TIMED
    assert {name: files_below(copied)[name] for name in untimed} == {name: files_below(real)[name] for name in untimed}
    tensors, again = (load_file(out / CHECKPOINT) for out in (copied, real))
    assert tensors.keys() == again.keys()
    assert all(torch.equal(value, again[name]) for name, value in tensors.items())


@pytest.mark.parametrize(("key", "values"), [("runtime__seed", (0, 1)), ("method__mu", (0.0, 1.0))])
def test_different_recipes_are_trained_separately(
    key: str, values: tuple[float, float], own_sets: Sets, tmp_path: Path
) -> None:
    for value in values:
        run_toy_once(tree(own_sets, "fedprox", training__rounds=1, **{key: value}), tmp_path / f"{value}")
    assert weights(tmp_path / f"{values[0]}") != weights(tmp_path / f"{values[1]}")
