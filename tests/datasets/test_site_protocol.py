"""The protocol on real sites: splits, matched resolutions, runs and records, exact tests and verdicts."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import inf
from pathlib import Path
from statistics import fmean

import cv2
import numpy as np
import pytest
from benchmarks.real import families
from benchmarks.real.__main__ import RECORDS, follow_protocol
from benchmarks.real.cells import (
    FUSED,
    SOURCE,
    Records,
    data_digests,
    permute_labels,
    resolution_notices,
    run_cell,
    run_missing,
)
from benchmarks.real.families import (
    MATCHED,
    PLAIN,
    SOURCES,
    WITH_DEPTH,
    Source,
    line_of,
    matched_sides,
    read_face,
    split_of,
)
from benchmarks.real.protocol import CUES, EXTENDED, FURTHER, PLAN, RECIPE, Cell, Plan, Row, Training
from benchmarks.real.sign_flip import detectable, fewest, holm, interval, p_value
from benchmarks.real.sites import SIZE, Located
from benchmarks.real.verdicts import Table, figure_of
from sklearn.metrics import roc_auc_score
from tests.documented import read_generated
from tests.refusals import refused
from tests.toy import make_set

import fedvisage as fv
from fedvisage.base.errors import UserError
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.faces.detection import Face
from fedvisage.recipe import Adapt
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.pad.adaptation import AdaptationSource, adapt_to_view

SITES = ("A", "B", "C")
TINY = Plan(
    sites=dict.fromkeys(SITES, "toy"),
    changes={
        "training.augment.strong": False,
        "training.rounds": 1,
        "input.size": 32,
        "method.network.width": 8,
    },
    trainings={
        "cues": Training(CUES, ({},)),
        "fedpad": Training("fedpad", ({"training.optimizer.lr": 0.01}, {"training.optimizer.lr": 0.05})),
        "single": Training("single", ({},)),
    },
    rows={
        "Single (mean)": Row("single", "mean"),
        "Single (best at home)": Row("single", "best"),
        "Fused": Row("single", "fused"),
        "FedPAD": Row("fedpad"),
        "twelve cues": Row("cues", control=True),
    },
    primary=(("FedPAD", "Fused"), ("FedPAD", "twelve cues")),
    seeds=(0,),
)


def enumerate_p(differences: list[Fraction]) -> Fraction:
    """Return the two-sided p-value by trying each choice of signs, in exact arithmetic."""
    observed = abs(sum(differences, Fraction()))
    sums = [
        abs(sum((sign * difference for sign, difference in zip(signs, differences, strict=True)), Fraction()))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return Fraction(sum(value >= observed for value in sums), len(sums))


# The exact test.


@pytest.mark.parametrize(
    "tenths", [(1, 2, 3), (3, -1, 2, 2, 5, 1), (-4, -4, 1, -2, -9, -3, 0), (0, 0, 0), (5, -5, 2, -2)]
)
def test_p_value_equals_that_of_all_choices_of_signs(tenths: tuple[int, ...]) -> None:
    exact = enumerate_p([Fraction(value, 10) for value in tenths])
    assert p_value([value / 10 for value in tenths]) == pytest.approx(float(exact), abs=1e-12)


def test_interval_holds_the_shifts_that_the_test_does_not_reject() -> None:
    differences = [0.31, -0.05, 0.12, 0.44, 0.27, 0.08, 0.19]
    low, high = interval(differences)
    for shift, rejected in ((low - 1e-6, True), (low + 1e-6, False), (high - 1e-6, False), (high + 1e-6, True)):
        exact = enumerate_p([Fraction(difference) - Fraction(shift) for difference in differences])
        assert (exact <= Fraction(1, 20)) == rejected


def test_five_differences_can_show_nothing() -> None:
    assert fewest() == 6
    assert interval([0.1, 0.2, 0.3, 0.4, 0.5]) == (-inf, inf)
    assert p_value([0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx(2 / 32)


def test_holm_multiplies_by_the_number_of_remaining_hypotheses_and_never_decreases() -> None:
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.9})
    assert adjusted == pytest.approx({"a": 0.04, "c": 0.09, "b": 0.09, "d": 0.9})


def test_detectable_difference_of_seventeen_unit_deviations() -> None:
    # t quantiles at 16 degrees of freedom: 2.1199 (97.5 %) and 0.8647 (80 %), from printed tables.
    values = [1.0, -1.0] * 8 + [0.0]
    assert detectable(values) == pytest.approx((2.1199 + 0.8647) / 17**0.5, abs=2e-4)
    # Five comparisons at 1 % each: the quantile of 99.5 % is 2.9208.
    assert detectable(values, 5) == pytest.approx((2.9208 + 0.8647) / 17**0.5, abs=2e-4)


# Sites, splits and resolutions.


def test_gap_separates_training_pictures_from_the_last_third() -> None:
    splits = [split_of(number, 60) for number in range(60)]
    assert splits == ["train"] * 36 + ["test"] * 4 + ["heldout"] * 20


def test_copies_stay_at_the_first_site_and_folders_of_people_keep_their_order(tmp_path: Path) -> None:
    sources = {
        "one": Source("x", ("R+one",), "real", "fake", "print"),
        "two": Source("y", ("R+two",), "real", "fake", "print"),
    }
    contents = {
        "R+one/real/2/1.png": "b",
        "R+one/real/10/1.png": "c",
        "R+one/fake/1.png": "both",
        "R+two/real/1.png": "both",
        "R+two/real/2.png": "c",
        "R+two/fake/1.png": "d",
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    unique = families.unique_files(tmp_path, sources)
    texts = {
        site: {label: [path.read_text() for path in paths] for label, paths in unique[site].items()} for site in unique
    }
    assert texts == {"one": {1: ["b", "c"], 0: []}, "two": {1: [], 0: ["d"]}}
    (tmp_path / "R+two/fake/1.png").unlink()
    (tmp_path / "R+two/fake").rmdir()
    assert families.missing_folders(tmp_path, sources) == ["R+two/fake"]


def test_recorded_boxes_locate_the_same_crops_on_every_processor(tmp_path: Path) -> None:
    path = tmp_path / "imironica+liveness/db/ClientRaw/1.png"
    path.parent.mkdir(parents=True)
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))
    entry = f"{hashlib.sha256(path.read_bytes()).hexdigest()[:16]} 1 1.50 2.25 30.00 31.00"
    table = tmp_path / "faces.json"
    table.write_text(json.dumps({"imironica": {"1": [entry], "0": []}}))
    ((site, faces),) = families.locate_faces(tmp_path, ["imironica"], tmp_path, table)
    assert (site, faces[0]) == ("imironica", [])
    assert [(located.path, located.turns) for located in faces[1]] == [(path, 1)]
    assert faces[1][0].face.box.tolist() == [1.5, 2.25, 30.0, 31.0]
    path.unlink()
    with refused(tmp_path, "imironica"):
        [*families.locate_faces(tmp_path, ["imironica"], tmp_path, table)]


def test_matched_faces_are_no_larger_than_the_attack_of_equal_rank() -> None:
    assert matched_sides([300, 100, 200], [50, 150, 250]).tolist() == [250, 50, 150]
    assert matched_sides([40, 60, 200], [50, 150, 250]).tolist() == [40, 60, 200]


def test_matched_set_reduces_genuine_pictures_alone(tmp_path: Path) -> None:
    rng, located = np.random.default_rng(0), {1: list[Located](), 0: list[Located]()}
    for label, side in ((1, 160), (0, 40)):
        for number in range(3):
            path = tmp_path / f"{label}{number}.png"
            cv2.imwrite(str(path), rng.integers(0, 256, (200, 200, 3), np.uint8))
            located[label].append(Located(path, 0, Face(np.array([20.0, 20, side, side]), np.zeros((5, 2)))))
    families.write_sets("lab", "print", located, tmp_path / "sets", (PLAIN, MATCHED))
    plain, matched = (PreparedSet.open(tmp_path / "sets" / kind / "lab") for kind in (PLAIN, MATCHED))
    assert plain.rows.further["side"].tolist() == ["160"] * 3 + ["40"] * 3
    assert matched.rows.further["side"].tolist() == ["40"] * 6
    np.testing.assert_array_equal(plain.images[3:], matched.images[3:])
    # Reducing noise by four and enlarging it by two leaves less of it than reducing it by two.
    assert np.asarray(matched.images[:3], float).std() < 0.8 * np.asarray(plain.images[:3], float).std()
    assert plain.images.shape[1:3] == (SIZE, SIZE)
    lines = [*resolution_notices(replace(TINY, sites={"lab": "x"}), {"lab": plain})]
    assert lines == [
        "lab: genuine faces are 160 pixels wide, attacks 40; its classes differ in resolution, so read its figures on "
        "the matched sets"
    ]
    assert not [*resolution_notices(replace(TINY, sites={"lab": "x"}), {"lab": matched})]


def test_depth_set_fits_a_face_to_genuine_points_and_leaves_attacks_flat(tmp_path: Path) -> None:
    # Eyes, nose and mouth of a frontal face, 100 pixels wide, left of the middle of the picture.
    points = np.array([[60, 90], [100, 90], [80, 112], [64, 134], [96, 134]], float)
    face = read_face(
        line_of("x", Located(tmp_path, 0, Face(np.array([30.0, 50, 100, 110]), points)), with_points=True).split()[2:]
    )
    assert face.points.tolist() == points.tolist()
    located = {1: list[Located](), 0: list[Located]()}
    for label in located:
        path = tmp_path / f"{label}.png"
        cv2.imwrite(str(path), np.full((200, 200, 3), 128, np.uint8))
        located[label].append(Located(path, 0, face))
    families.write_sets("lab", "print", located, tmp_path / "sets", (WITH_DEPTH,))
    prepared = PreparedSet.open(tmp_path / "sets" / WITH_DEPTH / "lab")
    assert prepared.depth is not None
    genuine, attack = prepared.depth
    assert prepared.images.shape[1:3] == (96, 96)
    assert attack.max() == 0
    # The crop is a square of 110 pixels that starts at (25, 50), so the tip of the nose is at (0.50, 0.56) of it.
    row, column = np.unravel_index(int(genuine.argmax()), genuine.shape)
    assert (column + 0.5) / 32 == pytest.approx((80 - 25) / 110, abs=0.06)
    assert (row + 0.5) / 32 == pytest.approx((112 - 50) / 110, abs=0.06)
    assert genuine[0, 0] == 0


def test_near_copies_are_counted_across_sites() -> None:
    rng = np.random.default_rng(1)
    first, other = (cv2.resize(rng.integers(0, 256, (8, 9, 3), np.uint8), (90, 80)) for _ in range(2))
    brighter = np.clip(first.astype(int) + 5, 0, 255).astype(np.uint8)
    hashes = {
        name: [families.difference_hash(image)] for name, image in {"a": first, "b": brighter, "c": other}.items()
    }
    assert families.near_copies(hashes) == {("a", "b"): 1}


def test_plan_holds_every_site_once_and_five_primary_differences() -> None:
    assert set(PLAN.sites) == set(SOURCES)
    assert len(PLAN.primary) == 5
    assert {row for pair in (*PLAN.primary, *PLAN.secondary) for row in pair} <= set(PLAN.rows)
    without = PLAN.training_sites(Cell("fedpad-families", 0, "wolf", 0))
    assert {SOURCES[site].family for site in without}.isdisjoint({"tutorial"})
    assert set(PLAN.training_sites(Cell("fedpad", 0, "wolf", 0))) == set(PLAN.sites) - {"wolf"}


def test_an_extended_plan_accepts_the_records_of_the_earlier_one(tmp_path: Path) -> None:
    extended = replace(SIX, extends=SIX, seeds=(0, 1, 2))
    records = write_records(tmp_path, SIX, auc_of_cell)
    assert Records(tmp_path, extended).cells == records.cells
    with pytest.raises(UserError, match="has 30 records of another plan"):
        Records(tmp_path, replace(SIX, seeds=(0,)))
    # The records of decisions 0064, 0058 and 0045 have these digests.
    assert FURTHER.digests == ("30dd00eccb43210f", "0090b807396d4358", "376f6da04c514b40")
    assert FURTHER.primary[:-1] == EXTENDED.primary


# Runs.


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the tiny plan once; return the folder with its sets, records and runs."""
    folder = tmp_path_factory.mktemp("protocol")
    for number, site in enumerate(SITES):
        make_set(folder / "sets" / PLAIN / site, site, number)
    lines = [*run_missing(TINY, Records(folder / "records", TINY), folder / "sets", folder / "work")]
    assert len(lines) == 3 * 4
    return folder


def test_ended_cells_are_not_run_again(tiny_run: Path) -> None:
    records = Records(tiny_run / "records", TINY)
    assert not [*run_missing(TINY, records, tiny_run / "sets", tiny_run / "work")]
    record = records.get(Cell("fedpad", 1, "B", 0))
    assert record is not None
    assert set(record) == {"plan", "data", "commit", "device", "seconds", "scores", "models"}
    assert records.seconds == pytest.approx(
        sum(
            entry["seconds"]
            for path in (tiny_run / "records").iterdir()
            for entry in json.loads(path.read_text()).values()
        )
    )


def test_processes_can_run_different_trainings(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = Records(tmp_path / "records", TINY)
    lines = [*run_missing(TINY, records, tiny_run / "sets", tiny_run / "work", ["cues"])]
    assert len(lines) == 3
    assert {path.name for path in (tmp_path / "records").iterdir()} == {"cues-0.json"}
    assert follow_protocol(tmp_path, tmp_path, tmp_path / "records", blind=True, plan=TINY, trainings=["cue"]) == 1
    assert "--trainings" in capsys.readouterr().err


@pytest.mark.long
def test_shared_models_of_single_sites_equal_those_of_a_run_without_the_target(tiny_run: Path, tmp_path: Path) -> None:
    record = Records(tiny_run / "records", TINY).get(Cell("single", 0, "A", 0))
    assert record is not None
    assert set(record["models"]) == {"B", "C", FUSED}
    sets = tiny_run / "sets" / PLAIN
    changes = {
        "method.name": "single",
        "data.sites": {site: str(sets / site) for site in ("B", "C")},
        "data.target": str(sets / "A"),
        "data.target_name": "target",
        "runtime.seed": 0,
        "runtime.threads": 1,
        "evaluation.resamples": 0,
        **TINY.changes,
    }
    run = fv.run(RECIPE, out=tmp_path / "run", changes=changes, quiet=True, allow_overlap=True)
    for site, part in run.metrics.parts("members").items():
        home = run.metrics.parts("sites_heldout")[site]["auc"]
        expected = {"auc": part["auc"], "eer": part["eer"], "home": home}
        assert record["models"][site] == pytest.approx(expected, abs=1e-6)
    with (run.directory / "scores.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    live: dict[str, list[float]] = {}
    for row in rows:
        live.setdefault(row["item"], []).append(1 / (1 + np.exp(-float(row["logit"]))))
    labels = {row["item"]: int(row["label"]) for row in rows}
    pairs = [
        fmean(live[genuine]) > fmean(live[attack])
        for genuine in labels
        for attack in labels
        if labels[genuine] > labels[attack]
    ]
    assert record["models"][FUSED]["auc"] == pytest.approx(fmean(pairs), abs=1e-6)


def test_adapted_model_is_the_recorded_one_after_adaptation(tiny_run: Path) -> None:
    adapted = replace(TINY.trainings["fedpad"], adapt="paper", trained_by="fedpad")
    plan = replace(TINY, extends=TINY, trainings={**TINY.trainings, "fedpad-paper": adapted})
    cell = Cell("fedpad-paper", 1, "B", 0)
    work = tiny_run / "work" / data_digests(TINY, tiny_run / "sets")[PLAIN]
    models, _ = run_cell(plan, cell, tiny_run / "sets", work)
    source = Records(tiny_run / "records", TINY).get(Cell("fedpad", 1, "B", 0))
    assert source is not None
    assert {name: models[SOURCE][name] for name in ("auc", "eer", "home")} == source["models"][""]
    model = open_model(work / "runs" / "fedpad-1" / "B-0")
    model.scorer.load(model.saved.finished)
    view = View.of(PreparedSet.open(tiny_run / "sets" / PLAIN / "B"))
    logits, _ = adapt_to_view(model.scorer, view, Adapt(gate=False, loop="two-pass"), AdaptationSource(0.0, 0.0))
    assert models[""]["auc"] == pytest.approx(roc_auc_score(view.labels, logits), abs=1e-6)
    assert figure_of(Row("fedpad-paper", "source"), models, "hter") == models[SOURCE]["hter"]


def test_row_uses_the_setting_that_is_best_at_home(tiny_run: Path) -> None:
    records = Records(tiny_run / "records", TINY)
    figures = Table(TINY, records).figures("FedPAD")
    assert figures is not None
    for target in SITES:
        models = [records.get(Cell("fedpad", setting, target, 0))["models"][""] for setting in (0, 1)]  # type: ignore[index]
        best = models[1] if models[1]["home"] > models[0]["home"] else models[0]
        assert figures[target] == best["auc"]


def test_pictures_that_changed_after_a_run_are_refused(tiny_run: Path, tmp_path: Path) -> None:
    for number, site in enumerate(SITES):
        make_set(tmp_path / PLAIN / site, site, number + 10)
    with pytest.raises(UserError, match="has other pictures than the recorded runs"):
        [*run_missing(TINY, Records(tiny_run / "records", TINY), tmp_path, tmp_path / "work")]


def test_records_of_no_cell_and_of_different_pictures_are_refused(tmp_path: Path) -> None:
    records = write_records(tmp_path, SIX, auc_of_cell)
    record = {**records.cells["fedpad-0.json"]["A/0"], "data": {PLAIN: "some"}}
    records.add(Cell("fedpad", 0, "A", 0), record)
    Records(tmp_path, SIX)
    records.add(Cell("fedpad", 0, "B", 0), {**record, "data": {PLAIN: "other"}})
    with pytest.raises(UserError, match="records of different pictures"):
        Records(tmp_path, SIX)
    records.add(Cell("fedpad", 0, "B", 0), record)
    records.add(Cell("fedpad", 1, "B", 0), record)
    with pytest.raises(UserError, match=r"1 records that the plan has no cell for \(fedpad-1.json: B/0\)"):
        Records(tmp_path, SIX)


def test_changed_plan_is_one_line(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = replace(TINY, seeds=(0, 1))
    assert follow_protocol(tmp_path, tmp_path, tiny_run / "records", blind=False, plan=changed) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "has 12 records of another plan" in line
    assert "the protocol changed after these runs" in line


def test_table_needs_no_pictures_and_too_few_sites_are_one_line(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow_protocol(tmp_path, tmp_path, tiny_run / "records", blind=False, plan=TINY) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"no runs: {tmp_path} has no ")
    assert "too few sites for a test: 3, needs 6" in lines
    fedpad = next(line for line in lines if line.startswith("| FedPAD |"))
    figures = Table(TINY, Records(tiny_run / "records", TINY)).figures("FedPAD")
    assert figures is not None
    assert fedpad.split(" | ")[2] == f"{fmean(figures.values()):.3f}"


def test_permuted_set_keeps_pictures_and_the_number_of_labels(tiny_run: Path, tmp_path: Path) -> None:
    path = tiny_run / "sets" / PLAIN / "A"
    permuted, original = PreparedSet.open(permute_labels(path, tmp_path, 3)), PreparedSet.open(path)
    np.testing.assert_array_equal(permuted.images, original.images)
    assert permuted.rows.label.tolist() != original.rows.label.tolist()
    for split in ("train", "heldout"):
        indices = original.select(split)
        assert permuted.rows.label[indices].sum() == original.rows.label[indices].sum()


# Verdicts from records.


def test_models_that_are_equally_good_at_home_are_averaged() -> None:
    models = {
        "B": {"auc": 0.9, "eer": 0.1, "home": 1.0},
        "C": {"auc": 0.4, "eer": 0.6, "home": 1.0},
        "D": {"auc": 0.8, "eer": 0.2, "home": 0.9},
        FUSED: {"auc": 1.0, "eer": 0.0, "home": 0.97},
    }
    assert figure_of(Row("single", "best"), models, "auc") == pytest.approx(0.65)
    assert figure_of(Row("single", "mean"), models, "auc") == pytest.approx(0.7)
    assert figure_of(Row("single", "fused"), models, "eer") == 0.0


SIX = replace(
    TINY,
    sites=dict.fromkeys("ABCDEF", "toy"),
    trainings={name: replace(training, settings=({},)) for name, training in TINY.trainings.items()},
    seeds=(0, 1),
)


def write_records(folder: Path, plan: Plan, auc_of: Callable[[Cell], float]) -> Records:
    """Record each cell of a plan with an AUC at the target that a function gives."""
    records = Records(folder, plan)
    for cell in plan.cells():
        value = auc_of(cell)
        figures = {"auc": value, "eer": 1 - value, "home": 0.9}
        names = ("B", "C", FUSED) if cell.training == "single" else ("",)
        models: Mapping[str, Mapping[str, float]] = dict.fromkeys(names, figures)
        record = {"plan": plan.digest[:16], "data": {}, "commit": "x", "seconds": 1, "scores": "", "models": models}
        records.add(cell, record)
    return records


def auc_of_cell(cell: Cell) -> float:
    """FedPAD is ahead by 0.1 to 0.6 at the six targets in the mean of two seeds; single sites and cues have 0.3."""
    gain = ("ABCDEF".index(cell.target) + 1) / 10
    return 0.3 + (gain + (0.05 if cell.seed else -0.05) if cell.training == "fedpad" else 0)


def test_verdicts_follow_from_the_records(tmp_path: Path) -> None:
    table = Table(SIX, write_records(tmp_path, SIX, auc_of_cell))
    lines = [*table.verdicts()]
    # Six positive differences: p = 2 / 64, doubled by Holm; the interval is the range of the differences.
    (line,) = [line for line in lines if line.startswith("- FedPAD - Fused")]
    assert "+0.350 [+0.100, +0.600]" in line
    assert "positive at 6 of 6 (+0.100 to +0.600), p = 0.0312, Holm 0.0625: undecided" in line
    alone = replace(SIX, primary=(("FedPAD", "Fused"),))
    (line,) = [
        line
        for line in Table(alone, write_records(tmp_path / "alone", alone, auc_of_cell)).verdicts()
        if "Holm 0.0312" in line
    ]
    assert line.endswith(": holds")


@pytest.mark.parametrize(("families", "word"), [("xxyyzz", "holds at these sites"), ("xyzzyx", "holds")])
def test_claim_without_an_interval_over_families_holds_at_these_sites(tmp_path: Path, families: str, word: str) -> None:
    plan = replace(SIX, sites=dict(zip("ABCDEF", families, strict=True)), primary=(("FedPAD", "Fused"),))
    lines = [*Table(plan, write_records(tmp_path, plan, auc_of_cell)).verdicts()]
    (line,) = [line for line in lines if ", Holm 0.0312: " in line]
    # The families' means are 0.15, 0.35 and 0.55, or 0.35 each; Student's quantile of two degrees is 4.303.
    half = 0 if word == "holds" else 4.303 * 0.2 / 3**0.5
    assert line.endswith(f": {word}; over 3 families t [{0.35 - half:+.3f}, {0.35 + half:+.3f}]")


def test_verdicts_of_the_earlier_plan_stand_until_the_later_one_has_ended(tmp_path: Path) -> None:
    earlier = replace(SIX, primary=(("FedPAD", "Fused"),))
    later = replace(
        earlier,
        extends=earlier,
        trainings={**SIX.trainings, "late": Training("fedpad", [{"rate": 1}, {"rate": 2}])},
        rows={**SIX.rows, "Late": Row("late")},
        primary=(*earlier.primary, ("Late", "FedPAD")),
    )
    records = write_records(tmp_path, earlier, auc_of_cell)
    before = [*Table(later, records).verdicts()]
    assert "verdicts of the earlier plan, because runs of Late - FedPAD have not ended" in before
    assert any("Holm 0.0312: holds" in line for line in before)
    for cell in later.cells_of("Late"):
        records.add(
            cell,
            {
                **records.cells["fedpad-0.json"]["A/0"],
                "models": {"": dict.fromkeys(("auc", "eer"), 0.5) | {"home": cell.setting}},
            },
        )
    table = Table(later, records)
    assert not any("holds" in line for line in table.verdicts())
    assert [*table.choices()] == ["- late: rate 2 (6)"]


def test_blind_table_and_unended_rows_show_no_target_figure(tmp_path: Path) -> None:
    records = write_records(tmp_path, SIX, auc_of_cell)
    del records.cells["fedpad-0.json"]["F/1"]
    table = Table(SIX, records)
    assert "FedPAD: 11 of 12 runs" in [*table.lines(blind=True)]
    assert not any("0.3" in line for line in table.lines(blind=True))
    lines = [*table.lines()]
    (line,) = [line for line in lines if line.startswith("| FedPAD |")]
    assert line.startswith("| FedPAD | 11 of 12 | – |")
    assert any(line.startswith("primary differences: no verdict before all their runs have ended") for line in lines)
    assert not any(": holds" in line for line in lines)


def test_rows_without_a_family_are_compared_over_families(tmp_path: Path) -> None:
    plan = replace(
        SIX,
        sites={"A": "x", "B": "x", "C": "y", "D": "y", "E": "z", "F": "z"},
        trainings={name: replace(training, without_family=True) for name, training in SIX.trainings.items()},
        primary=(),
        secondary=(("FedPAD", "Fused"),),
    )
    verdict = Table(plan, write_records(tmp_path, plan, auc_of_cell)).verdict(("FedPAD", "Fused"))
    assert verdict is not None
    assert verdict.differences == pytest.approx([0.15, 0.35, 0.55])
    (line,) = [line for line in Table(plan, Records(tmp_path, plan)).verdicts() if line.startswith("- FedPAD")]
    assert line.endswith("; too few families for a test: 3, needs 6")


def test_difference_that_turns_on_matched_sets_is_about_resolution(tmp_path: Path) -> None:
    plan = replace(
        SIX,
        trainings={**SIX.trainings, "fedpad-matched": Training("fedpad", ({},)), "cues-matched": Training(CUES, ({},))},
        rows={
            **SIX.rows,
            "FedPAD, matched": Row("fedpad-matched", control=True),
            "twelve cues, matched": Row("cues-matched", control=True),
        },
    )
    figures = {"fedpad": 0.8, "cues": 0.6, "fedpad-matched": 0.5, "cues-matched": 0.7, "single": 0.5}
    lines = [*Table(plan, write_records(tmp_path / "two", plan, lambda cell: figures[cell.training])).verdicts()]
    (line,) = [line for line in lines if line.startswith("- FedPAD - twelve cues")]
    assert "undecided" in line
    assert line.endswith("; -0.200 on matched sets")
    (line,) = [line for line in lines if line.startswith("- FedPAD - Fused")]
    assert "matched" not in line
    plan = replace(plan, primary=(("FedPAD", "twelve cues"),))
    lines = [*Table(plan, write_records(tmp_path / "one", plan, lambda cell: figures[cell.training])).verdicts()]
    (line,) = [line for line in lines if line.startswith("- FedPAD - twelve cues")]
    assert line.endswith(": holds; -0.200 on matched sets, so it is about resolution")


def test_null_run_outside_one_half_cancels_all_verdicts(tmp_path: Path) -> None:
    plan = replace(SIX, rows={**SIX.rows, "FedPAD, permuted labels": Row("fedpad", control=True)})
    lines = [*Table(plan, write_records(tmp_path, plan, lambda cell: 0.9)).verdicts()]
    assert lines[0] == "null run, mean AUC 0.900 [0.900, 0.900]: excludes 0.5, so no verdict counts"


def test_page_has_the_table_and_verdicts_of_the_records() -> None:
    block = read_generated("docs/results/real-sites.md", "python -m benchmarks.real DIR --protocol")
    records = Records(RECORDS, FURTHER)
    assert not [commit for commit in records.commits if commit.endswith("-dirty")]
    table = Table(FURTHER, records)
    assert Table(EXTENDED, records).complete
    assert block == "\n".join(table.lines())
