"""Studies: the grid, the table, and that a finished cell is never run again."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console
from tests.toy import tree

from fedvisage.errors import UserError
from fedvisage.study import conduct, read


@pytest.fixture(scope="module")
def grid(sets: Mapping[str, Path]) -> dict[str, Any]:
    recipe = {key: value for key, value in tree(sets).items() if key != "data"}
    recipe["training"]["rounds"] = 1
    return {
        "title": "Toy",
        "recipe": recipe,
        "sets": {name: str(path) for name, path in sets.items()},
        "users": ["U", "A"],
        "rows": {
            "Single": {"set": ["method.name=single"]},
            "Fused": {"set": ["method.name=fused"], "trained_by": "Single"},
            "FedPAD": {},
        },
        "seeds": [0, 1],
        "paper": {"source": "A paper", "figures": {"FedPAD": {"U": [10.0, 20.0, 90.0], "A": [30.0, 40.0, 70.0]}}},
    }


@pytest.fixture(scope="module")
def conducted(grid: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("study")
    (root / "study.yaml").write_text(yaml.safe_dump(grid, sort_keys=False))
    return root, conduct(root / "study.yaml", root / "out", root / "cache", Console(file=io.StringIO()))


def metrics_of(root: Path, cell: str) -> dict[str, Any]:
    return json.loads((root / "out" / "cells" / cell / "metrics.json").read_text())  # type: ignore[no-any-return]


def test_each_user_in_turn_is_left_out_of_the_sites(conducted: tuple[Path, dict[str, Any]]) -> None:
    root, _ = conducted
    assert metrics_of(root, "fedpad-A-seed1")["sites"] == ["B", "C", "U"]
    assert metrics_of(root, "fedpad-U-seed0")["sites"] == ["A", "B", "C"]


def test_the_table_holds_mean_and_deviation_over_seeds(conducted: tuple[Path, dict[str, Any]]) -> None:
    root, table = conducted
    values = [[100 * metrics_of(root, f"fedpad-{user}-seed{seed}")["eer"] for seed in (0, 1)] for user in ("U", "A")]
    found = table["rows"]["FedPAD"]
    assert found["users"]["U"]["eer"] == pytest.approx([np.mean(values[0]), np.std(values[0], ddof=1)], abs=0.006)
    over_users = np.mean(values, axis=0)
    assert found["average"]["eer"] == pytest.approx([np.mean(over_users), np.std(over_users, ddof=1)], abs=0.006)


def test_the_papers_figures_stand_beside_and_are_averaged(conducted: tuple[Path, dict[str, Any]]) -> None:
    text = (conducted[0] / "out" / "table.md").read_text()
    mean = next(line for line in text.splitlines() if line.startswith("| **FedPAD**"))
    assert "20.00 | 30.00 | 80.00 |" in mean
    assert "on other (real) data" in text


def test_fused_judges_the_members_that_single_trained(conducted: tuple[Path, dict[str, Any]]) -> None:
    root, _ = conducted
    cells = root / "out" / "cells"
    names = ("single-U-seed0", "fused-U-seed0")
    single, fused = ((cells / name / "model.safetensors").read_bytes() for name in names)
    assert single == fused
    assert metrics_of(root, "fused-U-seed0")["hter"] != metrics_of(root, "single-U-seed0")["hter"]


def test_an_interrupted_study_runs_only_what_is_missing(conducted: tuple[Path, dict[str, Any]]) -> None:
    root, table = conducted
    cells = root / "out" / "cells"
    kept, lost = cells / "fedpad-U-seed0" / "metrics.json", cells / "fedpad-U-seed1" / "metrics.json"
    before = kept.stat().st_mtime_ns
    lost.unlink()
    again = conduct(root / "study.yaml", root / "out", root / "cache", Console(file=io.StringIO()))
    assert again == table
    assert kept.stat().st_mtime_ns == before
    assert lost.exists()


def test_cells_that_run_beside_each_other_give_the_same_table(
    conducted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    root, table = conducted
    beside = conduct(root / "study.yaml", tmp_path / "out", root / "cache", Console(file=io.StringIO()), workers=2)
    assert beside == table


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"seeds": []}, "seeds"),
        ({"seeds": [0, 0]}, "seeds"),
        ({"figures": ["hterr"]}, "figures"),
        ({"colour": "red"}, "colour"),
        ({"rows": {"Fused": {"trained_by": "Single"}}}, "rows.Fused.trained_by"),
    ],
)
def test_a_wrong_study_file_is_refused_with_its_place(
    grid: dict[str, Any], tmp_path: Path, change: dict[str, Any], place: str
) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**grid, **change}))
    with pytest.raises(UserError, match=place):
        read(tmp_path / "study.yaml")


def test_the_shipped_studies_and_recipes_are_valid() -> None:
    from fedvisage import recipe as recipes
    from fedvisage.methods import options
    from fedvisage.study import cells_of

    root = Path(__file__).parents[1]
    for path in [*sorted((root / "recipes/studies").glob("table*.yaml")), root / "src/fedvisage/demo/study.yaml"]:
        assert list(cells_of(read(path), path.parent, Path("out"))), path
    for path in sorted((root / "recipes/demo").glob("*.yaml")) + sorted((root / "recipes/paper").glob("*.yaml")):
        assert recipes.load(path, [], options()).title, path
