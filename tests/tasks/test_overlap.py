"""Pictures in two places are detected by content and refused before training unless allowed."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.refusals import refused
from tests.toy import SIZE, Sets, copy_set, deterministic_files, make_set, quiet_reporter, recipe_of, run_toy, tree

from fedvisage.base.progress import discard
from fedvisage.data.batches import View
from fedvisage.data.overlap import OVERLAP, TARGET, find_overlap
from fedvisage.data.prepared import IMAGES, PreparedSet
from fedvisage.data.writer import Writer
from fedvisage.report.page import write_report
from fedvisage.runs.evaluate import evaluate
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.checks import Checks
from fedvisage.tasks.finished_model import open_model

QUICK: Mapping[str, Any] = {"training__rounds": 1, "evaluation__every": 0}


def write_mixed_set(path: Path, parts: list[tuple[Path, int]], *, darker: int = 0) -> Path:
    """Write a set with the first pictures of other sets under new names.

    Those of the first one stay in their splits, those of the others are held out.
    """
    with Writer(path, name=path.name, size=SIZE, source="mixed", depth=True) as out:
        for number, (source, count) in enumerate(parts):
            outcome = PreparedSet.open(source)
            assert outcome.depth is not None
            rows, names = outcome.rows, [f"{number}-{index}" for index in range(count)]
            out.add(
                np.clip(outcome.images[:count].astype(int) - darker, 0, 255).astype(np.uint8),
                label=rows.label[:count],
                species=rows.species[:count],
                subject=[f"{number}-{who}-renamed" for who in rows.subject[:count]],
                video=[f"{number}-{video}-renamed" for video in rows.video[:count]],
                frame=rows.frame[:count],
                split=["heldout"] * count if number else rows.split[:count],
                item=names,
                depth=outcome.depth[:count],
            )
    return path


def run_with_checks(content: Mapping[str, Any], out: Path, **options: Any) -> dict[str, Any]:
    return run(Request(recipe_of(content), out, out.parent / "cache", **options), quiet_reporter())


def with_target(sets: Sets, target: Path, method: str = "fedpad") -> dict[str, Any]:
    return tree(sets, method, **QUICK) | {"data": {**tree(sets, method)["data"], "target": str(target)}}


@pytest.mark.parametrize("method", ["fedpad", "pooled"])
@pytest.mark.parametrize("darker", [0, 6])
def test_target_with_renamed_pictures_of_a_site_is_refused(
    method: str, darker: int, sets: Sets, tmp_path: Path
) -> None:
    target = write_mixed_set(tmp_path / "mine", [(sets["U"], 12), (sets["B"], 12)], darker=darker)
    with refused("data.target", "12 of 24", "site B", "--allow-overlap"):
        run_with_checks(with_target(sets, target, method), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_allowed_overlap_is_printed_recorded_and_reported(sets: Sets, tmp_path: Path) -> None:
    target = write_mixed_set(tmp_path / "mine", [(sets["U"], 12), (sets["B"], 12)])
    content, out = with_target(sets, target), tmp_path / "run"
    run_with_checks(content, out, checks=Checks(allow_overlap=True))
    kept = json.loads((out / OVERLAP).read_text())
    assert kept["allowed"] is True
    assert kept["shared"] == [{"place": "data.target", "with": "data.sites.B", "exact": 12, "near": 0}]
    assert "secret" not in (out / OVERLAP).read_text()
    page = write_report(out).read_text()
    assert "12 of whose 24 images were trained on" in page
    assert "Target U shares 12 of 24 pictures with site B" in page
    (out / "metrics.json").unlink()
    run_with_checks(content, out, resume=True)  # a resumed run needs no second permission


@pytest.mark.long
def test_disjoint_sets_run_unchanged_and_the_report_states_the_check(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, **QUICK)
    run_with_checks(content, tmp_path / "first")
    run_with_checks(content, tmp_path / "second", checks=Checks(allow_overlap=True, verify=True))
    assert deterministic_files(tmp_path / "first") == deterministic_files(tmp_path / "second")
    assert json.loads((tmp_path / "first" / OVERLAP).read_text())["shared"] == []
    page = write_report(tmp_path / "first").read_text()
    assert "whose images were not trained on" in page
    assert "was found in two of its places" in page


@pytest.mark.long
def test_small_overlap_is_printed_and_the_run_continues(sets: Sets, tmp_path: Path) -> None:
    large = make_set(tmp_path / "large", "L", 20, subjects=20)
    target = write_mixed_set(tmp_path / "mine", [(large, 119), (sets["B"], 1)])
    run_with_checks(with_target(sets, target), tmp_path / "run")
    kept = json.loads((tmp_path / "run" / OVERLAP).read_text())
    assert (kept["pictures"]["data.target"], kept["elsewhere"]["data.target"]["exact"]) == (120, 1)
    assert "1 of whose 120 images were trained on" in write_report(tmp_path / "run").read_text()


@pytest.mark.long
def test_two_sites_with_the_same_set_are_refused(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, **QUICK)
    content["data"]["sites"]["C"] = str(shutil.copytree(sets["B"], tmp_path / "again"))
    with refused("data.sites.B", "site C"):
        run_with_checks(content, tmp_path / "run")
    run_with_checks(content, tmp_path / "run", checks=Checks(allow_overlap=True))


def test_held_out_subject_must_not_train_under_another_name(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, **QUICK)
    content["data"]["sites"] = {"A": str(write_mixed_set(tmp_path / "more", [(sets["A"], 36), (sets["C"], 6)]))}
    run_with_checks(content, tmp_path / "fine")
    content["data"]["sites"] = {"A": str(write_mixed_set(tmp_path / "twice", [(sets["A"], 36), (sets["A"], 6)]))}
    with refused("data.sites.A (held-out subjects)", "6 of 18", "site A"):
        run_with_checks(content, tmp_path / "run")


@pytest.mark.long
def test_target_may_have_subjects_that_no_site_has(sets: Sets, tmp_path: Path) -> None:
    whole = make_set(tmp_path / "whole", "W", 30, subjects=20)
    content = tree(sets, **QUICK)
    content["data"]["sites"]["A"] = f"{whole} only: subjects=0-60"
    content["data"]["target"] = f"{whole} only: subjects=60-100"
    content["data"]["target_split"] = "train"
    run_with_checks(content, tmp_path / "run")
    content["data"]["target"] = f"{whole} only: subjects=50-100"
    with refused("data.target", "secret-subject-W5"):
        run_with_checks(content, tmp_path / "both")


def test_subjects_of_one_dataset_are_compared_by_name_and_rendered_ones_by_seed(sets: Sets, tmp_path: Path) -> None:
    other_pictures = make_set(tmp_path / "same-names", "A", 77)
    with refused("data.target", "6 subjects", "'secret-subject-A0'"):
        run_with_checks(with_target(sets, other_pictures), tmp_path / "run")
    named = {}
    for seed in (0, 1):
        path = tmp_path / f"seed-{seed}"
        with Writer(path, name="O", size=SIZE, source=f"synthetic domain=O size={SIZE} seed={seed}") as out:
            images = np.random.default_rng(seed).integers(0, 255, (1, SIZE, SIZE, 3), dtype=np.uint8)
            out.add(
                images,
                label=[1],
                species=["bonafide"],
                subject=["O-0001"],
                video=["v"],
                frame=[0],
                split=["train"],
                item=["one"],
            )
        named[seed] = View.of(PreparedSet.open(path))
    for seed, count in ((0, 1), (1, 0)):
        overlap = find_overlap({TARGET: [named[0]], "data.sites.O": [named[seed]]}, tmp_path / "cache")
        assert len(overlap.named) == count


def test_public_people_of_a_site_under_another_name_are_refused(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, "fedfr", **QUICK)
    people = sets["A"].with_name("people-A")
    names = PreparedSet.open(people).rows.subject
    public = copy_set(
        people,
        tmp_path / "public",
        subject=[f"renamed {who}" for who in names],
        split=["heldout" if who.endswith("2") else "train" for who in names],
    )
    content["data"] |= {"public": str(public), "public_identities": 2}
    with refused("data.public", "15 of 15"):
        run_with_checks(content, tmp_path / "run")


@pytest.mark.long
def test_finished_model_is_not_evaluated_on_its_training_data(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, **QUICK), tmp_path / "run")
    model, cache, heard = open_model(tmp_path / "run"), tmp_path / "cache", list[str]()
    target = write_mixed_set(tmp_path / "mine", [(sets["U"], 12), (sets["B"], 12)])
    with refused("data.target", "12 of 24", "site B"):
        evaluate(model, str(target), cache)
    evaluate(model, str(target), cache, tmp_path / "judged", checks=Checks(allow_overlap=True), say=heard.append)
    assert "12 of 24 pictures with site B" in heard[0]
    assert json.loads((tmp_path / "judged" / OVERLAP).read_text())["elsewhere"]["data.target"]["exact"] == 12
    fresh = make_set(tmp_path / "fresh", "F", 99)
    evaluate(model, str(fresh), cache)


@pytest.mark.long
def test_changed_bytes_are_refused_before_training_and_evaluation(sets: Sets, tmp_path: Path) -> None:
    altered = shutil.copytree(sets["B"], tmp_path / "B")
    content = tree(sets, **QUICK)
    content["data"]["sites"]["B"] = str(altered)
    run_with_checks(content, tmp_path / "run")
    with (altered / IMAGES).open("r+b") as file:
        file.seek(-9, 2)
        file.write(b"12345678")
    for place in ("new", "run"):
        (tmp_path / "run" / "metrics.json").unlink(missing_ok=True)
        with refused(altered / IMAGES, "SHA-256"):
            run_with_checks(content, tmp_path / place, resume=True)
    run_with_checks(tree(sets, **QUICK), tmp_path / "other")
    with refused("images.npy", "SHA-256"):
        evaluate(open_model(tmp_path / "other"), str(altered), tmp_path / "cache", say=discard)
