"""With one site and nothing sampled, split learning is central training of the same network, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.toy import run_toy_once, tree, weights

ONE_BATCH = ({"encoder_update": "gradient"}, {"batches": 1})
EACH_BATCH = ({"encoder_update": "average"}, {"batches": 3})


def train_to_bytes(content: dict[str, Any], out: Path) -> bytes:
    run_toy_once(content, out)
    return weights(out)


def recipes(sets: Mapping[str, Path], split: str, central: str, local: dict[str, int]) -> tuple[dict[str, Any], ...]:
    """Return both recipes on one site, which has the name that merged data get: streams follow names."""
    changes = {"training__local": local, "training__optimizer": {"lr": 0.01, "state": "kept"}}
    return tuple(tree(sets, name, data__sites={"all": str(sets["A"])}, **changes) for name in (split, central))


@pytest.mark.parametrize(("options", "local", "block"), [(*ONE_BATCH, 2), (*EACH_BATCH, 1)])
def test_fedsis_with_one_site_and_one_block_is_central_training(
    sets: Mapping[str, Path], tmp_path: Path, options: dict[str, str], local: dict[str, int], block: int
) -> None:
    split, central = recipes(sets, "fedsis", "vit-h-is", local)
    for content in (split, central):
        content["method"]["blocks"] = {"first": block, "last": block}
    split["method"] |= options
    assert train_to_bytes(split, tmp_path / "split") == train_to_bytes(central, tmp_path / "central")


@pytest.mark.parametrize(("options", "local"), [ONE_BATCH, EACH_BATCH])
def test_festa_with_one_site_is_central_training_of_vit_h(
    sets: Mapping[str, Path], tmp_path: Path, options: dict[str, str], local: dict[str, int]
) -> None:
    split, central = recipes(sets, "festa", "vit-h", local)
    split["method"] |= options
    assert train_to_bytes(split, tmp_path / "split") == train_to_bytes(central, tmp_path / "central")


def test_fedavg_on_vit_h_with_one_site_is_central_training(sets: Mapping[str, Path], tmp_path: Path) -> None:
    split, central = recipes(sets, "fedavg-vit-h", "vit-h", {"batches": 2})
    assert train_to_bytes(split, tmp_path / "split") == train_to_bytes(central, tmp_path / "central")


@pytest.mark.parametrize("name", ["fedprox-vit-h", "moon-vit-h"])
def test_vit_methods_without_their_own_term_are_fedavg_on_vit_h(
    sets: Mapping[str, Path], tmp_path: Path, name: str
) -> None:
    actual = {}
    for mu in (0, 1):
        content = tree(sets, name, training__rounds=2)
        content["method"]["mu"] = mu
        actual[mu] = train_to_bytes(content, tmp_path / f"{mu}")
    fedavg = train_to_bytes(tree(sets, "fedavg-vit-h", training__rounds=2), tmp_path / "fedavg")
    assert actual[0] == fedavg
    assert actual[1] != fedavg
