"""Assessment of the pipeline on a rendered copy of Replay-Attack with enrolments, returns and attacks."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from tests.commands import call, output_of, refusal_of
from tests.device.exports import with_threshold
from tests.metrics.test_presentations import draw_presentations
from tests.refusals import refused
from tests.report.test_page_in_browser import CHROMIUM, measure

from fedvisage.base.errors import RunFailed
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.small_copies import write_copy
from fedvisage.device import Pipeline
from fedvisage.faces.pictures import sample_video
from fedvisage.metrics.groups import Groups, compare_groups, presentation_rates
from fedvisage.metrics.presentations import Point
from fedvisage.report import iso30107
from fedvisage.runs.assess_pipeline import Assessment, assess, presentations_in

pytestmark = pytest.mark.long

PEOPLE = 3


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return Replay-Attack with a few rendered people."""
    root = tmp_path_factory.mktemp("assessment") / "copy"
    write_copy(SCANNERS["replay-attack"], root, people=PEOPLE)
    return root


@pytest.fixture(scope="session")
def assessment(copy: Path, pad: Path, recognition: Path) -> Assessment:
    return assess(
        Pipeline(with_threshold(pad, -50.0), with_threshold(recognition, 0.5)),
        presentations_in(copy),
        frames=2,
        resamples=20,
    )


def test_rendered_copy_marks_enrolment_return_and_attack(copy: Path) -> None:
    trials = presentations_in(copy)
    assert {
        subject: [trial.name.split("/")[0] for trial in enrolment] for subject, enrolment in trials.enrol.items()
    } == {f"replay-attack/{number:03d}": ["enroll"] for number in range(1, PEOPLE + 1)}
    kinds = [(trial.subject[-3:], trial.species) for trial in trials.probes]
    assert sorted(kinds) == sorted(
        (f"{number:03d}", species) for number in (1, 2, 3) for species in ("", "", "print", "photo", "replay")
    )
    assert trials.conditions["support"] == {"fixed": PEOPLE, "hand": 2 * PEOPLE}
    assert trials.copy == ("test: 6 of 80 bona fide, 9 of 400 attacks", "enroll: 3 of 100 bona fide")


def test_rendered_people_look_different_each_time(copy: Path) -> None:
    first, again = sorted(copy.rglob("client001*authenticate*.mov"))[:2]
    image, other = (next(iter(sample_video(path, 1)))[1] for path in (first, again))
    assert image.shape == other.shape == (280, 336, 3)
    assert np.abs(image.astype(int) - other).mean() > 3


def test_first_bona_fide_presentation_enrols_without_enrolment_videos(tmp_path: Path) -> None:
    write_copy(SCANNERS["folder"], tmp_path / "own")
    trials = presentations_in(tmp_path / "own")
    assert {name: [trial.name for trial in presentations] for name, presentations in trials.enrol.items()} == {
        "ann": ["real/ann/1"],
        "ben": ["real/ben/clip"],
    }
    assert [(trial.name, trial.subject) for trial in trials.probes] == [
        ("attack/print/ann/1", "ann"),
        ("attack/replay/ben/2", "ben"),
    ]


def test_presentation_is_scored_by_the_mean_of_its_frames(copy: Path, pad: Path, assessment: Assessment) -> None:
    path = next(copy.rglob("attack_print_client001*.mov"))
    pipeline = Pipeline(with_threshold(pad, -50.0))
    scores = [pipeline.check(frame).faces[0].pad for _, frame in sample_video(path, 2)]
    mean = np.mean([verdict.score for verdict in scores if verdict is not None and verdict.score is not None])
    (row,) = [row for row in assessment.rows if row["item"].endswith(path.stem)]
    assert float(row["logit"]) == pytest.approx(np.log(mean / (1 - mean)), abs=1e-4)
    assert (row["species"], row["judged"], row["decision"]) == ("print", 2, "bona_fide")


def test_table_repeats_the_figures(assessment: Assessment) -> None:
    attacks = [row for row in assessment.rows if row["species"] == "photo"]
    figures = assessment.values["system"]["species"]["photo"]
    assert figures["presented"] == len(attacks) == PEOPLE
    assert figures["iapar"]["value"] == pytest.approx(np.mean([row["accepted"] for row in attacks]))
    real = [row for row in assessment.rows if not row["species"]]
    assert assessment.values["system"]["frr"]["value"] == pytest.approx(1 - np.mean([row["accepted"] for row in real]))
    assert assessment.values["system"]["non_mated"] == 2 * PEOPLE * (PEOPLE - 1)


def test_person_classified_as_attack_is_not_enrolled(copy: Path, pad: Path, recognition: Path) -> None:
    result = assess(
        Pipeline(with_threshold(pad, 50.0), with_threshold(recognition, 0.5)),
        presentations_in(copy),
        frames=1,
        resamples=0,
    )
    assert result.values["test"]["enrolment"]["not_enrolled"] == {"taken for an attack": PEOPLE}
    assert result.values["system"]["frr"] == {"value": None}
    assert result.values["pad"]["bona_fide"]["bpcer"]["value"] == 1


def test_missing_face_counts_as_no_response(copy: Path, pad: Path) -> None:
    trials = presentations_in(copy)
    wall = copy.parent / "wall.png"
    cv2.imwrite(str(wall), np.full((200, 200, 3), 90, np.uint8))
    walls = [replace(trial, items=(replace(trial.items[0], path=wall, kind="image"),)) for trial in trials.probes[:2]]
    result = assess(Pipeline(pad), replace(trials, probes=tuple(walls)), frames=1, resamples=0)
    assert result.values["test"]["no_response"] == {"no face found": 2}
    assert result.rows[0]["decision"] == "no_decision"


def test_unreadable_input_has_no_report(copy: Path, pad: Path) -> None:
    trials = presentations_in(copy)
    broken = copy.parent / "broken.mov"
    broken.write_bytes(b"not a video")
    probes = tuple(replace(trial, items=(replace(trial.items[0], path=broken),)) for trial in trials.probes)
    with pytest.raises(RunFailed, match="cannot be read"):
        assess(Pipeline(pad), replace(trials, probes=probes), frames=1, resamples=0)


def test_groups_of_too_few_people_have_no_figures(copy: Path, pad: Path) -> None:
    pipeline, trials = Pipeline(with_threshold(pad, -50.0)), presentations_in(copy)
    by = assess(pipeline, trials, frames=1, by="support", resamples=0).values["by"]
    assert (by["column"], by["groups"], by["too_few"]) == ("support", {}, 2)
    with refused("--by", "lens", "support"):
        assess(pipeline, trials, frames=1, by="lens")


def test_page_and_lines_have_the_rates_by_group(assessment: Assessment) -> None:
    sample, at = draw_presentations(count=240, people=9), Point(0.0, 0.5)
    groups = Groups("device", ("laptop", "phone"), np.arange(len(sample)) % 2)
    by = compare_groups(groups, lambda mask, rng: presentation_rates(sample.where(mask), at, rng))
    values = {**assessment.values, "by": by}
    page = iso30107.page(values, assessment.presentations, assessment.at)
    text = "\n".join(iso30107.lines(values))
    assert "Variation over device" in page
    for name in ("laptop", "phone"):
        row = by["groups"][name]
        for rate in ("bpcer", "apcer_worst", "fnmr", "fmr"):
            assert f"{100 * row[rate]:.2f} [{100 * row['intervals'][rate][0]:.2f}" in page
        assert f"| {name} | {row['people']} | {100 * row['bpcer']:.2f} [" in text


def test_command_writes_report_and_table(copy: Path, pad: Path, recognition: Path, tmp_path: Path) -> None:
    words = ("--pipeline", "--pad", pad, "--recognition", recognition, "--data", copy, "--frames", 1, "--iso30107")
    out = tmp_path / "out"
    output = output_of("evaluate", *words, "--out", out, "--quiet")
    assert sorted(path.name for path in out.iterdir()) == ["iso30107.html", "iso30107.json", "presentations.csv"]
    values = json.loads((out / "iso30107.json").read_text())
    assert set(values["pad"]["species"]) == {"photo", "print", "replay"}
    assert values["test"]["subjects"] == PEOPLE
    rows = list(csv.DictReader((out / "presentations.csv").read_text().splitlines()))
    assert len(rows) == 5 * PEOPLE
    assert "APCER" in (out / "iso30107.html").read_text()
    assert "APCER" in output


def test_page_states_all_figures_and_no_names(assessment: Assessment, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assessment.write(out, report=True)
    page = (out / "iso30107.html").read_text()
    assert "client0" not in page
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", page)
    assert page.count("<svg") == 2
    for name in ("APCER", "BPCER", "APNRR", "FNMR", "IAPAR", "RIAPAR"):
        assert name in page
    if CHROMIUM:
        sizes = measure(out / "iso30107.html", 390, tmp_path)
        assert (sizes["needed"] <= 390, sizes["cut"], sizes["holes"]) == (True, 0, 0)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("--data", "COPY"), "--pad"),
        (("--pad", "PAD"), "--data"),
        (("--pad", "PAD", "--data", "COPY", "--iso30107"), "--out"),
        (("--pad", "PAD", "--data", "nowhere"), "nowhere"),
        (("--pad", "PAD", "--data", "COPY", "--split", "dev"), "--split"),
        (("--pad", "PAD", "--data", "COPY", "--kind", "nothing"), "--kind"),
        (("--pad", "PAD", "--data", "COPY", "--out", "COPY"), "copy"),
    ],
)
def test_wrong_assessment_calls_name_the_place(copy: Path, pad: Path, words: tuple[str, ...], place: str) -> None:
    paths = {"COPY": copy, "PAD": pad}
    assert place in str(refusal_of("evaluate", "--pipeline", *(paths.get(word, word) for word in words)))


@pytest.mark.parametrize(
    "words", [("evaluate", "RUN", "--frames", "3"), ("evaluate-pipeline", "--adapt", "gated"), ("evaluate",)]
)
def test_options_of_the_other_evaluation_are_refused(words: tuple[str, ...]) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert (words[-2] if len(words) > 1 else "RUN") in result.output
