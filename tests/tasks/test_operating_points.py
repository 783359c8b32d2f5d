"""The error-rate curves that a run keeps, and operating points of runs and exports."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.refusals import check_output, refused
from tests.toy import SIZE, NewRun, Sets, make_set, run_toy, tree
from typer.testing import CliRunner, Result

import fedvisage as fv
from fedvisage.cli import app
from fedvisage.device import Exported
from fedvisage.device.fused import at_points
from fedvisage.federation.record.ledger import read_lines
from fedvisage.metrics.operating_point import ALL
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.heldout_counts import read_counts

PEOPLE = 30
"""Held-out people of each site; with three sites, a rate of 1/30 needs 90 people."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three sites of thirty held-out people; only two sites hold out replays."""
    place = tmp_path_factory.mktemp("many")
    kinds = {"A": ("bonafide", "print", "replay"), "B": ("bonafide", "print", "replay"), "C": ("bonafide", "print")}
    sets = {
        name: make_set(place / name, name, seed, subjects=3 * PEOPLE, species=species, frames=1)
        for seed, (name, species) in enumerate(kinds.items())
    }
    return sets | {"U": make_set(place / "U", "U", 9)}


@pytest.fixture(scope="module")
def run(many: Mapping[str, Path], new_run: NewRun) -> Path:
    return new_run(tree(many, training__rounds=1))


@pytest.fixture(scope="module")
def export_directory(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("points") / "export"
    call("export", run, out, "--quiet")
    return out


@pytest.fixture(scope="module")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, rng = tmp_path_factory.mktemp("crops"), np.random.default_rng(0)
    for number in range(4):
        image = rng.integers(20 * number, 20 * number + 100, (SIZE, SIZE, 3), dtype=np.uint8)
        Image.fromarray(image).save(place / f"{number}.png")
    return place


def call(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == code or isinstance(result.exception, fv.UserError), result.output
    return result


def refusal(*words: object) -> fv.UserError:
    error = CliRunner().invoke(app, list(map(str, words))).exception
    assert isinstance(error, fv.UserError), error
    return error


def test_a_run_keeps_the_mean_of_the_sites_rates_and_no_site_s_counts(run: Path) -> None:
    curves = open_model(run).saved.curves
    assert curves is not None
    assert set(curves.accepted) == {ALL, "print"}, "two sites hold out replays"
    assert curves.rejected.people == curves.accepted["print"].people == 3 * PEOPLE
    # The histograms of the threshold exchange are the oracle: both count the same scores.
    sites = read_counts(run).values()
    edges = np.linspace(-20, 20, 4097)
    for threshold, rate in list(zip(curves.thresholds, curves.rejected.rates, strict=True))[::7]:
        bins = int(np.searchsorted(edges, threshold))
        exact = np.mean([counts[1, :bins].sum() / counts[1].sum() for counts in sites])
        assert exact - 1e-9 <= rate <= 1.1 * exact + 1e-9
    kept = json.loads((run / "model.json").read_text())["curves"]
    assert set(kept) == {"thresholds", "rejected", "accepted"}


def test_a_federation_can_refuse_curves_which_changes_neither_model_nor_scores(
    many: Mapping[str, Path], run: Path, tmp_path: Path
) -> None:
    run_toy(tree(many, training__rounds=1, federation__rates="threshold"), tmp_path / "run")
    files = ("model.safetensors", "scores.csv")
    assert [(tmp_path / "run" / name).read_bytes() for name in files] == [(run / name).read_bytes() for name in files]
    assert open_model(tmp_path / "run").saved.curves is None
    sent = [{line["field"] for line in read_lines(path / "ledger.jsonl")} for path in (run, tmp_path / "run")]
    assert sent[0] - sent[1] == {"by_type", "people"}


@pytest.mark.parametrize(
    ("method", "left_out", "keywords"),
    [("fedpad", ("C",), ("3", "2", "threshold")), ("single", (), ("one model per site",))],
)
def test_a_curve_of_single_sites_is_refused_before_training(
    many: Mapping[str, Path], tmp_path: Path, method: str, left_out: tuple[str, ...], keywords: tuple[str, ...]
) -> None:
    settings = tree(many, method, federation__rates="curve")
    settings["data"]["sites"] = {name: path for name, path in settings["data"]["sites"].items() if name not in left_out}
    with refused("recipe.federation.rates", *keywords):
        run_toy(settings, tmp_path / "run")


def test_python_command_line_and_export_decide_at_the_same_point(
    run: Path, export_directory: Path, crops: Path
) -> None:
    outputs = [
        json.loads(call("predict", model, crops, "--crop", "none", "--json", "--quiet", "--at", "bpcer=5%").stdout)
        for model in (run, export_directory)
    ]
    thresholds: list[dict[str, Any]] = [output["threshold"] for output in outputs]
    assert thresholds[0] == thresholds[1]
    assert thresholds[0]["rule"] == "bpcer=5%"
    assert set(thresholds[0]["estimates"]) == {"BPCER", "APCER", "APCER print"}
    estimate = thresholds[0]["estimates"]["BPCER"]
    assert estimate["low"] <= estimate["rate"] <= estimate["high"]
    model = fv.open(run, at="bpcer=5%")
    assert model.threshold.value == thresholds[0]["logit"]
    decisions = [[image["decision"] == "live" for image in output["images"]] for output in outputs]
    images = np.stack([np.asarray(Image.open(path)) for path in sorted(crops.iterdir())])
    assert decisions[0] == decisions[1] == model.is_live(images).tolist()


def test_predict_prints_the_point_with_its_interval(run: Path, crops: Path) -> None:
    lines = call("predict", run, crops, "--crop", "none", "--quiet", "--at", "eer").stdout.splitlines()
    assert lines[0].startswith("threshold: score")
    assert "eer: BPCER" in lines[0]
    assert "95%" in lines[0]


@pytest.mark.long
def test_an_export_at_a_point_carries_it_in_config_card_and_pipeline(run: Path, tmp_path: Path) -> None:
    call("export", run, tmp_path / "strict", "--quiet", "--at", "apcer=10%")
    model = Exported.open(tmp_path / "strict")
    assert model.threshold == open_model(run, at="apcer=10%").threshold
    card = (tmp_path / "strict" / "README.md").read_text()
    assert "apcer=10%" in card
    assert "95%" in card
    assert model.at("bpcer=5%").threshold == open_model(run, at="bpcer=5%").threshold


def test_evaluate_uses_the_point_of_the_option_and_of_an_opened_model(run: Path) -> None:
    figures = json.loads(call("evaluate", run, "--json", "--quiet", "--at", "bpcer=5%").stdout)
    model = fv.open(run, at="bpcer=5%")
    assert figures["threshold"] == model.threshold.value
    assert figures["operating_point"] == model.threshold.operating_point
    assert fv.evaluate(model)["threshold"] == model.threshold.value


def test_an_export_that_was_opened_at_a_point_is_evaluated_there(export_directory: Path) -> None:
    opened = fv.open(export_directory, at="bpcer=5%")
    expected = opened.threshold.value
    assert expected != Exported.open(export_directory).threshold.value  # type: ignore[union-attr]
    figures = fv.evaluate(opened, "synth: M subjects=4 frames=1 size=32", allow_mixed_crops=True)
    assert figures["threshold"] == expected


def test_points_without_support_are_refused_with_the_rate_that_has_it(
    run: Path, export_directory: Path, crops: Path
) -> None:
    for words in (
        ("predict", run, crops),
        ("predict", export_directory, crops),
        ("evaluate", run),
        ("export", run, export_directory.parent / "none"),
        ("threshold", export_directory),
    ):
        error = refusal(*words, "--at", "bpcer=1%")
        check_output(f"fedvisage: {error}", "--at", "bpcer=1%", "300", "90", "bpcer=3.4%")
    with refused("at", "300"):
        fv.open(run, at="bpcer=1%")


def test_a_model_without_curves_is_refused_with_its_directory(sets: Sets, tmp_path: Path) -> None:
    settings = tree(sets, training__rounds=1)
    settings["data"]["sites"].pop("C")
    run_toy(settings, tmp_path / "run")
    for words in (("threshold", tmp_path / "run"), ("predict", tmp_path / "run", tmp_path, "--at", "eer")):
        Image.new("RGB", (SIZE, SIZE)).save(tmp_path / "one.png")
        check_output(f"fedvisage: {refusal(*words)}", "run", "federation.rates")


def test_threshold_prints_points_and_people_and_draws_the_curves(
    run: Path, export_directory: Path, tmp_path: Path
) -> None:
    for model, name in ((run, "curve.svg"), (export_directory, "curve.png")):
        text = call("threshold", model, "--out", tmp_path / name).stdout
        assert "bpcer=5%" in text
        assert "too few for" in text
        assert "bpcer=1%" in text
        assert f"curves: {tmp_path / name}" in text
    assert "<svg" in (tmp_path / "curve.svg").read_text()
    assert Image.open(tmp_path / "curve.png").size[0] > 400
    values = json.loads(call("threshold", run, "--json").stdout)
    assert values["curves"] == json.loads((run / "model.json").read_text())["curves"]
    assert "bpcer=1%" in values["unsupported"]
    assert str(refusal("threshold", run, "--out", tmp_path / "curve.txt")).endswith(".svg or .png")


def test_each_point_applies_to_the_model_of_its_task(export_directory: Path) -> None:
    model = Exported.open(export_directory)
    pad, recognition = at_points(model, None, ["bpcer=5%"])
    assert pad is not None
    assert pad.threshold == model.at("bpcer=5%").threshold
    assert recognition is None
    with refused("--at", "two"):
        at_points(model, None, ["bpcer=5%", "eer"])
    with refused("--at", "recognition"):
        at_points(model, None, ["fmr=1e-3"])


def test_a_recognition_model_keeps_curves_over_all_pairs_with_people_and_pairs_of_people(
    sets: Sets, tmp_path: Path
) -> None:
    run_toy(tree(sets, "fine-tune", training__rounds=1), tmp_path / "run")
    curves = open_model(tmp_path / "run").saved.curves
    assert curves is not None
    # Each of three sites compares its three people with the two held-out public ones.
    assert curves.rejected.people == 9
    assert curves.accepted[ALL].people == 18
    total = np.sum([*read_counts(tmp_path / "run").values()], axis=0)
    edges = np.linspace(-1, 1, 4097)
    for threshold, rate in list(zip(curves.thresholds, curves.accepted[ALL].rates, strict=True))[::5]:
        exact = total[0, int(np.searchsorted(edges, threshold)) :].sum() / total[0].sum()
        assert exact - 1e-9 <= rate <= 1.1 * exact + 1e-9
    model = fv.open(tmp_path / "run", at="fmr=20%")
    assert set(model.threshold.estimates) == {"FMR", "FNMR"}
    with refused("at", "30,000"):
        fv.open(tmp_path / "run", at="fmr=1e-4")
