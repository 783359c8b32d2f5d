"""Recognition runs from the first model to the report, evaluation on other people, and comparison of two faces."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from tests.listed import write_set
from tests.refusals import failed, refused
from tests.toy import NewRun, Sets, make_people, quiet_reporter, recipe_of, run_toy, tree

from fedvisage.base.errors import RunFailed
from fedvisage.device.predict import InputPictures, list_input_pictures, picture_at
from fedvisage.federation.record.store import SiteStore
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.metrics.threshold import Threshold
from fedvisage.report.page import write_report
from fedvisage.report.recognition import left_out_table
from fedvisage.runs.directory import RunDirectory
from fedvisage.runs.evaluate import evaluate
from fedvisage.runs.predict import compare_faces, predict
from fedvisage.runs.request import Request, Training
from fedvisage.runs.run import run
from fedvisage.runs.train import adoption
from fedvisage.tasks import saved_model
from fedvisage.tasks.finished_model import open_model


@pytest.fixture(scope="module")
def finished_run(sets: Sets, new_run: NewRun) -> Path:
    return new_run(tree(sets, "fedfr", training__rounds=2, evaluation__recognition={"fmr": 0.05}))


@pytest.mark.long
def test_pre_training_happens_once_per_combination_of_settings(sets: Sets, tmp_path: Path) -> None:
    def cached() -> set[str]:
        return {path.name for path in (tmp_path / "cache").glob("pretrained-*")}

    run_toy(tree(sets, "pretrained", training__rounds=1), tmp_path / "one")
    first = cached()
    assert len(first) == 1
    run_toy(tree(sets, "fedavg", training__rounds=1), tmp_path / "two")
    assert cached() == first
    run_toy(tree(sets, "pretrained", training__rounds=1, runtime__seed=1), tmp_path / "three")
    assert len(cached()) == 2
    kept = load_file(tmp_path / "cache" / next(iter(first)))
    delivered = load_file(tmp_path / "one" / "model.safetensors")
    assert all(np.array_equal(kept[name], value) for name, value in delivered.items())
    assert kept["centres.weight"].shape == (4, 16)


@pytest.mark.long
def test_first_model_may_be_from_the_middle_of_a_schedule(sets: Sets, tmp_path: Path) -> None:
    """With rates by epoch, two of three epochs equal two epochs; a cosine schedule differs."""

    def first(schedule: Mapping[str, Any], **epochs: int) -> bytes:
        out = tmp_path / json.dumps([schedule, epochs])
        content = tree(sets, "pretrained", training__rounds=1)
        content["training"]["pretrain"] |= {"schedule": schedule, "batch": 4, **epochs}
        run_toy(content, out)
        return (out / "model.safetensors").read_bytes()

    steps, cosine = {"name": "step", "every": 1, "factor": 0.5}, {"name": "cosine"}
    assert first(steps, epochs=3, stop=2) == first(steps, epochs=2) != first(steps, epochs=3)
    assert first(cosine, epochs=3, stop=3) == first(cosine, epochs=3)
    assert first(cosine, epochs=3, stop=2) != first(cosine, epochs=2)
    with refused("recipe.training.pretrain", "4", "3"):
        first(cosine, epochs=3, stop=4)


def test_pre_training_needs_public_people(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, "fedavg")
    content["data"] |= {"public": None, "public_identities": None}
    with refused("recipe.training.pretrain", "data.public"):
        run_toy(content, tmp_path / "run")


def test_run_without_public_people_has_no_personal_figures(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, "fedavg", training__rounds=1, training__pretrain=None)
    content["data"] |= {"public": None, "public_identities": None}
    metrics = run_toy(content, tmp_path / "run")
    assert not metrics.part("personal")
    assert metrics.part("generic").rates("tar")


def test_figures_are_recorded_by_model_site_and_group(finished_run: Path) -> None:
    metrics = read_metrics(finished_run / "metrics.json")
    personal = metrics.part("personal")
    assert list(personal.parts("models")) == ["generic", "local", "own"]
    assert (personal["model"], personal["impostors"]) == ("own", "public")
    assert list(personal.parts("sites")) == ["A", "B", "C"]
    rates = [site["tar@1e-1"] for site in personal.parts("sites").values()]
    assert personal["tar@1e-1"] == pytest.approx(np.mean(rates))
    measured = {"1e-6": 0, "1e-5": 0, "1e-4": 0, "1e-3": 0, "1e-2": 0, "1e-1": 3}
    assert personal.part("sites_measured").rates("tar") == measured
    assert set(metrics.parts("generic.groups")) == {"group-0"}, "the other group has one person, hence no impostors"
    assert set(metrics.parts("generic.impostors")) == {"within", "across"}
    assert 0 <= metrics["generic.impostors.across.tar@1e-1"] <= 1
    assert metrics["threshold_source.fmr"] <= 0.05
    lines = (finished_run / "scores.csv").read_text().splitlines()
    assert lines[0] == "first,second,same,similarity"


@pytest.mark.long
def test_page_shows_the_measured_figures(finished_run: Path) -> None:
    page = write_report(finished_run).read_text()
    for words in ("The generic model, on the benchmark", "customised model", "held-out public people", "FAR on a log"):
        assert words in page
    assert "HTER" not in page


def test_finished_model_is_evaluated_on_other_people(finished_run: Path, sets: Sets, tmp_path: Path) -> None:
    recorded = read_metrics(finished_run / "metrics.json").part("generic")
    again = evaluate(open_model(finished_run), None, tmp_path, tmp_path / "again")
    assert again.part("generic") == recorded
    others = make_people(tmp_path / "others", "X", 77, identities=4)
    elsewhere = evaluate(open_model(finished_run), str(others), tmp_path)
    assert elsewhere["generic.identities"] == 4
    assert elsewhere["threshold"] == read_metrics(finished_run / "metrics.json")["threshold"]
    with refused("U", "identity set"):
        evaluate(open_model(finished_run), str(sets["U"]), tmp_path)
    with refused("--adapt", "attack"):
        evaluate(open_model(finished_run, adapt="gated"), None, tmp_path)


@pytest.mark.long
def test_finished_run_is_evaluated_by_other_rules_with_its_sites_own_models(
    finished_run: Path, sets: Sets, tmp_path: Path
) -> None:
    def evaluate_run(out: Path, how: dict[str, Any], training: Training | None = None) -> Metrics:
        recipe = recipe_of(tree(sets, "fedfr", training__rounds=2, evaluation__recognition=how))
        return run(Request(recipe, out, tmp_path / "cache", training=training), quiet_reporter())

    other = {"fmr": 0.05, "impostors": "pooled", "flip": True}
    again = evaluate_run(tmp_path / "again", other, adoption(finished_run))
    anew = evaluate_run(tmp_path / "anew", other)
    assert again.part("personal") == anew.part("personal")
    assert again.part("generic") == anew.part("generic")
    assert evaluate_run(tmp_path / "same", {"fmr": 0.05}, adoption(finished_run)).part("personal") == (
        read_metrics(finished_run / "metrics.json").part("personal")
    )
    shutil.copytree(finished_run, tmp_path / "without", ignore=shutil.ignore_patterns("checkpoints"))
    with refused("without", "checkpoint"):
        evaluate_run(tmp_path / "no", other, adoption(tmp_path / "without"))


def test_evaluation_uses_the_sites_own_parameters(finished_run: Path, sets: Sets, tmp_path: Path) -> None:
    """If the sites' own transformations erase all faces, no site replies."""
    shutil.copytree(finished_run, tmp_path / "blinded")
    for site in (tmp_path / "blinded" / "sites").iterdir():
        store = SiteStore(site, owner=RunDirectory(tmp_path / "blinded").owner(site.name))
        store.restore(2)
        store.save({name: value * (name != "own/Pi") for name, value in store.load().items()})
        store.commit(2)
    recipe = recipe_of(tree(sets, "fedfr", training__rounds=2, evaluation__recognition={"fmr": 0.05}))
    with failed(RunFailed, "0 of 3", "1 needed"):
        run(Request(recipe, tmp_path / "run", tmp_path, training=adoption(tmp_path / "blinded")), quiet_reporter())


def test_model_is_evaluated_on_a_list_of_pairs(finished_run: Path, tmp_path: Path) -> None:
    people = ("Ada", "Bo", "Cy", "Di")
    names = [f"{who}/{who}_{number:04d}.png" for who in people for number in (1, 2)]
    write_set(tmp_path / "set", names, [who for who in people for _ in (1, 2)], ["all"] * 8)
    lines = [f"{who}\t1\t2" for who in people] + ["Ada\t1\tBo\t2", "Cy\t1\tDi\t1", "Ada\t2\tCy\t2", "Di\t1\tEve\t1"]
    (tmp_path / "pairs.txt").write_text("\n".join([*lines, *lines]))
    listed = open_model(finished_run, pairs=tmp_path / "pairs.txt")
    figures = evaluate(listed, str(tmp_path / "set"), tmp_path, tmp_path / "out")
    result = figures.part("generic.listed_pairs")
    assert (result["pairs"], result["left_out"], result["folds"]) == (14, 2, 2)
    assert 0 <= result["accuracy"] <= 1
    assert "14 pairs of pairs.txt (2 left out: no such image)" in "\n".join(listed.setup.task.summarise(figures))
    rows = (tmp_path / "out" / "pairs.csv").read_text().splitlines()
    assert rows[1].startswith("Ada/Ada_0001.png,Ada/Ada_0002.png,1,1,")
    assert len(rows) == 15
    with refused("pairs.txt", "16", "Ada/Ada_0001"):
        evaluate(listed, str(make_people(tmp_path / "others", "X", 5)), tmp_path)


def test_benchmark_people_with_too_few_images_are_counted_and_reported(finished_run: Path, tmp_path: Path) -> None:
    splits = {"Ada": ["test"], "Bo": ["test", "train", "train"], "Cy": ["test", "train", "train"], "Di": ["train"] * 2}
    who = [name for name, own in splits.items() for _ in own]
    names = [f"{name}/{number}.png" for number, name in enumerate(who)]
    write_set(
        tmp_path / "set", names, who, ["all"] * len(who), splits=[split for own in splits.values() for split in own]
    )
    result = evaluate(open_model(finished_run), str(tmp_path / "set"), tmp_path)
    assert (result["generic.identities_without_pairs"], result["generic.identities_not_searched"]) == (1, 2)
    table = left_out_table(Metrics(read_metrics(finished_run / "metrics.json") | result))
    assert table is not None
    assert ("people of the benchmark with one image, so no genuine pair", "1") in table.rows


def test_an_empty_gallery_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gallery").mkdir()
    with refused("gallery", ".png"):
        list_input_pictures([tmp_path / "gallery"])


def test_faces_are_compared_at_the_sites_threshold(finished_run: Path, tmp_path: Path) -> None:
    from fedvisage.render.identities import Identities, photograph_person, photographs_of

    images, _ = photograph_person(photographs_of(Identities(images=2, size=112), 0), 112)
    (tmp_path / "gallery").mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "gallery" / f"{number}.png")
    Image.fromarray(np.full((112, 112, 3), 60, np.uint8)).save(tmp_path / "gallery" / "wall.png")
    gallery, recogniser = list_input_pictures([tmp_path / "gallery"]), open_model(finished_run)
    path, wall = tmp_path / "gallery" / "0.png", picture_at(tmp_path / "gallery" / "wall.png")
    face, alone = picture_at(path), list_input_pictures([path])
    answer = json.loads(json.dumps(compare_faces(recogniser, face, gallery).as_values()))
    matches = answer["matches"]
    assert matches[0]["path"].endswith("0.png")
    assert matches[0]["similarity"] == pytest.approx(1.0, abs=1e-5)
    assert matches[0]["decision"] == "same person"
    assert matches[-1]["reason"] == "no face found"
    for match in matches[:2]:
        assert (match["decision"] == "same person") == (match["similarity"] >= answer["threshold"]["similarity"])
    assert answer["threshold"]["fmr"] <= 0.05
    assert "same person" in compare_faces(recogniser, face, alone).lines()[-1]
    rejected = compare_faces(recogniser, wall, alone)
    assert [(match.decision, match.similarity) for match in rejected.matches] == [("rejected", None)]
    assert rejected.exit_code == 3
    with refused("--against", "image"):
        predict(recogniser, alone)
    with refused("--member", "--member"):
        compare_faces(recogniser, face, alone, member="A")


def test_several_faces_and_upside_down_faces_are_noted_and_compared_upright(finished_run: Path, tmp_path: Path) -> None:
    from fedvisage.render.identities import Identities, photograph_person, photographs_of

    (image,), _ = photograph_person(photographs_of(Identities(images=1, size=112), 0), 112)
    match = np.full((240, 480, 3), 120, np.uint8)
    match[20:220, 20:220] = cv2.resize(image, (200, 200))
    two = match.copy()
    two[80:220, 300:440] = cv2.resize(image, (140, 140))
    for name, picture in {"one": match, "two": two, "turned": match[::-1, ::-1]}.items():
        Image.fromarray(picture).save(tmp_path / f"{name}.png")
    face, gallery = picture_at(tmp_path / "two.png"), list_input_pictures([tmp_path])
    result = compare_faces(open_model(finished_run), face, gallery)
    matches = {Path(match.path).stem: match for match in result.matches}
    assert {name: (match.faces, match.notes) for name, match in matches.items()} == {
        "one": (1, ()),
        "two": (2, ("several faces",)),
        "turned": (1, ("upside down",)),
    }
    assert matches["turned"].similarity == pytest.approx(matches["one"].similarity, abs=1e-4)
    assert result.as_values()["of_face"] == {"notes": ("several faces",), "faces": 2, "reason": ""}
    assert "2 faces" in result.lines()[1]


def test_threshold_is_read_as_a_similarity(finished_run: Path) -> None:
    saved = saved_model.load(finished_run)
    assert saved.task == "recognition"
    threshold = saved.thresholds[""]
    assert isinstance(threshold, Threshold)
    assert -1 <= threshold.value <= 1
    assert "similarity" in json.loads((finished_run / "model.json").read_text())["thresholds"][""]


def test_attack_detector_compares_no_faces(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, training__rounds=1), tmp_path / "run")
    with refused("--against", "--against"):
        compare_faces(open_model(tmp_path / "run"), picture_at(tmp_path), InputPictures([]), crop="none")


def test_merged_people_are_evaluated_per_site(sets: Sets, tmp_path: Path) -> None:
    metrics = run_toy(tree(sets, "centralised", training__rounds=1), tmp_path / "run")
    assert list(metrics.parts("personal.sites")) == ["A", "B", "C"]
    assert metrics["personal.model"] == "generic"
