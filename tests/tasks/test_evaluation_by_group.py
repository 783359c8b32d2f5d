"""Evaluation by the groups of a column: `evaluate --by` for runs and exports of both tasks, and its report."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.refusals import Command, check_output, refused
from tests.toy import copy_set, make_people, make_set

import fedvisage as fv
from fedvisage.data.prepared import PreparedSet
from fedvisage.metrics.groups import Groups
from fedvisage.metrics.scores import read_scores
from fedvisage.runs.evaluate import evaluate
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.pad.evaluation import compare_attacks

SUBJECTS = 14


@pytest.fixture(scope="module")
def set_with_tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 14 people: six dark, six light, one of a tone of their own, and one without a tone."""
    place = tmp_path_factory.mktemp("set_with_tones")
    whole = PreparedSet.open(make_set(place / "whole", "T", 5, subjects=SUBJECTS))
    number = np.array([int(name.rpartition("T")[2]) for name in whole.rows.subject.tolist()])
    tones = np.array(["dark"] * 6 + ["light"] * 6 + ["secret-tone", ""])[number]
    further = {"tone": tones.tolist(), "camera": ["one"] * len(whole), "years": (number * 7).astype(str).tolist()}
    return copy_set(place / "whole", place / "T", further=further)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_people(tmp_path_factory.mktemp("people") / "X", "X", 8, identities=12)


def test_rates_by_group_are_those_of_the_scores_of_its_people(
    pad_run: Path, set_with_tones: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    figures = evaluate(open_model(pad_run), str(set_with_tones), tmp_path, out, by="tone")
    scores, rows = read_scores(out / "scores.csv"), PreparedSet.open(set_with_tones).rows
    tone = dict(zip(rows.item.tolist(), rows.further["tone"].tolist(), strict=True))
    live: dict[tuple[str, str], list[bool]] = {}
    for item, species, logit in zip(scores.item.tolist(), scores.species.tolist(), scores.live.tolist(), strict=True):
        live.setdefault((tone[item], species), []).append(logit >= figures["threshold"])
    for name in ("dark", "light"):
        accepted = {kind: sum(live[name, kind]) / len(live[name, kind]) for kind in ("bonafide", "print", "replay")}
        assert figures[f"by.groups.{name}.people"] == 6
        assert figures[f"by.groups.{name}.bpcer"] == pytest.approx(1 - accepted["bonafide"])
        assert figures[f"by.groups.{name}.apcer_worst"] == pytest.approx(max(accepted["print"], accepted["replay"]))
        low, high = figures[f"by.groups.{name}.intervals.bpcer"]
        assert low <= figures[f"by.groups.{name}.bpcer"] <= high
    both = [figures[f"by.groups.{name}.bpcer"] for name in ("dark", "light")]
    assert figures["by.variation.bpcer.difference"] == pytest.approx(max(both) - min(both))
    assert (figures["by.too_few"], figures["by.without_value"]) == (1, 6)
    assert "secret" not in (out / "metrics.json").read_text()


def test_groups_change_no_other_figure(pad_run: Path, set_with_tones: Path, tmp_path: Path) -> None:
    plain = evaluate(open_model(pad_run), str(set_with_tones), tmp_path)
    grouped = evaluate(open_model(pad_run), str(set_with_tones), tmp_path, by="tone")
    assert {name: value for name, value in grouped.items() if not name.startswith("by.")} == plain


def test_videos_are_scored_within_their_group(pad_run: Path, set_with_tones: Path, tmp_path: Path) -> None:
    """A camera that changes within each video splits it into two videos of one frame."""
    out = tmp_path / "out"
    evaluate(open_model(pad_run), str(set_with_tones), tmp_path, out)
    scores = read_scores(out / "scores.csv")
    number = np.arange(len(scores)) % 2
    by_frame, by_video = (
        compare_attacks(scores, 0.1, level, Groups("camera", ("a", "b"), number)) for level in ("frame", "video")
    )
    for name in "ab":
        assert by_video["groups"][name]["bpcer"] == pytest.approx(by_frame["groups"][name]["bpcer"])


def test_command_prints_tables_and_report_contains_them(
    pad_run: Path, set_with_tones: Path, tmp_path: Path, command: Command
) -> None:
    words = ("evaluate", pad_run, "--data", set_with_tones, "--by", "tone", "--quiet")
    status, text, _ = command(*words, "--out", tmp_path / "out")
    assert status == 0
    assert "| tone | people | BPCER |" in text
    assert "| dark | 6 |" in text
    figures = json.loads(command(*words, "--json")[1])
    assert figures["by.column"] == "tone"
    assert f"{100 * figures['by.groups.dark.bpcer']:.2f} [" in text
    assert command("report", tmp_path / "out")[0] == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Variation over tone" in page
    assert "secret-tone" not in text + page


def test_export_has_the_groups_of_its_run(pad_run: Path, pad: Path, set_with_tones: Path) -> None:
    of_run, of_export = (fv.evaluate(model, set_with_tones, by="tone") for model in (pad_run, pad))
    named = [name for name in of_run if name.startswith("by.groups")]
    assert named
    for name in named:
        assert of_export[name] == pytest.approx(of_run[name], abs=1e-6), name


def test_numbers_are_divided_at_edges(pad_run: Path, set_with_tones: Path) -> None:
    figures = fv.evaluate(pad_run, set_with_tones, by="years=42")
    assert (figures["by.groups.below 42.people"], figures["by.groups.42 and above.people"]) == (6, 8)


def test_rates_of_recognition_are_those_of_pairs_within_a_group(
    recognition_run: Path, people: Path, tmp_path: Path
) -> None:
    model, prepared = open_model(recognition_run), PreparedSet.open(people)
    figures = evaluate(model, str(people), tmp_path, by="group")
    features = np.asarray(model.embed(np.array(prepared.images)))
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    assert prepared.rows.group is not None
    for group in ("group-0", "group-1"):
        places = np.flatnonzero(prepared.rows.group == group)
        errors: dict[bool, list[bool]] = {True: [], False: []}
        for first, second in itertools.combinations(places.tolist(), 2):
            same = bool(prepared.rows.subject[first] == prepared.rows.subject[second])
            match = float(features[first] @ features[second]) >= figures["threshold"]
            errors[same].append(match != same)
        assert figures[f"by.groups.{group}.people"] == 6
        assert figures[f"by.groups.{group}.fnmr"] == pytest.approx(np.mean(errors[True]), abs=2e-3)
        assert figures[f"by.groups.{group}.fmr"] == pytest.approx(np.mean(errors[False]), abs=2e-3)


@pytest.mark.parametrize(
    ("by", "keywords"),
    [("skin", ("skin", "tone", "camera", "years")), ("camera", ("camera", "1")), ("subject", ("subject",))],
)
def test_column_that_makes_no_groups_is_refused(
    pad_run: Path, set_with_tones: Path, by: str, keywords: tuple[str, ...], tmp_path: Path
) -> None:
    with refused("--by", *keywords):
        evaluate(open_model(pad_run), str(set_with_tones), tmp_path, tmp_path / "out", by=by)
    assert not (tmp_path / "out").exists()


def test_benchmarks_alone_have_no_column(pad_run: Path, set_with_tones: Path, command: Command) -> None:
    status, _, errors = command("evaluate", pad_run, "--benchmark", set_with_tones, "--by", "tone")
    assert status == 2
    check_output(errors, "--by", "--data")


def test_several_models_are_refused(pad_run: Path, set_with_tones: Path, tmp_path: Path) -> None:
    model = open_model(pad_run)
    several = replace(model, setup=replace(model.setup, method=replace(model.setup.method, members="each")))
    with refused("--by", "one per site"):
        evaluate(several, str(set_with_tones), tmp_path, by="tone")


def test_recognition_without_a_threshold_is_refused(recognition_run: Path, people: Path, tmp_path: Path) -> None:
    model = open_model(recognition_run)
    model = replace(model, saved=replace(model.saved, thresholds={}))
    with refused("--by", "threshold"):
        evaluate(model, str(people), tmp_path, by="group")
