"""Further benchmarks of a study: evaluation of every cell, and columns of the table."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.listed import write_listed, write_templates
from tests.refusals import refused
from tests.toy import Sets, discard, tree, write_study

from fedvisage.metrics.recorded import Metrics
from fedvisage.studies.conduct import run_study, shrink_for_smoke
from fedvisage.studies.study import benchmark_of, heading, load_study, value_of

PAPER = {"source": "A paper", "columns": ["pairs.south.accuracy"], "rows": {"FedAvg": {"U": [91.5]}}}


@pytest.fixture(scope="module")
def study(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("benchmarks")
    whole = tree(sets, "fedavg", training__rounds=1, training__pretrain=None, evaluation__every=0)
    people = {name: str(sets[name].with_name(f"people-{name}")) for name in ("A", "B", "U")}
    return {
        "title": "Toy",
        "recipe": {key: value for key, value in whole.items() if key != "data"},
        "sets": people,
        "targets": ["U"],
        "benchmarks": {"pairs": str(write_listed(root)), "ijb": str(write_templates(root)), "plain": people["U"]},
        "rows": {"FedAvg": {}},
        "seeds": [0],
        "figures": [
            "generic.tar@1e-1",
            "pairs.south.accuracy",
            "pairs.north.accuracy",
            "ijb.tar@1e-1",
            "ijb.conservative.tar@1e-1",
            "ijb.tpir@1e-1",
            "ijb.rank@1",
            "plain.tar@1e-1",
        ],
        "paper": [PAPER],
        "beside": {"pairs.north.accuracy": "pairs.south.accuracy"},
    }


@pytest.mark.long
def test_benchmark_figures_are_columns_beside_the_targets(study: dict[str, Any], tmp_path: Path) -> None:
    table = run_study(write_study(study, tmp_path), tmp_path / "out", tmp_path / "cache", discard)
    shown = {
        name: mean for name, (mean, _) in table["rows"]["FedAvg"]["targets"]["U"].items() if name in study["figures"]
    }
    metrics = json.loads((tmp_path / "out" / "cells" / "fedavg-U-seed0" / "metrics.json").read_text())
    recorded = {
        "pairs.south.accuracy": "pairs.lists.south.accuracy",
        "pairs.north.accuracy": "pairs.lists.north.accuracy",
        "ijb.tar@1e-1": "ijb.readings.published.tar@1e-1",
        "ijb.conservative.tar@1e-1": "ijb.readings.conservative.tar@1e-1",
        "ijb.tpir@1e-1": "ijb.readings.published.tpir@1e-1",
        "ijb.rank@1": "ijb.readings.published.rank@1",
        "plain.tar@1e-1": "plain.generic.tar@1e-1",
    }
    values = {figure: metrics.get(f"benchmarks.{name}") for figure, name in recorded.items()}
    measured = {figure: round(100 * value, 2) for figure, value in values.items() if value is not None}
    assert len(measured) >= 5
    assert shown["plain.tar@1e-1"] == shown.pop("generic.tar@1e-1"), "the same set, judged as a target's"
    assert shown == measured
    head, line = (tmp_path / "out" / "table.md").read_text().splitlines()[4:7:2]
    titles = [cell.strip() for cell in head.split("|")]
    assert titles.count("pairs south accuracy (paper)") == 2, "one of them beside a figure of another name"
    assert line.split("|")[titles.index("pairs south accuracy (paper)")].strip() == "91.50"


def test_benchmark_of_a_group_uses_the_model_of_its_site() -> None:
    own, other = (f"benchmarks.rfw.members.{site}.lists.south.accuracy" for site in ("South", "North"))
    metrics = Metrics({"benchmarks.rfw.lists.south.accuracy": 0.7, own: 0.9, other: 0.5})
    assert value_of(metrics, "rfw.south.accuracy") == 0.9
    metrics.pop(own)
    assert value_of(metrics, "rfw.south.accuracy") == 0.7


@pytest.mark.parametrize("figure", ["rfw.east.accuracy", "rfw.accuracy", "lfw.accuracy", "rfw.south.tar@1e-9"])
def test_unmeasured_figure_is_nan(figure: str) -> None:
    assert value_of(Metrics({"benchmarks.rfw.lists.south.accuracy": 0.7}), figure) is None


def test_names_of_figures_state_their_benchmark() -> None:
    owners = {
        "generic.tar@1e-3": None,
        "personal.local.tar@1e-3": None,
        "group.African.accuracy": None,
        "seconds": None,
        "lfw.accuracy": "lfw",
        "rfw.african.accuracy": "rfw",
        "ijb-c.tpir@1e-2": "ijb-c",
        "ijb-c.conservative.rank@10": "ijb-c",
    }
    assert {figure: benchmark_of(figure) for figure in owners} == owners


@pytest.mark.parametrize(
    ("change", "place", "keyword"),
    [
        ({"figures": ["ijbc.tar@1e-1"]}, "study.yaml: figures", "ijbc"),
        ({"figures": ["generc.tar@1e-1"]}, "study.yaml: figures", "generc"),
        ({"figures": ["ijb.far@1e-1"]}, "study.yaml: figures.", "ijb.far@1e-1"),
        ({"benchmarks": {"generic": "sets/x"}}, "study.yaml: benchmarks", "'generic'"),
        ({"benchmarks": {"a b": "sets/x"}}, "study.yaml: benchmarks", "'a b'"),
    ],
)
def test_unknown_figures_and_names_are_refused(
    study: dict[str, Any], change: dict[str, Any], place: str, keyword: str, tmp_path: Path
) -> None:
    with refused(place, keyword):
        load_study(write_study({**study, **change}, tmp_path))


def test_benchmarks_at_smoke_size_are_rendered_people(study: dict[str, Any], tmp_path: Path) -> None:
    tiny = shrink_for_smoke(
        load_study(write_study({**study, "public": "B", "sets": {**study["sets"], "C": "data/C"}}, tmp_path))
    )
    assert {*tiny.benchmarks} == {*study["benchmarks"]}
    assert all(entry.startswith("synth: people ") for entry in tiny.benchmarks.values())


@pytest.mark.parametrize(
    ("figure", "above"),
    [
        ("hter", "HTER"),
        ("heldout.eer", "held-out EER"),
        ("personal.local.tar@1e-3", "personal local TAR@1e-3"),
        ("group.African.accuracy", "group African accuracy"),
        ("ijb-c.rank@1", "ijb-c rank@1"),
        ("megabytes_up", "MB up"),
    ],
)
def test_column_titles_use_words_and_standard_abbreviations(figure: str, above: str) -> None:
    assert heading(figure) == above
