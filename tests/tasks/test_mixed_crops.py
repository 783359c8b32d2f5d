"""Sets with different crops are refused in runs, studies and evaluations."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import Command, refused
from tests.toy import NewRun, Sets, make_set, quiet_reporter, recipe_of, remove_seal, run_toy, tree, write_study

import fedvisage as fv
from fedvisage.base.progress import discard
from fedvisage.data.crops import OLD_DETECTOR, CropRecord
from fedvisage.faces.cropping import record_of
from fedvisage.runs.evaluate import evaluate
from fedvisage.runs.export.export import export
from fedvisage.runs.export.fuse import fuse
from fedvisage.runs.export.quantised import to_compare
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.checks import Checks
from fedvisage.tasks.finished_model import FinishedModel, open_model

FACE, WHOLE = record_of("face"), record_of("none")
OLD = CropRecord(how="detected", detector=OLD_DETECTOR, margin=1.4, alignment="box")


@pytest.fixture(scope="module")
def cropped_sets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Sets with crops of the present detector, and three kinds of targets."""
    root = tmp_path_factory.mktemp("cropped")
    kinds = {"A": FACE, "B": FACE, "C": FACE, "U": FACE, "W": WHOLE, "V": OLD}
    record = {name: make_set(root / name, name, seed) for seed, name in enumerate(kinds)}
    for name, crop in kinds.items():
        write_crop_record(record[name], crop)
    return record


def write_crop_record(path: Path, crop: CropRecord) -> None:
    settings = json.loads((path / "set.json").read_text())
    (path / "set.json").write_text(json.dumps(settings | {"crop": crop.model_dump()}))


@pytest.fixture(scope="module")
def finished_run(cropped_sets: Sets, new_run: NewRun) -> Path:
    return new_run(tree(cropped_sets, training__rounds=1))


def with_target(cropped_sets: Sets, name: str) -> dict[str, object]:
    return tree({**cropped_sets, "U": cropped_sets[name]}, training__rounds=1)


def test_target_with_other_crops_is_refused_before_training(cropped_sets: Sets, tmp_path: Path) -> None:
    with refused("data.target", "data.sites.A", "--allow-mixed-crops"):
        run_toy(with_target(cropped_sets, "W"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_site_with_other_crops_is_refused_by_name(cropped_sets: Sets, tmp_path: Path) -> None:
    with refused("data.sites.B", "data.sites.A", "--allow-mixed-crops"):
        run_toy(tree({**cropped_sets, "B": cropped_sets["W"]}), tmp_path / "run")


def test_public_people_with_other_crops_are_refused_by_name(sets: Sets, tmp_path: Path) -> None:
    root = sets["A"].parent
    places = {name: Path(shutil.copytree(root / f"people-{name}", tmp_path / f"people-{name}")) for name in "ABCUP"}
    aligned = record_of("face", aligned=True)
    for place in places.values():
        write_crop_record(place, aligned)
    write_crop_record(places["P"], CropRecord(how="detected", detector=OLD_DETECTOR, rotation=True, alignment="points"))
    with refused("data.public", "earlier", "--allow-mixed-crops"):
        run_toy(tree({name: tmp_path / name for name in "ABCU"}, "fedfr"), tmp_path / "run")


@pytest.mark.long
def test_allowed_mixture_gives_the_same_bytes(cropped_sets: Sets, tmp_path: Path) -> None:
    recipe = recipe_of(with_target(cropped_sets, "W"))
    run(Request(recipe, tmp_path / "mixed", tmp_path, checks=Checks(allow_mixed_crops=True)), quiet_reporter())
    settings = json.loads((cropped_sets["W"] / "set.json").read_text())
    shutil.copytree(cropped_sets["W"], tmp_path / "bare")
    settings.pop("crop")
    (tmp_path / "bare/set.json").write_text(json.dumps(settings))
    run_toy(with_target({**cropped_sets, "W": tmp_path / "bare"}, "W"), tmp_path / "run")
    for name in ("model.safetensors", "model.json", "ledger.jsonl", "scores.csv"):
        mixed, plain = ((tmp_path / run / name).read_bytes() for run in ("mixed", "run"))
        assert mixed.replace(str(cropped_sets["W"]).encode(), b"") == plain.replace(
            str(tmp_path / "bare").encode(), b""
        )


def test_model_records_its_training_crops(finished_run: Path) -> None:
    assert json.loads((finished_run / "model.json").read_text())["crops"] == [FACE.model_dump()]
    assert open_model(finished_run).saved.crops == (FACE,)
    assert open_model(finished_run).notices == []


def test_model_is_evaluated_on_other_crops_only_if_allowed(
    cropped_sets: Sets, finished_run: Path, tmp_path: Path
) -> None:
    model = open_model(finished_run)
    with refused(cropped_sets["W"], "model", "--allow-mixed-crops"):
        evaluate(model, str(cropped_sets["W"]), tmp_path)
    assert evaluate(model, str(cropped_sets["W"]), tmp_path, checks=Checks(allow_mixed_crops=True))["target"] == "W"


def with_crops(finished_run: Path, *crops: CropRecord) -> FinishedModel:
    model = open_model(finished_run)
    return replace(model, saved=replace(model.saved, crops=crops))


def test_graph_is_compared_on_sets_of_any_trained_crops(cropped_sets: Sets, finished_run: Path, tmp_path: Path) -> None:
    mixed = with_crops(finished_run, FACE, WHOLE)
    for name in "AW":
        assert to_compare(mixed, str(cropped_sets[name]), tmp_path, discard)[1] == name
    with refused("--data", "trained", "import") as caught:
        to_compare(mixed, str(cropped_sets["V"]), tmp_path, discard)
    assert "--allow-mixed-crops" not in str(caught.value)


def test_graph_is_compared_on_the_runs_target_of_other_crops(finished_run: Path, tmp_path: Path) -> None:
    assert to_compare(with_crops(finished_run, WHOLE), None, tmp_path, discard)[1] == "U"


@pytest.mark.long
def test_model_of_mixed_crops_is_fused_on_sets_of_any_of_them(
    cropped_sets: Sets, finished_run: Path, tmp_path: Path
) -> None:
    member = tmp_path / "member"
    export(with_crops(finished_run, FACE, WHOLE), member, cache=tmp_path)
    factors: dict[str, Any] = {"weights": [0.25, 0.125], "scales": [4.0, 4.0], "cache": tmp_path}
    fuse([member, member], tmp_path / "sum", on=[str(cropped_sets[name]) for name in "AW"], **factors)
    with refused(cropped_sets["V"], "trained", "import") as caught:
        fuse([member, member], tmp_path / "other", on=[str(cropped_sets["V"])], **factors)
    assert "--allow-mixed-crops" not in str(caught.value)


def test_command_line_has_the_option_and_prints_notes(cropped_sets: Sets, finished_run: Path, command: Command) -> None:
    words = ("evaluate", str(finished_run), "--data", str(cropped_sets["V"]), "--json")
    code, _, err = command(*words)
    assert code == 2
    assert "--allow-mixed-crops" in err
    code, out, err = command(*words, "--allow-mixed-crops")
    assert not code
    assert json.loads(out)["target"] == "V"
    assert "earlier versions" in err
    assert str(cropped_sets["V"]) in err


@pytest.mark.long
def test_runs_and_studies_have_the_option(cropped_sets: Sets, tmp_path: Path) -> None:
    content = with_target(cropped_sets, "W")
    with refused("data.target", "data.sites.A"):
        fv.run(content, out=tmp_path / "refused", quiet=True)
    done = fv.run(content, out=tmp_path / "run", quiet=True, allow_mixed_crops=True)
    assert done.metrics["target"] == "U"
    del content["data"]
    places = {name: str(cropped_sets[name]) for name in "ABW"}
    study = {
        "title": "mixed",
        "recipe": content,
        "sets": places,
        "targets": ["W"],
        "rows": {"FedPAD": {}},
        "seeds": [0],
    }
    write_study(study, tmp_path)
    with refused("data.target", "data.sites.A"):
        fv.study(tmp_path / "study.yaml", out=tmp_path / "study", quiet=True, cache=tmp_path)
    studied = fv.study(
        tmp_path / "study.yaml", out=tmp_path / "study", quiet=True, cache=tmp_path, allow_mixed_crops=True
    )
    assert "FedPAD" in str(studied)


@pytest.mark.long
def test_set_of_the_earlier_detector_causes_a_notice(
    cropped_sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fv.run(with_target(cropped_sets, "V"), out=tmp_path / "run", allow_mixed_crops=True)
    (line,) = [line for line in capsys.readouterr().out.replace("\n", " ").split("data.target: ") if "earlier" in line]
    assert "import it again" in line


@pytest.fixture
def without_record(finished_run: Path, tmp_path: Path) -> Path:
    """Return a model without crop records."""
    path = remove_seal(Path(shutil.copytree(finished_run, tmp_path / "old")))
    settings = json.loads((path / "model.json").read_text())
    del settings["crops"]
    (path / "model.json").write_text(json.dumps(settings))
    return path


def recipe_says(path: Path, sites: Mapping[str, object]) -> None:
    settings = json.loads((path / "model.json").read_text())
    settings["recipe"]["data"]["sites"] = {name: str(entry) for name, entry in sites.items()}
    (path / "model.json").write_text(json.dumps(settings))


def test_model_of_outdated_crops_causes_a_notice(cropped_sets: Sets, without_record: Path) -> None:
    recipe_says(without_record, {"A": cropped_sets["A"], "V": cropped_sets["V"]})
    with pytest.warns(UserWarning, match="crops"):
        fv.open(without_record)


def test_model_without_its_sets_causes_a_cautious_notice(without_record: Path) -> None:
    recipe_says(without_record, {"A": "its own"})
    (line,) = open_model(without_record).notices
    assert "may have been" in line
    assert str(without_record) in line


def test_model_of_rendered_faces_causes_no_notice(without_record: Path) -> None:
    recipe_says(without_record, {"A": "synth: O subjects=4", "B": "synth: C only: attacks=print"})
    assert open_model(without_record).notices == []


@pytest.mark.parametrize(
    "wrong", [3, {"how": "whole"}, ["whole"], [{"how": "guessed"}], [{"how": "whole", "margin": -1}]]
)
def test_malformed_crop_record_ends_in_one_line(without_record: Path, wrong: object) -> None:
    path = without_record / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"crops": wrong}))
    with refused(path, "settings"):
        open_model(without_record)
