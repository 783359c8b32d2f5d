"""Calibration of an export to one camera with genuine pictures."""

import json
import math
import os
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image
from tests.commands import call, output_of
from tests.refusals import refused

from fedvisage.device import Exported
from fedvisage.device.calibration import CalibrationResult, calibrate
from fedvisage.device.exported import GRAPH, INT8_GRAPH, point_of, read_config, write_export
from fedvisage.device.fused import required_threshold
from fedvisage.device.predict import list_input_pictures, predict
from fedvisage.metrics.calibration import K, threshold_for_camera
from fedvisage.metrics.threshold import Threshold

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def bright(pad: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export whose logit is (mean brightness − 128) / 16."""
    out = tmp_path_factory.mktemp("bright") / "export"
    shutil.copytree(pad, out)
    size = read_config(pad).float32.description.size
    nodes = [
        helper.make_node("Cast", ["images"], ["values"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["values", "axes"], ["mean"], keepdims=0),
        helper.make_node("Sub", ["mean", "grey"], ["difference"]),
        helper.make_node("Div", ["difference", "scale"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["score"]),
    ]
    constants = [
        helper.make_tensor("axes", TensorProto.INT64, [3], [1, 2, 3]),
        helper.make_tensor("grey", TensorProto.FLOAT, [], [128.0]),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [16.0]),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", size, size, 3])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in ("score", "logit")]
    graph = helper.make_graph(nodes, "brightness", [images], outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, out / GRAPH)
    config = read_config(pad)
    write_export(out, config.float32.description, curves=config.curves)
    return out


def add_picture(place: Path, name: str, brightness: int, size: int) -> None:
    noise = np.random.default_rng(brightness).integers(-30, 31, (size, size, 3))
    Image.fromarray((brightness + noise).astype(np.uint8)).save(place / f"{name}.png")


@pytest.fixture(scope="module")
def live(bright: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight pictures that differ in light, with logits from about 1 to 3."""
    place = tmp_path_factory.mktemp("live")
    for number in range(8):
        add_picture(place, str(number), 145 + 5 * number, Exported.open(bright).size)
    return place


def run(bright: Path, live: Path, out: Path, at: str | None = "bpcer=2%") -> CalibrationResult:
    return calibrate(Exported.open(bright), list_input_pictures([live]), at, out, crop="none")


@pytest.mark.parametrize(
    ("detector", "place", "keyword"), [("dlib", "--detector", "mtcnn"), ("yunet", "--detector yunet", "model get")]
)
def test_calibration_finds_faces_with_the_wanted_detector(
    detector: str, place: str, keyword: str, bright: Path, live: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """YuNet is not in an empty cache, which the refusal says."""
    monkeypatch.setenv("FEDVISAGE_CACHE", str(tmp_path / "cache"))
    with refused(place, keyword):
        calibrate(Exported.open(bright), list_input_pictures([live]), None, tmp_path / "calibrated", detector=detector)


def logits_of(bright: Path, live: Path) -> np.ndarray:
    images = predict(Exported.open(bright), list_input_pictures([live]), crop="none").images
    return np.array([image.logit for image in images])


def test_calibrated_export_has_a_new_threshold_and_the_same_scores(bright: Path, live: Path, tmp_path: Path) -> None:
    result = run(bright, live, tmp_path / "door")
    after = required_threshold(Exported.open(tmp_path / "door"))
    logits = logits_of(bright, live)
    expected = threshold_for_camera(logits, result.before, 0.02)
    assert after.value == expected.value
    assert (after.far, after.frr) == (None, None), "no site has this threshold"
    assert expected.weight == 8 / (8 + K)
    assert (logits_of(tmp_path / "door", live) == logits).all()
    assert (tmp_path / "door" / WEIGHTS).read_bytes() == (bright / WEIGHTS).read_bytes()


def test_pictures_count_whose_names_differ_in_undecodable_bytes(bright: Path, live: Path, tmp_path: Path) -> None:
    place = tmp_path / "live"
    place.mkdir()
    for number, picture in enumerate(sorted(live.iterdir())):
        shutil.copyfile(picture, place / os.fsdecode(bytes([0xE0 + number]) + b".png"))
    assert run(bright, place, tmp_path / "door").camera.pictures == 8


def test_threshold_stays_unless_it_rejects_too_many_genuine_pictures(bright: Path, live: Path, tmp_path: Path) -> None:
    logits = logits_of(bright, live)
    # Student's quantile at 80 % with 7 degrees of freedom, from a printed table.
    fifth = logits.mean() - 0.896 * logits.std(ddof=1) * (1 + 1 / 8) ** 0.5
    for name, own, expected in (
        ("low", fifth - 0.5, fifth - 0.5),
        ("high", fifth + 0.5, 0.8 * fifth + 0.2 * (fifth + 0.5)),
    ):
        model = tmp_path / name
        shutil.copytree(bright, model)
        config = read_config(model)
        threshold = replace(required_threshold(Exported.open(model)), value=float(own))
        description = config.float32.description.model_copy(update={"threshold": point_of(threshold)})
        write_export(model, description, curves=config.curves)
        result = run(model, live, tmp_path / f"{name}-door", None)
        assert result.threshold.value == pytest.approx(expected, abs=2e-3)
        assert ("as before" in result.lines()[0]) is (name == "low")
        source = "source-eer (checked with 8 genuine pictures of one camera)"
        aimed = "aimed at BPCER 20% (8 genuine pictures of one camera; APCER unknown)"
        assert result.threshold.rule == (source if name == "low" else aimed)
        reason = "the model's own threshold has a weight of 20%; more pictures lower this"
        assert any(line.endswith(reason) for line in result.lines()) is (name == "high")


def test_results_state_unknown_apcer_and_the_number_of_pictures(bright: Path, live: Path, tmp_path: Path) -> None:
    lines = run(bright, live, tmp_path / "door").lines()
    point = required_threshold(Exported.open(tmp_path / "door"))
    for text in ("\n".join(lines), point.operating_point, (tmp_path / "door" / "README.md").read_text()):
        assert "8 genuine pictures" in text
        assert "APCER unknown" in text
        assert re.search(r"these pictures: \d+% rejected \(95%: \d+% to \d+%\)", text)
        assert re.search(r"further pictures: (?:<1|\d+)% expected \(95%: \d+% to \d+%\)", text)
    predictions = predict(Exported.open(tmp_path / "door"), list_input_pictures([live]), crop="none")
    assert "at the sites" not in "\n".join(predictions.lines()), "no site has this threshold"


def lower(model: Path, out: Path, at: str | None = None) -> Path:
    """Copy an export with a threshold that rejects no genuine picture; ``at`` chooses its rule and its rates."""
    shutil.copytree(model, out)
    config, opened = read_config(out), Exported.open(model)
    threshold = replace(required_threshold(opened if at is None else opened.at(at)), value=-9.0)
    description = config.float32.description.model_copy(update={"threshold": point_of(threshold)})
    write_export(out, description, curves=config.curves)
    return out


def test_kept_threshold_keeps_its_rates_at_the_sites(bright: Path, live: Path, tmp_path: Path) -> None:
    for name, at in (("eer", None), ("wished", "bpcer=50%")):
        source = lower(bright, tmp_path / name, at)
        run(source, live, tmp_path / f"{name}-door", None)
        before, after = (required_threshold(Exported.open(path)) for path in (source, tmp_path / f"{name}-door"))
        assert (after.value, after.far, after.frr) == (before.value, before.far, before.frr)
        assert before.estimates.items() < after.estimates.items()
        inputs = list_input_pictures([live])
        (line, *_) = predict(Exported.open(tmp_path / f"{name}-door"), inputs, crop="none").lines()
        assert f"{before.rule} (checked with 8 genuine pictures of one camera)" in line
        assert "these pictures: 0% rejected" in line
        for text in (f"; on held-out people of the sites, {before.rule}", *map(str, before.estimates.values())):
            assert (text in line) is (name == "wished")
        assert ("; at the sites it accepts" in line) is (name == "eer")


@pytest.mark.parametrize("at", [None, "bpcer=2%"], ids=["kept", "moved"])
def test_calibrated_export_is_not_calibrated_again(bright: Path, live: Path, tmp_path: Path, at: str | None) -> None:
    run(lower(bright, tmp_path / "low"), live, tmp_path / "door", at)
    with refused(tmp_path / "door", "calibrated", "export"):
        run(tmp_path / "door", live, tmp_path / "again", at)
    assert not (tmp_path / "again").exists()


@pytest.fixture(scope="module")
def both(bright: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export with a second graph in the place of the int8 one, whose rates are those of one set."""
    out = shutil.copytree(bright, tmp_path_factory.mktemp("both") / "export")
    shutil.copy(out / GRAPH, out / INT8_GRAPH)
    config, threshold = read_config(out), Threshold(0.5, "source-eer", 0.0, 1 / 3)
    int8 = config.float32.description.model_copy(update={"arithmetic": "int8", "threshold": point_of(threshold)})
    write_export(out, config.float32.description, int8, curves=config.curves)
    return out


def test_command_states_that_the_int8_graph_is_left_out(both: Path, bright: Path, live: Path, tmp_path: Path) -> None:
    for model, expected in ((both, True), (bright, False)):
        out = tmp_path / model.parent.name
        result = call("calibrate", model, "--live", live, "--out", out, "--crop=none", "--quiet", "--json")
        assert result.exit_code == 0, result.output
        assert ("int8" in result.stderr) is expected
        assert not (out / INT8_GRAPH).exists()


def test_rates_of_an_int8_graph_are_those_of_its_calibration_set(both: Path, live: Path) -> None:
    for int8, place in ((True, "on the calibration set"), (False, "at the sites")):
        (line, *_) = predict(Exported.open(both, int8=int8), list_input_pictures([live]), crop="none").lines()
        assert f"; {place} it accepts " in line


def test_command_writes_the_export_and_prints_json(bright: Path, live: Path, tmp_path: Path) -> None:
    words = ("calibrate", bright, "--live", live, "--at=bpcer=5%", "--out", tmp_path / "door", "--crop=none", "--quiet")
    values = json.loads(output_of(*words, "--json"))
    assert values["pictures"] == 8
    point = required_threshold(Exported.open(tmp_path / "door"))
    assert values["threshold"]["logit"] == point.value
    assert values["threshold"]["estimates"] == {name: asdict(rates) for name, rates in point.estimates.items()}
    before = required_threshold(Exported.open(bright)).value
    assert values["threshold_before"] == {"logit": before, "probability": pytest.approx(1 / (1 + math.exp(-before)))}


def test_calibrated_export_of_an_earlier_version_still_opens(bright: Path, live: Path, tmp_path: Path) -> None:
    run(bright, live, tmp_path / "door")
    config = read_config(tmp_path / "door")
    rule = "bpcer of at most 20%, estimated from 8 genuine pictures of one camera; APCER unknown"
    threshold = replace(required_threshold(Exported.open(tmp_path / "door")), rule=rule)
    description = config.float32.description.model_copy(update={"threshold": point_of(threshold)})
    write_export(tmp_path / "door", description, curves=config.curves)
    assert required_threshold(Exported.open(tmp_path / "door")) == threshold


def test_few_and_similar_pictures_are_refused(bright: Path, live: Path, tmp_path: Path) -> None:
    place = shutil.copytree(live, tmp_path / "live")
    for path in sorted(place.iterdir())[4:]:
        path.unlink()
    with refused("--live", "4", "5"):
        run(bright, place, tmp_path / "door")
    picture = np.asarray(Image.open(place / "0.png")).astype(int)
    for number in range(8):  # the same picture, with the noise of a compression
        noise = np.random.default_rng(number).integers(-1, 2, picture.shape)
        Image.fromarray(np.clip(picture + noise, 0, 255).astype(np.uint8)).save(place / f"{number}.png")
    with refused("--live", "1", "8"):
        run(bright, place, tmp_path / "door")
    assert not (tmp_path / "door").exists()


def test_attack_among_the_pictures_is_named_and_counts(bright: Path, live: Path, tmp_path: Path) -> None:
    place = shutil.copytree(live, tmp_path / "live")
    add_picture(place, "screen", 60, Exported.open(bright).size)
    result = run(bright, place, tmp_path / "door")
    assert result.outliers == (str(place / "screen.png"),)
    assert any("warning: 1 picture counts" in line and "screen.png" in line for line in result.lines())
    assert result.threshold.value == threshold_for_camera(logits_of(bright, place), result.before, 0.02).value


def test_pictures_that_do_not_count_are_counted_by_reason(bright: Path, live: Path, tmp_path: Path) -> None:
    place = shutil.copytree(live, tmp_path / "live")
    shutil.copy(place / "0.png", place / "copy.png")
    (place / "empty.png").write_bytes(b"")
    (line,) = [line for line in run(bright, place, tmp_path / "door").lines() if "left out" in line]
    assert line.startswith("8 of 10 files used, 2 left out: ")
    for reason in ("an empty file", "repeats another picture (1)"):
        assert reason in line


@pytest.mark.parametrize("at", ["apcer=5%", "eer"])
def test_only_bpcer_can_be_calibrated(bright: Path, live: Path, tmp_path: Path, at: str) -> None:
    with refused("--at", "bpcer=2%"):
        run(bright, live, tmp_path / "door", at)
