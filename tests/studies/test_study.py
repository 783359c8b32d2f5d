"""Studies: the grid, the table, and reuse of finished cells."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.refusals import refused
from tests.toy import Sets, discard, scores_of, tree, write_study

from fedvisage.studies.conduct import run_study, shrink_for_smoke
from fedvisage.studies.grid import Cell, cells_of, groups_of
from fedvisage.studies.study import load_study

pytestmark = pytest.mark.long

PAPER = {
    "source": "A paper",
    "columns": ["auc", "eer"],
    "rows": {
        "FedPAD": {"U": [90.0, 20.0], "A": [70.0, 40.0]},
        "Single": {"U": {"A": [50.0, 51.0], "B": [60.0, 61.0], "C": [70.0, 72.0]}},
    },
    "averages": {"FedPAD": [80.0, 30.02]},
    "notes": ["It says so."],
}


@pytest.fixture(scope="module")
def grid(sets: Sets) -> dict[str, Any]:
    recipe = {key: value for key, value in tree(sets).items() if key != "data"}
    recipe["training"]["rounds"] = 1
    return {
        "title": "Toy",
        "recipe": recipe,
        "sets": {name: str(path) for name, path in sets.items()},
        "targets": ["U", "A"],
        "rows": {
            "Single": {"set": ["method.name=single"]},
            "Fused": {"set": ["method.name=fused"], "trained_by": "Single"},
            "FedPAD": {},
        },
        "seeds": [0, 1],
        "paper": [PAPER],
    }


@pytest.fixture(scope="module")
def toy_study(grid: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("study")
    return root, run_study(write_study(grid, root), root / "out", root / "cache", discard)


def metrics_of(root: Path, cell: str) -> dict[str, Any]:
    return json.loads((root / "out" / "cells" / cell / "metrics.json").read_text())  # type: ignore[no-any-return]


def test_each_target_is_left_out_of_the_sites(toy_study: tuple[Path, dict[str, Any]]) -> None:
    root, _ = toy_study
    assert metrics_of(root, "fedpad-A-seed1")["sites"] == ["B", "C", "U"]
    assert metrics_of(root, "fedpad-U-seed0")["sites"] == ["A", "B", "C"]


def test_table_holds_mean_and_deviation_over_seeds(toy_study: tuple[Path, dict[str, Any]]) -> None:
    root, table = toy_study
    values = [
        [100 * metrics_of(root, f"fedpad-{target}-seed{seed}")["eer"] for seed in (0, 1)] for target in ("U", "A")
    ]
    row = table["rows"]["FedPAD"]
    assert row["targets"]["U"]["eer"] == pytest.approx([np.mean(values[0]), np.std(values[0], ddof=1)], abs=0.006)
    over_targets = np.mean(values, axis=0)
    assert row["average"]["eer"] == pytest.approx([np.mean(over_targets), np.std(over_targets, ddof=1)], abs=0.006)


def test_smoke_test_has_one_cell_per_kind_of_row_and_its_training(grid: dict[str, Any], tmp_path: Path) -> None:
    rows = {
        **grid["rows"],
        "FedPAD, fast": {"set": ["training.optimizer.lr=0.1"]},
        "FedPAD, two sites": {"sites": ["B", "C"]},
        "Single, slow": {"set": ["method.name=single", "training.optimizer.lr=0.0001"]},
        "Fused, slow": {"set": ["method.name=fused"], "trained_by": "Single, slow"},
        "Single, slow, adapted": {"set": ["evaluation.adapt=paper"], "trained_by": "Single, slow"},
    }
    small = shrink_for_smoke(load_study(write_study({**grid, "rows": rows}, tmp_path)), rendered=False)
    assert [(cell.row, cell.target, cell.seed) for cell in cells_of(small, tmp_path)] == [
        (row, "U", 0) for row in ("Single", "Fused", "FedPAD", "Single, slow", "Single, slow, adapted")
    ]


def lines_of(root: Path) -> list[list[str]]:
    text = (root / "out" / "table.md").read_text()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_printed_figures_are_shown_and_averaged(toy_study: tuple[Path, dict[str, Any]]) -> None:
    lines = lines_of(toy_study[0])
    assert lines[0][-3:] == ["AUC", "EER (paper)", "AUC (paper)"]
    assert ["40.00", "70.00"] in [line[-2:] for line in lines if line[:3] == ["FedPAD", "B&C&U", "A"]]
    assert ["30.00", "80.00"] in [line[-2:] for line in lines if line[0] == "**FedPAD**"]
    assert "on other (real) data" in (toy_study[0] / "out" / "table.md").read_text()


def test_inconsistent_printed_average_is_footnoted(toy_study: tuple[Path, dict[str, Any]]) -> None:
    text = (toy_study[0] / "out" / "table.md").read_text()
    notes = [line for line in text.splitlines() if line.startswith("- ")]
    assert notes == [
        "- A paper, prints 30.02 as the average EER of FedPAD; its rows average 30.00, as shown above.",
        "- It says so.",
    ]


def test_model_of_each_site_has_a_line_beside_its_printed_one(toy_study: tuple[Path, dict[str, Any]]) -> None:
    root, table = toy_study
    lines = {line[1]: line for line in lines_of(root) if line[0] == "Single" and line[2] == "U"}
    assert list(lines) == ["A", "B", "C", "mean of 3"]
    assert lines["B"][-2:] == ["61.00", "60.00"]
    assert lines["mean of 3"][-2:] == ["61.33", "60.00"]
    values = [100 * metrics_of(root, f"single-U-seed{seed}")["members.B.auc"] for seed in (0, 1)]
    shown = table["rows"]["Single"]["targets"]["U"]["members"]["B"]["auc"]
    assert shown == pytest.approx([np.mean(values), np.std(values, ddof=1)], abs=0.006)


def test_row_can_quote_another_printed_name(grid: dict[str, Any], tmp_path: Path, sets: Sets) -> None:
    rows = {"Averaging": {"quotes": "FedPAD"}}
    run_study(
        write_study({**grid, "rows": rows, "seeds": [0], "targets": ["A"]}, tmp_path),
        tmp_path / "out",
        tmp_path / "cache",
        discard,
    )
    assert lines_of(tmp_path)[2][-2:] == ["40.00", "70.00"]


def test_costs_have_their_own_units_and_no_printed_column(grid: dict[str, Any], tmp_path: Path, sets: Sets) -> None:
    """Compare the bytes with the ledger."""
    small = {**grid, "rows": {"FedPAD": {}}, "seeds": [0], "targets": ["A"], "figures": ["eer", "megabytes_up"]}
    run_study(write_study(small, tmp_path), tmp_path / "out", tmp_path / "cache", discard)
    ledger = (tmp_path / "out" / "cells" / "fedpad-A-seed0" / "ledger.jsonl").read_text().splitlines()
    sent = sum(line["bytes"] for line in map(json.loads, ledger) if line["direction"] == "up")
    head, _, line = lines_of(tmp_path)
    assert head[3:] == ["EER", "MB up", "EER (paper)"]
    assert float(line[4]) == pytest.approx(sent / 1e6, abs=0.006)
    assert "costs in their own units" in (tmp_path / "out" / "table.md").read_text()


def test_own_published_and_printed_figures_have_separate_columns(
    grid: dict[str, Any], tmp_path: Path, sets: Sets
) -> None:
    """Printed figures appear only under their own rule; members also have published figures."""
    printed = {**PAPER, "columns": ["published.hter_target_eer", "auc"]}
    small = {
        **grid,
        "rows": {"FedPAD": {}, "Single": grid["rows"]["Single"]},
        "seeds": [0],
        "targets": ["U"],
        "set": ["evaluation.published=true"],
        "paper": [printed],
        "figures": ["hter", "published.hter_target_eer", "published.tpr_bona_fide_1pct"],
    }
    run_study(write_study(small, tmp_path), tmp_path / "out", tmp_path / "cache", discard)
    head, _, *lines = lines_of(tmp_path)
    assert [title.split()[0] for title in head[3:]] == ["HTER", "HTER", "bona", "HTER"]
    assert "as published" in head[4]
    assert "(paper)" in head[6]
    own = metrics_of(tmp_path, "fedpad-U-seed0")
    wanted = [own["hter"], own["published.hter_target_eer"], own["published.tpr_bona_fide_1pct"], 0.9]
    assert [float(cell) for cell in lines[0][3:]] == pytest.approx([100 * value for value in wanted], abs=0.006)
    member = metrics_of(tmp_path, "single-U-seed0")["members.B.published.hter_target_eer"]
    (of_b,) = (line for line in lines if line[:2] == ["Single", "B"])
    assert float(of_b[4]) == pytest.approx(100 * member, abs=0.006)


def test_site_can_train_on_a_part_of_the_set_of_a_target(grid: dict[str, Any], tmp_path: Path, sets: Sets) -> None:
    trains = {name: f"{path} only: frames=1" for name, path in sets.items()}
    data = cells({**grid, "trains": trains, "targets": ["A"], "rows": {"FedPAD": {}}}, tmp_path)["FedPAD"].recipe.data
    assert data.target == str(sets["A"])
    assert data.sites == {name: trains[name] for name in ("B", "C", "U")}
    for wrong, place, keyword in (
        ({"Z": "data/Z"}, "trains", "Z"),
        ({"A": "data/other only: frames=1"}, "trains.A", "data/other only: frames=1"),
    ):
        write_study({**grid, "trains": wrong}, tmp_path)
        with refused(f"study.yaml: {place}", keyword):
            load_study(tmp_path / "study.yaml")


def test_blind_table_shows_only_held_out_images_of_sites(
    toy_study: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    root, _ = toy_study
    lines: list[str] = []
    blind = run_study(
        root / "study.yaml", tmp_path / "out", root / "cache", lines.append, runs=root / "out" / "cells", blind=True
    )
    runs = [metrics_of(root, f"fedpad-U-seed{seed}") for seed in (0, 1)]
    means = [np.mean([100 * run[f"sites_heldout.{site}.auc"] for site in ("A", "B", "C")]) for run in runs]
    assert blind["figures"] == ["heldout.eer", "heldout.auc"]
    assert blind["rows"]["FedPAD"]["targets"]["U"]["heldout.auc"][0] == pytest.approx(np.mean(means), abs=0.006)
    assert not (tmp_path / "out" / "table.md").exists()
    text = (tmp_path / "out" / "blind.md").read_text() + "".join(lines)
    assert "hter" not in text.lower().replace("heldout", "")


def test_fused_row_uses_the_members_of_single(toy_study: tuple[Path, dict[str, Any]]) -> None:
    root, _ = toy_study
    cells = root / "out" / "cells"
    names = ("single-U-seed0", "fused-U-seed0")
    single, fused = ((cells / name / "model.safetensors").read_bytes() for name in names)
    assert single == fused
    members, (together,) = (list(scores_of(cells / name).values()) for name in names)
    live = np.mean([1 / (1 + np.exp(-member["logit"])) for member in members], axis=0)
    np.testing.assert_allclose(1 / (1 + np.exp(-together["logit"])), live, rtol=1e-6)


def test_targets_with_equal_sites_share_one_training(grid: dict[str, Any], tmp_path: Path) -> None:
    parts = {f"A-{kind}": f"{grid['sets']['A']} only: attacks={kind}" for kind in ("print", "replay")}
    rows = {"FedPAD": {}, "again": {"trained_by": "FedPAD", "set": ["evaluation.threshold=fixed"]}}
    study = {
        **grid,
        "sets": grid["sets"] | parts,
        "sites": ["A", "B", "C"],
        "targets": [*parts, "B"],
        "rows": rows,
        "seeds": [0],
        "paper": [],
    }
    path = write_study(study, tmp_path)
    cells = {cell.out.name: cell for cell in cells_of(load_study(path), tmp_path / "out" / "cells")}
    first = cells["fedpad-A-print-seed0"]
    assert first.trained is None
    assert cells["fedpad-B-seed0"].trained is None
    trained = [cells[name].trained for name in ("fedpad-A-replay-seed0", "again-A-print-seed0", "again-A-replay-seed0")]
    assert trained == [first.out] * 3
    assert [[cell.out.name for cell in group] for group in groups_of(list(cells.values()))] == [
        [name for name in cells if "-A-" in name],
        [name for name in cells if "-B-" in name],
    ]
    run_study(path, tmp_path / "out", tmp_path / "cache", discard)
    weights, scores = (
        {(tmp_path / "out" / "cells" / f"fedpad-A-{kind}-seed0" / file).read_bytes() for kind in ("print", "replay")}
        for file in ("model.safetensors", "scores.csv")
    )
    assert (len(weights), len(scores)) == (1, 2)


def test_interrupted_study_runs_only_missing_cells(toy_study: tuple[Path, dict[str, Any]]) -> None:
    root, table = toy_study
    cells = root / "out" / "cells"
    kept, lost = cells / "fedpad-U-seed0" / "metrics.json", cells / "fedpad-U-seed1" / "metrics.json"
    before = kept.stat().st_mtime_ns
    lost.unlink()
    again = run_study(root / "study.yaml", root / "out", root / "cache", discard)
    assert again == table
    assert kept.stat().st_mtime_ns == before
    assert lost.exists()


def test_changed_row_is_refused_by_its_key_before_a_missing_cell_runs(
    toy_study: tuple[Path, dict[str, Any]], grid: dict[str, Any], tmp_path: Path
) -> None:
    root, _ = toy_study
    single = {"set": ["method.name=single", "training.batch=3"]}
    path = write_study({**grid, "rows": {"New": {}, **grid["rows"], "Single": single}}, tmp_path)
    cells = root / "out" / "cells"
    before = sorted(map(str, cells.rglob("*")))
    batch = grid["recipe"]["training"]["batch"]
    change = f"training.batch.default was {batch}, is 3"
    with refused("single-U-seed0", change, "8 cells", "another name"):  # Fused evaluates the model of Single
        run_study(path, tmp_path / "out", root / "cache", discard, runs=cells)
    assert sorted(map(str, cells.rglob("*"))) == before


def test_parallel_cells_give_the_same_table_without_processes_per_site(
    toy_study: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    root, table = toy_study
    parallel = run_study(
        root / "study.yaml", tmp_path / "out", root / "cache", discard, workers=2, changes=["runtime.workers=2"]
    )
    assert parallel == table
    environments = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("environment.json")]
    assert environments
    assert not any("workers" in environment for environment in environments)


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_failing_cell_stops_only_the_cells_that_use_its_model(
    workers: int, grid: dict[str, Any], tmp_path: Path
) -> None:
    path = write_study({**grid, "targets": ["U"], "seeds": [0], "paper": []}, tmp_path)
    out, lines = tmp_path / "out", list[str]()
    (out / "cells").mkdir(parents=True)
    blocked = out / "cells" / "single-U-seed0"
    blocked.touch()
    with refused("single-U-seed0", "2 of 3 cells", "Single target U seed 0", "is a file"):
        run_study(path, out, tmp_path / "cache", lines.append, workers=workers)
    assert metrics_of(tmp_path, "fedpad-U-seed0")["target"] == "U"
    assert not (out / "table.md").exists()
    (line,) = (line for line in lines if line.startswith("failed: Fused"))
    assert "Single target U seed 0" in line
    blocked.unlink()
    table = run_study(path, out, tmp_path / "cache", discard, workers=workers)
    assert set(table["rows"]) == {"Single", "Fused", "FedPAD"}


@pytest.mark.parametrize(
    ("change", "place", "keyword"),
    [
        ({"seeds": []}, "seeds", "1"),
        ({"seeds": [0, 0]}, "seeds", "repeated"),
        ({"figures": ["hterr"]}, "figures.", "hterr"),
        ({"colour": "red"}, "colour", "unknown"),
        ({"rows": {"Fused": {"trained_by": "Single"}}}, "rows.Fused.trained_by", "Single"),
        ({"rows": {"A row": {"recipe": "other"}}}, "rows.A row.recipe", "other"),
        ({"rows": {"A row": {"sites": ["Z"]}}}, "rows.A row.sites", "Z"),
        ({"rows": {"A row": {}, "A-Row": {}}}, "rows.A-Row", "A row"),
        ({"targets": ["Z"]}, "targets", "Z"),
        ({"paper": [{**PAPER, "columns": ["eer"]}]}, "paper.0", "eer"),
    ],
)
def test_invalid_study_file_is_refused(
    grid: dict[str, Any], tmp_path: Path, change: dict[str, Any], place: str, keyword: str
) -> None:
    write_study({**grid, **change}, tmp_path)
    with refused(f"study.yaml: {place}", keyword):
        load_study(tmp_path / "study.yaml")


def cells(grid: Mapping[str, Any], folder: Path, **files: Mapping[str, Any]) -> dict[str, Cell]:
    """Return the cells of a study by row, at its first target and seed."""
    for name, content in {"study": grid, **files}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dict(content), sort_keys=False))
    by_name = cells_of(load_study(folder / "study.yaml"), folder / "cells")
    return {cell.row: cell for cell in reversed(by_name)}


def test_row_can_have_public_people_outside_the_sites(tmp_path: Path) -> None:
    sets = {name: f"data/{name}" for name in ("A", "B", "first", "other", "benchmark")}
    recipe = {"method": {"name": "conventional"}, "training": {"rounds": 1}, "input": {"colour": "rgb"}}
    study = {
        "title": "Toy",
        "recipe": recipe,
        "sets": sets,
        "public": "first",
        "targets": ["benchmark"],
        "seeds": [0],
        "rows": {"theirs": {}, "own": {"public": "other"}, "same": {"trained_by": "own"}},
    }
    cells = {cell.row: cell.recipe.data for cell in cells_of(load_study(write_study(study, tmp_path)), tmp_path)}
    assert {name: data.public for name, data in cells.items()} == {
        "theirs": "data/first",
        "own": "data/other",
        "same": "data/other",
    }
    assert all(sorted(data.sites) == ["A", "B"] for data in cells.values())
    study["rows"]["own"]["public"] = "nobody"  # type: ignore[index]
    write_study(study, tmp_path)
    with refused("study.yaml: rows.own.public", "'nobody'"):
        load_study(tmp_path / "study.yaml")


def test_row_can_name_its_sites_and_another_recipe(grid: dict[str, Any], tmp_path: Path) -> None:
    other = {**grid["recipe"], "training": {**grid["recipe"]["training"], "rounds": 7}}
    rows = {"Two sites": {"sites": ["A", "C"]}, "Longer": {"recipe": "longer"}}
    by_row = cells({**grid, "recipes": {"longer": "longer.yaml"}, "rows": rows}, tmp_path, longer=other)
    assert list(by_row["Two sites"].recipe.data.sites) == ["A", "C"]
    assert list(by_row["Longer"].recipe.data.sites) == ["A", "B", "C"]
    assert (by_row["Two sites"].recipe.training.rounds, by_row["Longer"].recipe.training.rounds) == (1, 7)


def test_row_of_a_trained_model_inherits_its_settings(grid: dict[str, Any], tmp_path: Path) -> None:
    rows = {
        "Trained": {"sites": ["A", "B"], "set": ["training.rounds=2"]},
        "Judged": {"trained_by": "Trained", "set": ["evaluation.threshold=fixed"]},
    }
    by_row = cells({**grid, "rows": rows}, tmp_path)
    assert by_row["Judged"].trained == by_row["Trained"].out
    assert by_row["Judged"].recipe.training == by_row["Trained"].recipe.training
    assert by_row["Judged"].recipe.data == by_row["Trained"].recipe.data
    assert by_row["Judged"].recipe.evaluation.threshold == "fixed"


def test_study_inherits_missing_sections(grid: dict[str, Any], tmp_path: Path) -> None:
    first = {**grid, "targets": ["B"], "set": ["training.rounds=3"]}
    second = {"set": ["training.rounds=4"], "sites": ["A", "B"]}
    (tmp_path / "sizes").mkdir()
    (tmp_path / "sizes" / "recipe.yaml").write_text(yaml.safe_dump(grid["recipe"]))
    (tmp_path / "sizes" / "third.yaml").write_text("recipe: recipe.yaml\n")
    own = {"title": "Own", "like": ["first.yaml", "second.yaml", "sizes/third.yaml"]}
    cell = cells(own, tmp_path, first=first, second=second)["FedPAD"]
    assert (cell.target, list(cell.recipe.data.sites), cell.recipe.training.rounds) == ("B", ["A"], 4)


@pytest.mark.parametrize("like", [None, 7, {"a": 1}, [["first.yaml"]], [7], True, 1.5])
def test_like_is_a_name_or_a_list_of_names(like: Any, grid: dict[str, Any], tmp_path: Path) -> None:
    write_study({**grid, "like": like}, tmp_path)
    with refused("study.yaml: like", "name"):
        load_study(tmp_path / "study.yaml")


def test_circular_inheritance_is_refused(grid: dict[str, Any], tmp_path: Path) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**grid, "like": f"{other}.yaml"}))
    with refused("two.yaml: like", "one.yaml"):
        load_study(tmp_path / "one.yaml")


def test_changes_of_the_command_override_the_rows(grid: dict[str, Any], tmp_path: Path) -> None:
    grid = {**grid, "rows": {"FedPAD": {"set": ["training.rounds=9", "training.batch=6"]}}, "seeds": [0]}
    write_study({**grid, "targets": ["U"]}, tmp_path)
    out = tmp_path / "out"
    run_study(tmp_path / "study.yaml", out, tmp_path / "cache", discard, changes=["training.rounds=1"])
    recipe = yaml.safe_load((out / "cells" / "fedpad-U-seed0" / "recipe.yaml").read_text())
    assert recipe["training"]["rounds"] == 1
    assert recipe["training"]["batch"]["default"] == 6


def test_studies_with_shared_runs_train_equal_rows_once(toy_study: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    root, table = toy_study
    runs = root / "out" / "cells"
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("metrics.json")}
    assert run_study(root / "study.yaml", tmp_path / "again", root / "cache", discard, runs=runs) == table
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("metrics.json")} == before


def test_missing_set_is_refused_before_the_first_cell(grid: dict[str, Any], tmp_path: Path) -> None:
    *_, last = grid["sets"]
    wrong = {**grid, "sets": {**grid["sets"], last: "synth: NoSuch"}}
    write_study(wrong, tmp_path)
    with refused("Single, target U: recipe.data.target", "OULU-NPU"):
        run_study(tmp_path / "study.yaml", tmp_path / "out", tmp_path / "cache", discard)
    assert not (tmp_path / "out").exists()
