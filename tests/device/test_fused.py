"""Fused models: the sum of members' log-odds at crops of their own, in every place that opens an export."""

import csv
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score
from tests.commands import call, output_of
from tests.device.exports import copy_export, with_margin
from tests.refusals import refused
from tests.toy import make_set

import fedvisage as fv
from fedvisage.data.prepared import PreparedSet
from fedvisage.device import Exported, Fused, Pipeline, Settings, open_export
from fedvisage.device.exported import CONFIG, GRAPH, OperatingPoint, RateEstimate, entry_of, read_description
from fedvisage.device.fused import FusedConfig, digest_of, required_threshold, write_fused
from fedvisage.device.predict import Predictions, face_cropper
from fedvisage.device.service.app import open_engine
from fedvisage.device.web.site import RuntimeFiles, page_files
from fedvisage.faces.cropping import CLOSE
from fedvisage.metrics.threshold import EDGES, OF_PICTURES, histogram, threshold_from_histograms
from fedvisage.runs.export.fuse import FusionResult, fuse, spread_of
from fedvisage.tasks.heldout_counts import read_counts

MARGINS = (1.4, 2.7, 2.7)
WEIGHTS = (1.0, 0.5, 0.25)
SCALES = (2.0, 3.0, 0.5)
RATE = RateEstimate(rate=0.02, low=0.0, high=0.1)


@pytest.fixture(scope="module")
def members(pad: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One network at crops of two margins, twice at the wider one."""
    root = tmp_path_factory.mktemp("members")
    return [with_margin(pad, root / str(number), margin) for number, margin in enumerate(MARGINS)]


@pytest.fixture(scope="module")
def fused_export(members: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fused") / "model"
    factors = [f"--weight={weight}" for weight in WEIGHTS] + [f"--scale={scale}" for scale in SCALES]
    result = call("fuse", *members, *factors, "--out", out)
    assert result.exception is None, result.exception
    assert "--on SET" in result.stderr
    return out


@pytest.fixture
def copy(fused_export: Path, tmp_path: Path) -> Path:
    shutil.copytree(fused_export, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture(scope="module")
def photo(scene: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photos") / "one.png"
    Image.fromarray(scene).save(path)
    return path


PLAIN = Settings(sharpness=0)


def logit_of(export: Path, picture: np.ndarray) -> float:
    """Return the logit of the only face of a picture."""
    verdict = Pipeline(export, settings=PLAIN).check(picture).faces[0].pad
    assert verdict is not None
    assert verdict.logit is not None
    return verdict.logit


def test_score_is_the_weighted_sum_of_members_at_their_own_crops(
    fused_export: Path, members: list[Path], scene: np.ndarray
) -> None:
    alone = [logit_of(member, scene) for member in members]
    together = Pipeline(fused_export, settings=PLAIN).check(scene).faces[0].pad
    assert together is not None
    factors = zip(alone, WEIGHTS, SCALES, strict=True)
    expected = sum(weight * logit / scale for logit, weight, scale in factors)
    assert together.logit == pytest.approx(expected, rel=1e-9)
    assert together.threshold_logit == 0
    assert together.decision == ("bona_fide" if expected >= 0 else "attack")
    assert alone[0] != alone[1]


def test_members_of_equal_crops_share_one(fused_export: Path) -> None:
    assert [shape.margin for shape in open_export(fused_export).shapes] == [1.4, 2.7]


def test_face_is_refused_with_strict_if_one_crop_has_little_context(
    fused_export: Path, members: list[Path], scene: np.ndarray, tmp_path: Path
) -> None:
    tight = np.ascontiguousarray(scene[150:290, 260:400])
    settings = Settings(sharpness=0, enlarge=True, strict=True)
    assert Pipeline(members[0], settings=settings).check(tight).reasons == ()
    assert Pipeline(fused_export, settings=settings).check(tight).reasons == (CLOSE,)
    Image.fromarray(tight).save(tmp_path / "tight.png")
    output = output_of("predict", fused_export, tmp_path / "tight.png", "--strict", "--json")
    (image,) = json.loads(output)["images"]
    assert (image["decision"], image["reason"]) == ("rejected", CLOSE)


def test_predict_and_watch_give_the_score_of_the_pipeline(fused_export: Path, photo: Path, scene: np.ndarray) -> None:
    expected = pytest.approx(logit_of(fused_export, scene))
    (image,) = json.loads(output_of("predict", fused_export, photo, "--json"))["images"]
    assert image["logit"] == expected
    line = json.loads(output_of("watch", photo, "--pad", fused_export, "--sharpness", "0"))
    assert line["this_frame"]["faces"][0]["pad"]["logit"] == expected


def test_service_states_the_digests_of_the_fused_model(fused_export: Path) -> None:
    model, engine = open_export(fused_export), open_engine(fused_export, None)
    assert engine.pad_digest == f"sha256:{model.digest}"
    assert engine.graph_digests == {"pad": f"sha256:{model.graph_digest}"}


def test_page_has_the_files_of_every_member(fused_export: Path, tmp_path: Path) -> None:
    runtime = RuntimeFiles()
    if not runtime.is_there:
        pytest.skip("the files of onnxruntime-web are not there; run make web")
    files = page_files(open_export(fused_export), None, runtime=runtime)
    parts = [f"members/{number}/{name}" for number in (1, 2, 3) for name in (CONFIG, "onnx/model.onnx")]
    for path in (CONFIG, *parts):
        assert files[f"models/pad/{path}"].content == (fused_export / path).read_bytes()


def test_python_opens_and_evaluates_a_fused_model(fused_export: Path, sets: Mapping[str, Path], tmp_path: Path) -> None:
    model = fv.open(fused_export)
    assert isinstance(model, Fused)
    images = PreparedSet.open(sets["U"]).images
    expected = model.score([images, images])
    metrics = fv.evaluate(fused_export, sets["U"], out=tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out/scores.csv").read_text().splitlines()))
    scores = sorted(float(row["logit"]) for row in rows)
    assert scores == pytest.approx(sorted(expected.tolist()))
    assert metrics["threshold"] == 0
    assert fv.evaluate(model, sets["U"]) == metrics
    output = output_of("evaluate", fused_export, "--data", sets["U"], "--json")
    assert json.loads(output)["auc"] == metrics["auc"]


@pytest.mark.long
def test_fused_model_keeps_its_scores_when_calibrated(fused_export: Path, scene: np.ndarray, tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    for number in range(6):
        Image.fromarray(cv2.convertScaleAbs(scene, alpha=1, beta=4 * number)).save(live / f"{number}.png")
    output = output_of("calibrate", fused_export, "--live", live, "--at=bpcer=5%", "--out", tmp_path / "door", "--json")
    calibrated = open_export(tmp_path / "door")
    assert required_threshold(calibrated).value == json.loads(output)["threshold"]["logit"]
    assert calibrated.digest == open_export(fused_export).digest
    assert logit_of(fused_export, scene) == logit_of(tmp_path / "door", scene)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def use_plain_member(copy: Path, members: list[Path]) -> None:
    """Put the export that a member was copied from in its place; its graph states no sum."""
    shutil.rmtree(copy / "members/1")
    shutil.copytree(members[0], copy / "members/1")


def take_sum_from_member(copy: Path, members: list[Path]) -> None:
    """Remove the sum from the description of a member, as in an export of its own."""
    edit(copy / "members/1" / CONFIG, lambda config: config["float32"]["description"].pop("fused"))


def change_weight(copy: Path, members: list[Path]) -> None:
    """Give the first member another weight, and the model the digest of its factors."""
    config = read_description(copy, FusedConfig)
    first, *others = config.members
    new_members = (first.model_copy(update={"weight": 9.0}), *others)
    digest = digest_of(new_members, [Exported.open(copy / "members" / str(number)).digest for number in (1, 2, 3)])
    edit(copy / CONFIG, lambda values: values.update(model_sha256=digest))
    edit(copy / CONFIG, lambda values: values["members"][0].update(weight=9.0))


def use_threshold_of_member(copy: Path, members: list[Path]) -> None:
    """Decide the sum at the threshold of its first member."""
    point = json.loads((members[0] / CONFIG).read_text())["float32"]["description"]["threshold"]
    edit(copy / CONFIG, lambda config: config.update(threshold=point))


def let_all_pass(copy: Path, members: list[Path]) -> None:
    """Lower the threshold of the sum, and nothing else."""
    edit(copy / CONFIG, lambda config: config["threshold"].update(value=-50.0))


def add_curves(copy: Path, members: list[Path]) -> None:
    """Add the error rates of a member to the sum."""
    curves = json.loads((members[0].parent / "curves.json").read_text())
    edit(copy / CONFIG, lambda config: config.update(curves=curves))


@pytest.mark.parametrize(
    ("attack", "place", "keyword"),
    [
        (let_all_pass, CONFIG, "threshold"),
        (use_threshold_of_member, CONFIG, "threshold"),
        (add_curves, CONFIG, "curves_sha256"),
        (change_weight, CONFIG, "model_sha256"),
        (use_plain_member, CONFIG, "model_sha256"),
        (take_sum_from_member, f"members/1/{GRAPH}", "fused"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_sum_that_differs_from_its_members_is_refused(
    copy: Path, pad: Path, members: list[Path], attack: Callable[[Path, list[Path]], None], place: str, keyword: str
) -> None:
    curves = json.loads((pad / CONFIG).read_text())["curves"]
    (members[0].parent / "curves.json").write_text(json.dumps(curves))
    attack(copy, members)
    record = entry_of(copy / "members/1" / CONFIG).model_dump()
    edit(copy / CONFIG, lambda config: config["members"][0].update(config=record))
    with refused(f"copy/{place}", keyword):
        open_export(copy)


def test_the_card_lists_members_weights_and_the_origin_of_the_threshold(fused_export: Path) -> None:
    card = (fused_export / "README.md").read_text()
    assert "| [2](members/2/README.md) | 1 | fedpad | 2.7 | 32 | 0.5 | 3 |" in card
    assert "even odds" in card
    assert "logit 0, fixed beforehand" in card
    assert (fused_export / "members/3/README.md").is_file()


def test_fused_member_contributes_its_own_members(fused_export: Path, members: list[Path], tmp_path: Path) -> None:
    fuse([fused_export, members[0]], tmp_path / "out", weights=[2.0, 3.0], scales=[4.0, 5.0], cache=tmp_path)
    factors = [(member.weight, member.scale) for member in Fused.open(tmp_path / "out").config.members]
    assert factors == [(2.0, 8.0), (1.0, 12.0), (0.5, 2.0), (3.0, 5.0)]


@pytest.mark.long
def test_run_is_exported_and_scaled_by_the_deviation_of_its_held_out_scores(
    pad_run: Path, pad: Path, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    counts = read_counts(pad_run)
    middles = (EDGES[1:] + EDGES[:-1]) / 2
    spread = []
    for site in counts.values():
        values = np.repeat(middles, site.sum(axis=0))
        spread.append((values.mean(), (values**2).mean()))
    mean, square = np.mean(spread, axis=0)
    # Untrained log-odds vary little around their mean; with small weights the sums stay within ±20.
    fuse([pad_run, pad], tmp_path / "out", weights=[0.25, 0.125], on=[str(sets["A"])], cache=tmp_path)
    first, second = Fused.open(tmp_path / "out").config.members
    assert (first.weight, second.weight) == (0.25, 0.125)
    assert first.scale == pytest.approx(np.sqrt(square - mean**2))
    view = PreparedSet.open(sets["A"])
    heldout = view.select("heldout")
    logits = Exported.open(pad).run(view.images[heldout]).astype(float)
    assert second.scale == pytest.approx(logits.std())
    sums = 0.25 * logits / first.scale + 0.125 * logits / second.scale
    expected = threshold_from_histograms([histogram(sums, view.rows.label[heldout].astype(np.int64))], "source-eer")
    threshold = required_threshold(Fused.open(tmp_path / "out"))
    assert (threshold.value, threshold.far, threshold.frr) == (expected.value, expected.far, expected.frr)
    fuse([pad, pad_run], tmp_path / "given", weights=[0.5], scales=[3.0], cache=tmp_path)
    given, measured = Fused.open(tmp_path / "given").config.members
    assert (given.weight, measured.weight) == (1.0, 0.5)
    assert given.scale == 3.0
    assert measured.scale == pytest.approx(first.scale)


@pytest.mark.long
def test_several_sets_weigh_equally_and_worse_ones_are_named(
    pad: Path, fused_export: Path, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    names = [str(sets[site]) for site in "AB"]
    result = fuse([pad, fused_export], tmp_path / "out", scales=[2.0, 1.0], on=names, cache=tmp_path)
    counts = []
    for name in names:
        prepared = PreparedSet.open(Path(name))
        heldout = prepared.select("heldout")
        images = prepared.images[heldout]
        logits, labels = Exported.open(pad).run(images).astype(float), prepared.rows.label[heldout].astype(np.int64)
        both = logits / 2 + Fused.open(fused_export).score([images, images])
        counts.append(histogram(both, labels))
        expected = [roc_auc_score(labels, values) for values in (logits, both)]
        assert [result.aucs[name][0], result.aucs[name][-1]] == pytest.approx(expected)
        worse = result.aucs[name][-1] < result.aucs[name][0]
        assert any(name in notice for notice in result.notices) == worse
    assert result.config.threshold.value == threshold_from_histograms(counts, "source-eer").value
    (line,) = Predictions(required_threshold(Fused.open(tmp_path / "out")), []).lines()
    assert "on the sets of the fusion it accepts" in line
    assert "at the sites" not in line


@pytest.mark.long
def test_operating_points_of_three_sets_use_averages(pad: Path, sets: Mapping[str, Path], tmp_path: Path) -> None:
    names = [str(sets[site]) for site in "ABC"]
    fuse([pad, pad], tmp_path / "out", scales=[2.0, 2.0], on=names, cache=tmp_path)
    model = Fused.open(tmp_path / "out")
    chosen = required_threshold(model.at("eer"))
    rates = dict[str, list[float]](bpcer=[], apcer=[])
    for name in names:
        prepared = PreparedSet.open(Path(name))
        heldout = prepared.select("heldout")
        sums, live = Exported.open(pad).run(prepared.images[heldout]), prepared.rows.label[heldout] == 1
        rates["bpcer"].append((sums[live] < chosen.value).mean())
        rates["apcer"].append((sums[~live] >= chosen.value).mean())
    estimates = {name: estimate.rate for name, estimate in chosen.estimates.items()}
    for name, values in rates.items():
        (estimate,) = {rate for key, rate in estimates.items() if key.lower() in (name, f"{name} all")}
        assert estimate == pytest.approx(np.mean(values), rel=0.1)  # rounded up to two digits
    output_of("threshold", tmp_path / "out", "--at", "eer", "--json")
    assert "averaged error rates" in (tmp_path / "out/README.md").read_text()


def test_sums_beyond_the_counted_scores_are_refused(pad: Path, sets: Mapping[str, Path], tmp_path: Path) -> None:
    """Their threshold would be at an end of the counts, where it accepts all attacks or no live face."""
    with refused("--scale", "±20", "larger"):
        fuse([pad, pad], tmp_path / "out", weights=[1000.0], scales=[0.001, 1.0], on=[str(sets["A"])], cache=tmp_path)


def test_operating_point_of_two_sets_is_refused(pad: Path, sets: Mapping[str, Path], tmp_path: Path) -> None:
    fuse([pad, pad], tmp_path / "out", scales=[2.0, 2.0], on=[str(sets[site]) for site in "AB"], cache=tmp_path)
    with refused(str(tmp_path / "out"), "fedvisage calibrate"):
        Fused.open(tmp_path / "out").at("eer")


def test_sum_that_is_worse_than_its_first_model_is_reported(fused_export: Path) -> None:
    point = OperatingPoint(value=0.0, rule="source-eer")
    config = Fused.open(fused_export).config.model_copy(update={"threshold": point})
    aucs = {"door": (0.9, 0.3, 0.7), "hall": (0.9, 0.3, 0.95)}
    (notice,) = FusionResult(fused_export, config, ("a", "b"), aucs).notices
    assert "door" in notice
    assert "0.9000" in notice
    assert "0.7000" in notice


def test_scores_that_are_all_equal_have_no_scale() -> None:
    counts = histogram(np.zeros(4), np.array([0, 0, 1, 1]))
    assert spread_of([counts]) is None
    assert spread_of([]) is None


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another weight": (lambda config: config["members"][0].update(weight=9.0), "digest"),
    "another scale": (lambda config: config["members"][0].update(scale=9.0), "digest"),
    "a negative weight": (lambda config: config["members"][0].update(weight=-1.0), "members.0.weight"),
    "members in another order": (lambda config: config["members"].reverse(), "digest"),
    "one member": (lambda config: config.update(members=config["members"][:1]), "members"),
    "no threshold": (lambda config: config.pop("threshold"), "threshold"),
    "an unknown key": (lambda config: config.update(folder="../.."), "folder"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_description_of_a_fused_model_is_refused(copy: Path, name: str) -> None:
    change, keyword = CHANGES[name]
    edit(copy / CONFIG, change)
    with refused(CONFIG, keyword):
        Fused.open(copy)


@pytest.mark.parametrize("file", ["config.json", "onnx/model.onnx", "model.safetensors"])
def test_changed_file_of_a_member_is_refused(copy: Path, file: str) -> None:
    with (copy / "members/2" / file).open("ab") as content:
        content.write(b" ")
    with refused(f"members/2/{file}"):
        Pipeline(copy)


REFUSED: dict[str, tuple[tuple[str, ...], str, str]] = {
    "one model": (("PAD",), "MODEL", "two"),
    "weights of other models": (("PAD", "PAD", "--weight=1", "--weight=1", "--weight=1"), "--weight", "3 times"),
    "scales of other models": (("PAD", "PAD", "--scale=1", "--scale=1", "--scale=1"), "--scale", "3 times"),
    "an unknown scale after a given one": (("PAD", "PAD", "--scale=1"), "--scale", "--on"),
    "a weight of nothing": (("PAD", "PAD", "--weight=0"), "--weight", "0"),
    "a scale that is no number": (("PAD", "PAD", "--scale=nan", "--scale=1"), "--scale", "nan"),
    "an unknown scale": (("PAD", "PAD"), "--scale", "--on"),
    "a fused model without a scale": (("FUSED", "PAD"), "--scale", "fused"),
    "a recognition model": (("PAD", "PEOPLE"), "PEOPLE", "recognises"),
    "a set of other images": (("PAD", "PAD", "--on=SET48"), "SET48", "32×32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_fusion_is_refused_without_output(
    name: str, pad: Path, fused_export: Path, recognition: Path, tmp_path: Path
) -> None:
    words, place, keyword = REFUSED[name]
    names = {"PAD": pad, "FUSED": fused_export, "PEOPLE": recognition}
    if "48" in " ".join(words):
        names["SET48"] = make_set(tmp_path / "big", "big", 3, size=48)
    for key, path in names.items():
        words = tuple(word.replace(key, str(path)) for word in words)
        place = place.replace(key, path.name)
    with refused(place, keyword):
        output_of("fuse", *words, "--out", tmp_path / "out", "--quiet")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("other", ["", "/", "/../A", " ", "copy"])
def test_set_in_two_spellings_is_refused(pad: Path, sets: Mapping[str, Path], other: str, tmp_path: Path) -> None:
    place = sets["A"]
    other = str(shutil.copytree(place, tmp_path / "copy")) if other == "copy" else f"{place}{other}"
    with refused("--on", "twice"):
        fuse([pad, pad], tmp_path / "out", on=[str(place), other], cache=tmp_path)


@pytest.mark.parametrize("fused", [False, True], ids=["member", "fused member"])
def test_calibration_of_a_member_is_reported_as_lost(
    fused: bool, pad: Path, fused_export: Path, tmp_path: Path
) -> None:
    point, calibrated = OperatingPoint(value=0.5, rule="aimed", estimates={OF_PICTURES: RATE}), tmp_path / "calibrated"
    if fused:
        shutil.copytree(fused_export, calibrated)
        write_fused(calibrated, Fused.open(calibrated).config.model_copy(update={"threshold": point}))
    else:
        copy_export(pad, calibrated, threshold=point)
    lines = list[str]()
    fuse([calibrated, pad], tmp_path / "out", scales=[1.0, 1.0], cache=tmp_path, say=lines.append)
    (line,) = [line for line in lines if "calibrate" in line]
    assert str(calibrated) in line


def test_unsupported_commands_of_a_fused_model_are_refused_in_one_line(fused_export: Path, tmp_path: Path) -> None:
    with refused(fused_export, "fused", "adapt"):
        Pipeline(fused_export).adapt([], tmp_path / "out")
    with refused(fused_export, "fused"):
        Exported.open(fused_export)
    with refused("--crop", "none", "2.7"):
        face_cropper("none", open_export(fused_export).shapes)
    with refused("--crop", "did you mean centre"):
        face_cropper("center", open_export(fused_export).shapes)
    with refused(fused_export, "int8"):
        Fused.open(fused_export, int8=True)
    with refused(fused_export, "recognition"):
        Pipeline(recognition=fused_export)
