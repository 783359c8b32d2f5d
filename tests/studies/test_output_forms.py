"""The table of a study as CSV, LaTeX and a page, and drawings of its rows."""

import csv
import html
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from tests.toy import Sets, discard, tree, write_study
from typer.testing import CliRunner

from fedvisage.cli import app
from fedvisage.report.tables import as_csv, as_latex
from fedvisage.studies.conduct import run_study
from fedvisage.studies.grid import cells_of
from fedvisage.studies.page import curves_over_rows, differences, rocs, rows_compared
from fedvisage.studies.study import Study, load_study
from fedvisage.studies.table import as_table, markdown, notes_of, rows_of, summarise

pytestmark = pytest.mark.long

TEXT = """# A title

Percent, one seed.

| method | sites | target | HTER | HTER (paper) |
|---|---|---|---|---|
| Fed_A & B, ε 8 | A&B | U | 1.50 ± 0.20 | 2.00 |
| **Fed_A & B, ε 8** |  | **mean** | 3.00 ± 0.10 | – |

Paper: A paper, measured on other (real) data.
- A note.
"""


def test_csv_has_one_number_per_measured_cell() -> None:
    head, first, mean = csv.reader(io.StringIO(as_csv(as_table(TEXT))))
    assert head == ["method", "sites", "target", "HTER", "HTER, standard deviation", "HTER (paper)"]
    assert first == ["Fed_A & B, ε 8", "A&B", "U", "1.50", "0.20", "2.00"]
    assert mean == ["Fed_A & B, ε 8", "", "mean", "3.00", "0.10", ""]


def test_latex_declares_its_columns_and_escapes_text() -> None:
    lines = as_latex(as_table(TEXT)).splitlines()
    assert lines[0] == r"\begin{tabular}{lllrr}"
    assert lines[-1] == r"\end{tabular}"
    rows = [line for line in lines if line.endswith(r"\\")]
    assert len(rows) == 3
    assert all(len(re.findall(r"(?<!\\)&", row)) == 4 for row in rows)
    assert not re.search(r"(?<!\\)[_%#]", "".join(rows))
    assert r"1.50 $\pm$ 0.20" in rows[1]


def test_latex_notes_follow_the_table() -> None:
    assert notes_of(TEXT) == ["Paper: A paper, measured on other (real) data.", "A note."]
    assert as_table(TEXT).rows[0][0] == "Fed_A & B, ε 8"


def test_names_with_a_pipe_stay_in_their_cell(sets: Sets, tmp_path: Path) -> None:
    """A title of several lines does not move the table, either."""
    recipe = {key: value for key, value in tree(sets).items() if key != "data"}
    study: dict[str, Any] = {"title": "A\ntitle", "recipe": recipe}
    study["sets"] = {name: str(path) for name, path in sets.items()}
    study |= {"targets": ["U"], "seeds": [0], "figures": ["hter"], "rows": {"p(x|y) < 1": {}}}
    loaded = load_study(write_study(study, tmp_path))
    result = {"row": "p(x|y) < 1", "target": "U", "seed": 0, "sites": ["A", "B"], "members": {}, "hter": 0.25}
    text = markdown(loaded, summarise(loaded, [result]))
    assert text.splitlines()[:3] == ["# A title", "", "Percent, one seed."]
    assert as_table(text).rows == (("p(x|y) < 1", "A&B", "U", "25.00"),)
    assert r"p(x\textbar{}y) \textless{} 1 & A\&B & U & 25.00 \\" in as_latex(as_table(text))


@pytest.fixture(scope="module")
def output(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the output of a study whose rows set one number and whose title contains HTML."""
    root = tmp_path_factory.mktemp("forms")
    recipe: dict[str, Any] = {key: value for key, value in tree(sets).items() if key != "data"}
    recipe["training"] |= {"rounds": 2, "local": {"batches": 1}}
    recipe["evaluation"]["snapshots"] = 1
    study = {
        "title": "<b>Toy</b>",
        "recipe": recipe,
        "sets": {name: str(path) for name, path in sets.items()},
        "targets": ["U"],
        "seeds": [0, 1],
        "figures": ["hter", "auc"],
        "rows": {f"rate {rate}": {"set": [f"training.optimizer.lr={rate}"]} for rate in (0.001, 0.01, 0.1)},
    }
    run_study(write_study(study, root), root / "out", root / "cache", discard)
    return root / "out"


def test_all_forms_are_written_with_the_same_figures(output: Path) -> None:
    text = (output / "table.md").read_text()
    assert (output / "table.csv").read_text() == as_csv(as_table(text))
    assert (output / "table.tex").read_text() == as_latex(as_table(text))
    page = html.unescape((output / "study.html").read_text())
    for row in rows_of(text):
        assert all(cell in page for cell in row)


def test_page_is_self_contained_and_links_its_runs(output: Path) -> None:
    page = (output / "study.html").read_text()
    assert "<b>Toy" not in page
    assert not re.search(r"<script|src=|@import|url\(http", page)
    links = re.findall(r'href="([^"#]+)"', page)
    assert len(links) == 6
    assert all((output / link).exists() for link in links)


def test_page_draws_a_panel_of_methods_and_a_curve_over_the_changed_key(output: Path) -> None:
    page = (output / "study.html").read_text()
    drawings = re.findall(r"<figure><h3>([^<]+)</h3>.*?</figure>", page, flags=re.DOTALL)
    course = "AUC at target U, round by round"
    assert drawings == [
        "HTER by the value that each row sets",
        "AUC by the value that each row sets",
        course,
        "ROC at target U",
    ]
    panel = page[page.index("ROC at target U") :]
    assert all(
        f"rate {rate}" in page[page.index(course) : page.index("ROC at target U")] for rate in (0.001, 0.01, 0.1)
    )
    assert all(f"rate {rate}" in panel for rate in (0.001, 0.01, 0.1))
    assert "rate …" in page


def test_panel_counts_the_rows_that_it_does_not_draw(output: Path) -> None:
    study = load_study(output.parent / "study.yaml")
    first = [cell for cell in cells_of(study, output / "cells") if cell.seed == study.seeds[0]]
    for count, note in ((8, ""), (9, " Drawn: the first 8 of 9 rows.")):
        cells = [replace(first[number % len(first)], row=f"row {number}") for number in range(count)]
        ((_, explanation, drawing),) = rocs(study, cells)
        assert explanation.endswith(f"hollow points: at the EER.{note}")
        assert "row 7" in drawing
        assert "row 8" not in drawing


def test_curve_shows_the_spread_over_seeds(output: Path) -> None:
    study, table = load_study(output.parent / "study.yaml"), json.loads((output / "table.json").read_text())
    for seeds, caption in (
        (study.seeds, "Mean over targets, with one standard deviation over seeds."),
        ([0], "Mean over targets."),
    ):
        drawings = curves_over_rows(study.model_copy(update={"seeds": seeds}), table)
        assert [shown_caption for _, shown_caption, _ in drawings] == [caption, caption]


def make_table(study: Study, rows: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return a table with the AUC of each row at each target."""
    return {
        "rows": {
            row: {
                "targets": {target: {"auc": [value, 0.5]} for target, value in zip(study.targets, values, strict=True)},
                "average": {"auc": [sum(values) / len(values), 0.25]},
            }
            for row, values in rows.items()
        }
    }


def test_rows_without_a_number_have_a_point_per_target(output: Path) -> None:
    """Read the places of the points from the drawing, whose axis is linear."""
    names = ("FedPAD", "FedGPAD", "rate 1", "rate 2", "rate 3")
    toy = load_study(output.parent / "study.yaml")
    study = toy.model_copy(update={"rows": dict.fromkeys(names, next(iter(toy.rows.values()))), "targets": ["O", "C"]})
    values = {name: (90.0 - number, 60.0 + number) for number, name in enumerate(names)}
    drawings = rows_compared(study, make_table(study, values))
    assert [title for title, _, _ in drawings] == ["AUC of each row"], "HTER was not measured"
    ((_, caption, drawing),) = drawings
    assert caption == "Each target, the mean and one standard deviation over seeds."
    assert all(name in drawing for name in ("FedPAD", "FedGPAD", "a target", "mean", "AUC"))
    assert "rate" not in drawing, "these are points of a curve"
    assert drawings == rows_compared(study, make_table(study, values)), "twice the same bytes"
    groups = re.findall(r'<g id="line2d_\d+">(.*?)</g>\s*</g>', drawing, flags=re.DOTALL)
    points = [[float(x) for x in re.findall(r'<use [^>]*x="([\d.]+)"', group)] for group in groups]
    two_targets = [sorted(xs) for xs in points if len(xs) == 2]
    assert two_targets
    (low, high), (low_too, high_too) = two_targets[:2]
    scale = (high - low) / 30
    assert low_too - low == pytest.approx(scale, rel=1e-3)
    assert high - high_too == pytest.approx(scale, rel=1e-3)


def test_single_row_of_a_method_is_a_point_beside_curves(output: Path) -> None:
    """FedFR's Figure 4 shows its first model in this way; read the places of the points from the drawing."""
    toy = load_study(output.parent / "study.yaml")
    values = {"Start, 1": 20.0, "FedAvg, 1": 30.0, "FedAvg, 10": 40.0, "FedAvg, 40": 50.0, "two of 3": 1.0}
    study = toy.model_copy(update={"rows": dict.fromkeys(values, next(iter(toy.rows.values())))})
    table = make_table(study, {row: (value,) for row, value in values.items()})
    ((_, _, drawing),) = curves_over_rows(study, table)
    assert all(f">{name}</text>" in drawing for name in ("Start", "FedAvg", "number in the row name"))
    groups = re.findall(r'<g id="line2d_\d+">(.*?)</g>\s*</g>', drawing, flags=re.DOTALL)
    pairs = [re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', group) for group in groups]
    points = [[(float(x), float(y)) for x, y in series] for series in pairs]
    curve = next(series for series in points if len(series) == 3)
    assert any(len(series) == 1 and series[0][0] == curve[0][0] and series[0][1] > curve[0][1] for series in points)
    assert rows_compared(study, table) == [], "the row that is left has nothing to stand beside"


def test_single_row_has_no_drawing(output: Path) -> None:
    toy = load_study(output.parent / "study.yaml")
    study = toy.model_copy(update={"rows": {"FedPAD": next(iter(toy.rows.values()))}})
    assert rows_compared(study, make_table(study, {"FedPAD": (90.0,)})) == []


def test_differences_are_paired_with_the_first_row(output: Path) -> None:
    page = (output / "study.html").read_text()
    section = page[page.index("<h2>Differences") : page.index("<h2>Figures")]
    assert "Difference to rate 0.001" in section
    assert len(re.findall(r"<tr><td", section)) == 2
    assert "one target" in section, "the study has one, so its two seeds give no interval"
    assert "t interval over targets" not in section
    shown = (output / "differences.md").read_text()
    assert "one target" in shown
    assert [line.split(" | ")[0] for line in shown.splitlines() if " 2 | " in line] == ["| rate 0.01", "| rate 0.1"]


def test_command_prints_table_and_differences(output: Path) -> None:
    words = ["study", str(output.parent / "study.yaml"), "--out", str(output), "--quiet"]
    ended = CliRunner().invoke(app, [*words, "--cache", str(output.parent / "cache")])
    assert ended.exit_code == 0, ended.output
    assert "| method | sites | target |" in ended.stdout
    assert "**Difference to rate 0.001**" in ended.stdout


def test_differences_are_tested_over_targets_after_averaging_seeds(output: Path) -> None:
    study = load_study(output.parent / "study.yaml").model_copy(
        update={"targets": ["O", "C", "I"], "rows": dict.fromkeys(("first", "other")), "figures": ["hter", "seconds"]}
    )
    gains = {"O": (-0.04, -0.02), "C": (-0.05, -0.05), "I": (-0.01, -0.03)}  # by seed; means -0.03, -0.05, -0.02
    results = [
        {"row": row, "target": target, "seed": seed, "hter": 0.2 + (gain if row == "other" else 0), "seconds": 9.0}
        for row in study.rows
        for target, both in gains.items()
        for seed, gain in enumerate(both)
    ]
    (line,) = differences(study, results).rows  # type: ignore[union-attr]
    half = 4.302652730 * stdev([3, 5, 2]) / 3**0.5  # the quantile with two degrees of freedom, from a printed table
    assert line == (
        "other",
        "3",
        "2",
        f"-3.33 [{-10 / 3 - half:+.2f}, {-10 / 3 + half:+.2f}], not shown",
        "+0.00 [+0.00, +0.00], not shown",
    )
    faster = [{**result, "seconds": 5.0 if result["row"] == "other" else 9.0} for result in results]
    assert differences(study, faster).rows[0][-1].endswith("holds"), "what costs less is better"  # type: ignore[union-attr]


def test_held_out_figures_have_no_interval(output: Path) -> None:
    study = load_study(output.parent / "study.yaml").model_copy(
        update={"targets": ["O", "C"], "rows": dict.fromkeys(("first", "other")), "figures": ["hter", "heldout.eer"]}
    )
    results = [
        {"row": row, "target": target, "seed": 0, "hter": 0.1, "heldout.eer": 0.1 * (row == "first")}
        for row in study.rows
        for target in study.targets
    ]
    shown = differences(study, results)
    assert shown is not None
    assert shown.rows == (("other", "1–2", "1", "+0.00 [+0.00, +0.00], not shown", "-10.00"),)
    assert "the same sites train for several targets" in shown.note


def test_study_of_recognition_has_all_forms(sets: Sets, tmp_path: Path) -> None:
    recipe = tree(sets, "fedavg", training__rounds=1, training__local={"batches": 1})
    people = recipe.pop("data")
    study = {
        "title": "Toy",
        "recipe": recipe,
        "sets": {**people["sites"], "public": people["public"], "U": people["target"]},
        "public": "public",
        "targets": ["U"],
        "seeds": [0],
        "figures": ["generic.tar@1e-1"],
        "rows": {"FedAvg": {}, "again": {"trained_by": "FedAvg"}},
    }
    run_study(write_study(study, tmp_path), tmp_path / "out", tmp_path / "cache", discard)
    assert all((tmp_path / "out" / name).exists() for name in ("table.csv", "table.tex"))
    page = (tmp_path / "out" / "study.html").read_text()
    assert "Difference to FedAvg" in page
    assert "of each row</h3>" in page
    assert "one target" in page, "one benchmark has no interval"
    panel = page[page.index("ROC at target U") :]
    assert all(row in panel for row in ("FedAvg", "again", "TAR"))
