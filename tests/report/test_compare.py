"""Comparison of runs: grouping, spread over seeds, pairing, and the t interval over targets."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml
from tests.commands import output_of, refusal_of
from tests.refusals import refused
from tests.report.run_files import write_metrics
from typer.testing import CliRunner

import fedvisage as fv
from fedvisage.cli import app
from fedvisage.metrics.recorded import read_metrics
from fedvisage.report.compare import Comparison, as_values, compare, difference, lower_is_better
from fedvisage.report.compare_tables import as_text, legend, narrow, notes
from fedvisage.studies.study import value_of


def small_run(
    path: Path,
    method: str,
    target: str,
    seed: int,
    hter: float,
    digest: str | None = None,
    data: Mapping[str, object] | None = None,
    **training: object,
) -> Path:
    """Write the three files that a comparison reads; sets with the same digest are the same data."""
    path.mkdir(parents=True)
    digests = {"data.target": digest or f"digest-of-{target}", "data.sites.A": "a", "data.sites.B": "b"}
    (path / "data.json").write_text(json.dumps(digests))
    metrics = {"method": method, "sites": ["A", "B"], "target": target, "seed": seed, "hter": hter, "eer": None}
    write_metrics(path, metrics)
    recipe = {"method": {"name": method}, "data": {"target": target, **(data or {})}, "training": training}
    recipe["runtime"] = {"seed": seed}
    (path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return path


@pytest.fixture
def grid(tmp_path: Path) -> list[Path]:
    """Two methods × two targets × three seeds; targets differ far more than methods."""
    return [
        small_run(tmp_path / f"{method}{target}{seed}", method, target, seed, base + 0.01 * seed + gain)
        for method, gain in (("fedpad", 0.0), ("fused", 0.03))
        for target, base in (("M", 0.05), ("O", 0.35))
        for seed in range(3)
    ]


def test_mean_and_spread_are_over_seeds(grid: list[Path]) -> None:
    fedpad, fused = compare(grid)
    by_seed = [fmean([0.05 + 0.01 * seed, 0.35 + 0.01 * seed]) for seed in range(3)]
    assert (fedpad.label, fedpad.runs, fedpad.targets, fedpad.seeds) == ("fedpad", 6, ("M", "O"), (0, 1, 2))
    assert fedpad.figures["hter"].mean == pytest.approx(fmean(by_seed))
    assert fedpad.figures["hter"].std == pytest.approx(stdev(by_seed))
    assert "eer" not in fedpad.figures
    assert fused.figures["hter"].mean == pytest.approx(fmean(by_seed) + 0.03)


def test_differences_are_paired_so_that_targets_cancel(grid: list[Path]) -> None:
    first, second = compare(grid)
    assert first.differences == {}
    hter = second.differences["hter"]
    assert (hter.mean, hter.low, hter.high) == pytest.approx((0.03, 0.03, 0.03))
    assert (hter.targets, hter.seeds) == (2, 3)


RECORDED = {
    "hter": {"O": (33.75, 25.68), "C": (30.83, 23.24), "I": (29.17, 21.88), "M": (20.12, 16.74)},
    "auc": {"O": (78.53, 86.45), "C": (96.19, 96.54), "I": (89.91, 90.94), "M": (96.65, 98.37)},
}
"""Table III at demo size by target: HTER of Single and FedPAD, AUC of FedGPAD and FedPAD."""
T_OF_3 = 3.182446305
"""The 97.5 % quantile of the t distribution with three degrees of freedom, from a printed table."""


@pytest.mark.parametrize(("figure", "low", "high"), [("hter", 3.2, 10.0), ("auc", -8.3, 2.8)])
def test_interval_is_students_t_over_targets(figure: str, low: float, high: float) -> None:
    gaps = [row - first for row, first in RECORDED[figure].values()]
    result = difference([(target, 0, gap) for target, gap in zip("OCIM", gaps, strict=True)])
    half = T_OF_3 * stdev(gaps) / 4**0.5
    assert result is not None
    assert (result.mean, result.low, result.high) == pytest.approx(
        (fmean(gaps), fmean(gaps) - half, fmean(gaps) + half)
    )
    assert (result.low, result.high) == pytest.approx((low, high), abs=0.06), "as computed from the unrounded figures"


def test_more_seeds_of_the_same_targets_do_not_narrow_the_interval(tmp_path: Path) -> None:
    gains = {"O": 0.08, "C": 0.01, "I": -0.02}
    results = []
    for seeds in (2, 9):
        runs = [
            small_run(tmp_path / f"{seeds}{name}{target}{seed}", name, target, seed, 0.3 + 0.01 * seed + gain * other)
            for other, name in enumerate(("fedpad", "fused"))
            for target, gain in gains.items()
            for seed in range(seeds)
        ]
        results.append(compare(runs)[1].differences["hter"])
    assert (results[0].low, results[0].high) == pytest.approx((results[1].low, results[1].high))
    assert [(result.targets, result.seeds) for result in results] == [(3, 2), (3, 9)]


def test_targets_weigh_equally_for_any_number_of_seeds() -> None:
    result = difference([("O", 0, 0.1), ("C", 0, 0.2), ("C", 1, 0.3), ("C", 2, 0.4)])
    assert result is not None
    assert result.mean == pytest.approx(0.2)
    assert (result.targets, result.seeds) == (2, 1)


@pytest.mark.parametrize(
    ("gaps", "lower", "verdict"),
    [
        ((0.02, 0.03, 0.04), False, "holds"),
        ((0.02, 0.03, 0.04), True, "holds the other way"),
        ((-0.02, -0.03, -0.04), True, "holds"),
        ((-0.02, -0.03, -0.04), False, "holds the other way"),
        ((-0.01, 0.03, 0.04), True, "not shown"),
        ((0.0, 0.0, 0.0), False, "not shown"),
    ],
)
def test_verdict_follows_from_the_interval_and_the_better_direction(
    gaps: tuple[float, ...], lower: bool, verdict: str
) -> None:
    result = difference([(str(target), 0, gap) for target, gap in enumerate(gaps)], lower_is_better=lower)
    assert result is not None
    assert result.verdict == verdict


@pytest.mark.parametrize(
    ("name", "lower"),
    [
        ("hter", True),
        ("eer", True),
        ("acer", True),
        ("bpcer", True),
        ("apcer_pooled", True),
        ("heldout.eer", True),
        ("published.hter_target_eer", True),
        ("published.tpr_bona_fide_1pct", False),
        ("auc", False),
        ("tpr_at_fpr_1pct", False),
        ("heldout.auc", False),
        ("generic.tar@1e-3", False),
        ("personal.tpir@1e-2", False),
        ("generic.ten-folds", False),
        ("generic.list", False),
        ("lfw.accuracy", False),
    ],
)
def test_low_errors_and_high_success_rates_are_better(name: str, lower: bool) -> None:
    assert lower_is_better(name) is lower


def test_parts_of_one_set_are_one_target(tmp_path: Path) -> None:
    runs = [
        small_run(tmp_path / f"{name}{kind}", name, "M", 0, 0.1 + gain, data={"target": f"M only: attacks={kind}"})
        for name, gain in (("fedpad", 0.0), ("fused", 0.05))
        for kind in ("print", "replay")
    ]
    hter = compare(runs)[1].differences["hter"]
    assert hter.mean == pytest.approx(0.05)
    assert (hter.targets, hter.low) == (1, None)


def small_recognition_run(path: Path, method: str, seed: int, gain: float, public: str = "p") -> Path:
    path.mkdir(parents=True)
    metrics = {
        "method": method,
        "task": "recognition",
        "sites": ["A"],
        "target": "benchmark",
        "seed": seed,
        "generic.tar@1e-3": 0.3 + gain,
        "generic.tar@1e-2": 0.5 + 0.01 * seed,
        "generic.tpir@1e-1": 0.6,
        "generic.accuracy": 0.8,
        "generic.listed_pairs.accuracy": 0.7 + gain,
        "personal.tar@1e-6": None,
        "personal.tar@1e-2": 0.4 + 2 * gain,
    }
    (path / "data.json").write_text(json.dumps({"data.target": "u", "data.sites.A": "a", "data.public": public}))
    write_metrics(path, metrics)
    (path / "recipe.yaml").write_text(yaml.safe_dump({"method": {"name": method}, "runtime": {"seed": seed}}))
    return path


def test_recognition_runs_have_a_table_per_model(tmp_path: Path) -> None:
    runs = [
        small_recognition_run(tmp_path / f"{name}{seed}", name, seed, gain)
        for name, gain in (("fedavg", 0.0), ("fedfr", 0.05))
        for seed in range(3)
    ]
    first, second = compare(runs)
    assert first.figures["generic.tar@1e-2"].mean == pytest.approx(0.51)
    assert first.figures["generic.tar@1e-2"].std == pytest.approx(0.01)
    assert second.differences["personal.tar@1e-2"].mean == pytest.approx(0.1)
    assert second.differences["generic.list"].mean == pytest.approx(0.05)
    assert "personal.tar@1e-6" not in first.figures
    metrics = read_metrics(runs[3] / "metrics.json")
    for name, figure in second.figures.items():
        if "@" in name and name != "generic.tar@1e-2":
            assert value_of(metrics, name) == pytest.approx(figure.mean), "a study's name means the same"
    text = as_text(compare(runs))
    assert "The generic model: mean ± standard deviation over seeds" in text
    assert "TAR % at FAR 1e-3 | TAR % at FAR 1e-2 | TPIR % at FPIR 1e-1 | ten folds % | listed pairs %" in text
    assert "The sites' own models: difference to fedavg" in text


def test_runs_of_different_tasks_are_refused(grid: list[Path], tmp_path: Path) -> None:
    with refused("faces", "task"):
        compare([*grid, small_recognition_run(tmp_path / "faces", "fedfr", 0, 0.0)])


def test_comparison_uses_common_pairs(grid: list[Path]) -> None:
    _, second = compare(grid[:-2])  # fused lacks target O's seeds 1 and 2
    hter = second.differences["hter"]
    assert (hter.targets, hter.seeds) == (2, 1)


def test_labels_of_one_method_state_the_differing_keys(tmp_path: Path) -> None:
    runs = [small_run(tmp_path / str(rounds), "fedpad", "M", 0, 0.1, rounds=rounds, batch=8) for rounds in (5, 10)]
    assert [row.label for row in compare(runs)] == ["fedpad · rounds 5", "fedpad · rounds 10"]


def test_label_names_a_section_that_others_lack(tmp_path: Path) -> None:
    plain = small_run(tmp_path / "plain", "fedpad", "M", 0, 0.1, clip=None)
    clipped = small_run(tmp_path / "clipped", "fedpad", "M", 0, 0.1, clip={"tokens": 2, "gradient": 1})
    labels = [row.label for row in compare([plain, clipped])]
    assert labels == ["fedpad · clip none", "fedpad · gradient 1, tokens 2"]


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    (row,) = compare([small_run(tmp_path / "a", "fedpad", "M", 0, 0.1)])
    assert row.figures["hter"].std is None


def test_compare_prints_markdown_or_json(grid: list[Path]) -> None:
    rows = compare(grid)
    text = as_text(rows)
    assert "| fused | 2 | 3 | +3.00 [+3.00, +3.00], holds the other way |" in text
    assert "95 % t interval over targets" in text
    value = json.loads(json.dumps(as_values(rows)))[1]["differences"]["hter"]
    assert (value["targets"], value["seeds"], value["verdict"]) == (2, 3, "holds the other way")
    assert "over 2 targets, 3 seeds" in next(
        table.caption for table in narrow(rows, 80) if "ifference" in table.caption
    )


def test_directory_without_metrics_is_refused(tmp_path: Path) -> None:
    with refused(tmp_path, "contains no run"):
        compare([tmp_path])
    (tmp_path / "recipe.yaml").touch()
    with refused(tmp_path, "not finished", "--resume"):
        compare([tmp_path])


def test_data_is_identified_by_its_digest(tmp_path: Path) -> None:
    """Equal names of different sets are not paired, with a note; different names of one set are paired."""
    small, large, again = (
        small_run(tmp_path / "small", "fedpad", "M", 0, 0.1, digest="one-set"),
        small_run(tmp_path / "large", "fused", "M", 0, 0.2, digest="two-set"),
        small_run(tmp_path / "again", "single", "N", 0, 0.3, digest="one-set"),
    )
    first, other, same = compare([small, large, again])
    assert other.differences == {}
    assert (first.targets, other.targets) == (("M (one-se)",), ("M (two-se)",))
    (note,) = other.notes
    assert "not paired" in note
    assert same.differences["hter"].mean == pytest.approx(0.2)
    assert note in as_text([first, other, same])


@pytest.mark.parametrize("data", [{"target": "M only: attacks=print"}, {"target_split": "test"}])
def test_parts_of_one_set_are_different_data(tmp_path: Path, data: Mapping[str, object]) -> None:
    whole = small_run(tmp_path / "fedpad", "fedpad", "M", 0, 0.1)
    part = small_run(tmp_path / "fused", "fused", "M", 0, 0.1, data=data)
    assert compare([whole, part])[1].differences == {}


def test_different_impostors_separate_only_personal_figures(tmp_path: Path) -> None:
    first = small_recognition_run(tmp_path / "a", "fedavg", 0, 0.0)
    _, other = compare([first, small_recognition_run(tmp_path / "b", "fedfr", 0, 0.1, public="q")])
    assert other.differences["generic.tar@1e-3"].mean == pytest.approx(0.1)
    assert not [name for name in other.differences if name.startswith("personal.")]


def test_run_with_unknown_data_is_not_paired(tmp_path: Path) -> None:
    first, other = (small_run(tmp_path / name, name, "M", 0, 0.1) for name in ("fedpad", "fused"))
    (other / "data.json").unlink()
    rows = compare([first, other])
    assert rows[1].differences == {}
    (note,) = notes(rows)
    assert str(other) in note
    assert "data.json" in note


def test_duplicate_run_counts_once(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "fedpad", "M", 0, 0.1)
    copy = small_run(tmp_path / "copy", "fedpad", "M", 0, 0.1)
    (tmp_path / "link").symlink_to(run)
    rows = compare([run, tmp_path / "link", copy])
    assert rows[0].runs == 1
    twice, alike = notes(rows)
    assert "link" in twice
    assert "once" in twice
    assert "copy" in alike
    (copy / "scores.csv").write_text("other scores")
    assert compare([run, copy])[0].runs == 2


METHODS = ("fedpad", "fused")


def compare_on_one_target(folder: Path, seeds: int) -> list[Comparison]:
    """Compare two methods whose HTER differs by 8, 10, 12, … points."""
    return compare(
        [
            small_run(folder / f"{name}{seed}", name, "M", seed, hter + (name == "fused") * 0.02 * seed)
            for name, hter in (("fedpad", 0.1), ("fused", 0.18))
            for seed in range(seeds)
        ]
    )


def test_three_seeds_of_one_target_give_an_interval_over_seeds_without_a_verdict(tmp_path: Path) -> None:
    rows = compare_on_one_target(tmp_path, 3)
    hter = rows[1].differences["hter"]
    half = 4.302653 * 0.02 / 3**0.5  # the quantile of Student's t with two degrees of freedom, from a table
    assert (hter.mean, hter.low, hter.high) == pytest.approx((0.1, 0.1 - half, 0.1 + half), abs=1e-7)
    assert (hter.verdict, hter.over, hter.targets, hter.seeds) == (None, "seeds", 1, 3)
    assert "| fused | 1 | 3 | +10.00 [+5.03, +14.97] over seeds |" in as_text(rows)
    assert "not other targets" in as_text(rows)
    (shown,) = (table for table in narrow(rows, 80) if table.caption.startswith("Difference"))
    assert shown.rows == (("HTER %", "+10.00", "[+5.03, +14.97] over seeds", "–"),)


def test_two_seeds_of_one_target_give_neither_interval_nor_verdict(tmp_path: Path) -> None:
    rows = compare_on_one_target(tmp_path, 2)
    hter = rows[1].differences["hter"]
    assert hter.mean == pytest.approx(0.09)
    assert (hter.low, hter.high, hter.verdict) == (None, None, None)
    assert "| fused | 1 | 2 | +9.00 |" in as_text(rows)
    assert "fewer than 3 seeds" in as_text(rows)
    (shown,) = (table for table in narrow(rows, 80) if table.caption.startswith("Difference"))
    assert shown.rows == (("HTER %", "+9.00", "–", "–"),)
    assert "one target" in shown.note


def test_comparison_is_written_as_csv_latex_and_python_table(tmp_path: Path) -> None:
    rows = compare_on_one_target(tmp_path, 3)
    result = fv.compare(sorted(tmp_path.iterdir()))
    head, fedpad, fused = csv.reader(io.StringIO(result.csv()))
    assert head[:7] == ["method", "runs", "targets", "seeds", "HTER %", "HTER %, standard deviation", "EER %"]
    assert fedpad[:7] == ["fedpad", "3", "M", "0, 1, 2", "10.00", "0.00", ""]
    assert fused[:7] == ["fused", "3", "M", "0, 1, 2", "20.00", "2.00", ""]
    assert r"fused & 3 & M & 0, 1, 2 & 20.00 $\pm$ 2.00 & --" in result.latex()
    for form, text in (("--csv", result.csv()), ("--latex", result.latex())):
        assert output_of("compare", *sorted(tmp_path.iterdir()), form) == text
    assert refusal_of("compare", tmp_path, "--csv", "--json").place == "--markdown"
    figures = result.figures if isinstance(result.figures, list) else result.figures.to_dict("records")
    assert [(row["method"], row["figure"], row["runs"]) for row in figures] == [(name, "hter", 3) for name in METHODS]
    low = rows[1].differences["hter"].low
    assert (figures[1]["mean"], figures[1]["difference"], figures[1]["low"]) == pytest.approx((0.2, 0.1, low))
    assert figures[1]["over"] == "seeds"


def test_runs_of_one_pair_are_averaged_before_they_are_paired(tmp_path: Path) -> None:
    runs = [
        small_run(tmp_path / f"{name}{hter}", name, "M", 0, hter)
        for name, hter in (("fedpad", 0.1), ("fused", 0.2), ("fused", 0.4))
    ]
    assert compare(runs)[1].differences["hter"].mean == pytest.approx(0.3 - 0.1)


def runs_at_sites(folder: Path, *names: str, entries: Mapping[str, str] | None = None, seed: int = 0) -> Path:
    """Write a run of fedpad at these sites, whose HTER is a tenth of their number."""
    run = small_run(folder, "fedpad", "M", seed, len(names) / 10, data={"sites": dict(entries or {})})
    digests = {"data.target": "m", **{f"data.sites.{name}": f"digest-of-{name}" for name in names}}
    (run / "data.json").write_text(json.dumps(digests))
    write_metrics(run, {**read_metrics(run / "metrics.json"), "sites": list(names)})
    return run


@pytest.mark.parametrize(
    ("trained", "labels"),
    [
        ((("A", "B"), ("A",)), ["fedpad · sites 2", "fedpad · sites 1"]),
        ((("A", "B"), ("A", "C")), ["fedpad · sites A, B", "fedpad · sites A, C"]),
    ],
)
def test_runs_of_one_seed_and_target_at_different_sites_are_not_averaged(
    tmp_path: Path, trained: tuple[tuple[str, ...], ...], labels: list[str]
) -> None:
    rows = compare([runs_at_sites(tmp_path / "".join(names), *names) for names in trained])
    assert [row.label for row in rows] == labels
    assert [row.figures["hter"].mean for row in rows] == [len(names) / 10 for names in trained]
    (note,) = notes(rows)
    assert note == f"{labels[1]} and {labels[0]} have different training data at M, so these runs are not paired"


def test_runs_on_different_parts_of_a_sites_set_are_not_averaged(tmp_path: Path) -> None:
    whole = runs_at_sites(tmp_path / "whole", "A", entries={"A": "sets/a"})
    part = runs_at_sites(tmp_path / "part", "A", entries={"A": "sets/a only: attacks=print"})
    rows = compare([whole, part])
    assert [row.runs for row in rows] == [1, 1]
    assert rows[1].differences == {}
    assert [row.label for row in rows] == ["fedpad · sites A: sets/a", "fedpad"]
    assert legend(rows) == ["fedpad: data.sites=A: sets/a only: attacks=print"]


def test_targets_in_turn_stay_one_group(tmp_path: Path) -> None:
    runs = [runs_at_sites(tmp_path / name, *({"A", "B", "M"} - {name})) for name in ("A", "B", "M")]
    for run, target in zip(runs, "ABM", strict=True):
        digests = json.loads((run / "data.json").read_text())
        (run / "data.json").write_text(json.dumps({**digests, "data.target": f"digest-of-{target}"}))
    assert [row.runs for row in compare(runs)] == [3]


def test_runs_without_a_common_seed_have_a_note(tmp_path: Path) -> None:
    runs = [small_run(tmp_path / name, name, "M", seed, 0.1) for seed, name in enumerate(METHODS)]
    rows = compare(runs)
    assert rows[1].differences == {}
    assert notes(rows) == ["fused and fedpad have no seed in common at M, so these runs are not paired"]
    result = CliRunner().invoke(app, ["compare", *map(str, runs), "--latex"])
    assert result.stderr == f"note: {notes(rows)[0]}\n"


def test_seeds_with_different_targets_have_a_note(grid: list[Path]) -> None:
    assert notes(compare(grid)) == []
    (note,) = notes(compare(grid[:-1]))
    assert note.startswith("fused: its seeds have different targets")
    assert note in output_of("compare", *grid[:-1])


def test_number_of_workers_does_not_separate_groups(tmp_path: Path) -> None:
    runs = [small_run(tmp_path / str(seed), "fedpad", "M", seed, 0.1) for seed in range(2)]
    recipe = yaml.safe_load((runs[0] / "recipe.yaml").read_text())
    (runs[0] / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "runtime": {"seed": 0, "workers": 2}}))
    assert [row.runs for row in compare(runs)] == [2]


def test_long_differences_are_in_a_legend(tmp_path: Path) -> None:
    short: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 0.1}, "rounds": 5, "batch": {"default": 8}}
    other: dict[str, Any] = {"optimizer": {"name": "adam", "lr": 0.01}, "rounds": 10, "batch": {"default": 16}}
    rows = compare(
        [
            small_run(tmp_path / name, "fedpad", "M", 0, 0.1, **training)
            for name, training in (("a", short), ("b", other))
        ]
    )
    assert [row.label for row in rows] == ["fedpad · A", "fedpad · B"]
    assert legend(rows)[1] == (
        "fedpad · B: training.batch.default=16, training.optimizer.lr=0.01, training.optimizer.name=adam,"
        " training.rounds=10"
    )
    assert legend(rows)[0] in as_text(rows)


def test_labels_have_the_title_of_the_method_and_differing_keys(tmp_path: Path) -> None:
    rows = compare(
        [
            small_run(tmp_path / name, name, "M", 0, 0.1, optimizer={"name": "adam", "lr": lr}, rounds=5)
            for name, lr in (("fedpad", 0.001), ("fedprox", 0.01))
        ]
    )
    assert [row.label for row in rows] == ["fedpad · lr 0.001", "fedprox · lr 0.01"]
    assert legend(rows) == []


@pytest.mark.parametrize("groups", [2, 9])
def test_terminal_tables_fit_its_width(tmp_path: Path, groups: int) -> None:
    """Columns as wide as their widest word with three spaces between them must fit the terminal."""
    runs = [
        small_run(tmp_path / f"{rounds}-{seed}", "fedpad", "M", seed, 0.1 + 0.01 * rounds * seed, rounds=rounds)
        for rounds in range(groups)
        for seed in range(2)
    ]
    tables = narrow(compare(runs), 80)
    shown = [title for table in tables for title in table.columns if title.startswith("fedpad · rounds ")]
    assert {f"fedpad · rounds {rounds}" for rounds in range(groups)} <= set(shown)
    for table in tables:
        lines = [table.columns, *table.rows] if table.columns[0].startswith("fedpad") else table.rows
        widths = [max(len(line[column]) for line in lines) for column in range(len(table.columns))]
        assert sum(widths) + 3 * len(widths) <= 80


def test_sparse_terabyte_scores_are_refused_unread(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "fedpad", "M", 0, 10.0)
    with (run / "scores.csv").open("wb") as file:
        file.truncate(1 << 40)
    with refused(run / "scores.csv", "8,589,934,592"):
        compare([run])
