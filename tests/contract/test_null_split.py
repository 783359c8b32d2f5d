"""With one site and nothing sampled, split learning is central training of the same network, byte for byte."""

from pathlib import Path
from typing import Any

import pytest
from tests.contract.comparing import run_to_weights
from tests.toy import Sets, tree

pytestmark = pytest.mark.long

ONE_BATCH = ({"encoder_update": "gradient"}, {"batches": 1})
EACH_BATCH = ({"encoder_update": "average"}, {"batches": 3})


def recipes(sets: Sets, split: str, central: str, local: dict[str, int]) -> tuple[dict[str, Any], ...]:
    """Return both recipes on one site, which has the name that merged data get: streams follow names."""
    changes = {"training__local": local, "training__optimizer": {"lr": 0.01, "state": "kept"}}
    return tuple(tree(sets, name, data__sites={"all": str(sets["A"])}, **changes) for name in (split, central))


@pytest.mark.parametrize(("options", "local", "block"), [(*ONE_BATCH, 2), (*EACH_BATCH, 1)])
def test_fedsis_with_one_site_and_one_block_is_central_training(
    sets: Sets, tmp_path: Path, options: dict[str, str], local: dict[str, int], block: int
) -> None:
    split, central = recipes(sets, "fedsis", "vit-h-is", local)
    blocks = {"first": block, "last": block}
    expected = run_to_weights(central, tmp_path / "central", blocks=blocks)
    assert run_to_weights(split, tmp_path / "split", blocks=blocks, **options) == expected


@pytest.mark.parametrize(("options", "local"), [ONE_BATCH, EACH_BATCH])
def test_festa_with_one_site_is_central_training_of_vit_h(
    sets: Sets, tmp_path: Path, options: dict[str, str], local: dict[str, int]
) -> None:
    split, central = recipes(sets, "festa", "vit-h", local)
    assert run_to_weights(split, tmp_path / "split", **options) == run_to_weights(central, tmp_path / "central")


def test_fedavg_on_vit_h_with_one_site_is_central_training(sets: Sets, tmp_path: Path) -> None:
    split, central = recipes(sets, "fedavg-vit-h", "vit-h", {"batches": 2})
    assert run_to_weights(split, tmp_path / "split") == run_to_weights(central, tmp_path / "central")


@pytest.mark.parametrize("name", ["fedprox-vit-h", "moon-vit-h"])
def test_vit_methods_without_their_own_term_are_fedavg_on_vit_h(sets: Sets, tmp_path: Path, name: str) -> None:
    off, on = (run_to_weights(tree(sets, name, training__rounds=2), tmp_path / f"{mu}", mu=mu) for mu in (0, 1))
    fedavg = run_to_weights(tree(sets, "fedavg-vit-h", training__rounds=2), tmp_path / "fedavg")
    assert off == fedavg
    assert on != fedavg
