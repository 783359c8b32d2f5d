"""Crops with a wider margin: equal pixels in imports, devices and the page, and a note on little context."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from tests.commands import output_of
from tests.device.exports import with_margin
from tests.refusals import refused
from tests.toy import make_set, run_toy, tree

from fedvisage.base.files import json_key, write_tensors
from fedvisage.data.crops import RENDERED_ONLY, CropRecord
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.importing import import_dataset
from fedvisage.datasets.options import ImportOptions
from fedvisage.device import Pipeline
from fedvisage.device.exported import CropShape
from fedvisage.device.predict import face_cropper
from fedvisage.device.web.site import settings_json
from fedvisage.faces.cropping import (
    CLOSE,
    LEAST_CONTEXT,
    LITTLE_CONTEXT,
    crop_face,
    make_cropper,
    make_finder,
    record_of,
)
from fedvisage.faces.detection import Face
from fedvisage.faces.quality import Settings
from fedvisage.runs.export.export import export
from fedvisage.tasks.finished_model import open_model

pytestmark = pytest.mark.long

MARGINS = (1.4, 2.7, 4.0)
CUT = """
import { readFileSync } from "node:fs";
import { place } from "./pipeline.js";
import { cut, picture, resized } from "./pixels.js";
const { image, boxes, margins, least, size } = JSON.parse(readFileSync(0));
const whole = picture(image.width, image.height, new Uint8ClampedArray(image.data));
const crops = margins.flatMap((margin) => boxes.map((box) => {
  const { left, top, side, close } = place(whole, box, margin, least);
  return { close, data: Array.from(resized(cut(whole, left, top, side, side), size, size).data) };
}));
console.log(JSON.stringify(crops));
"""


def test_page_and_python_crop_equal_pixels_at_every_margin(scene: np.ndarray, tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed; install the system's package nodejs")
    for path in files("fedvisage.device.web").joinpath("page").iterdir():
        if path.name.endswith(".js"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "cut.js").write_text(CUT)
    boxes = [(280.3, 170.8, 101.5, 99.0), (10.0, 5.5, 130.0, 160.25), (300.0, 60.0, 300.0, 380.0)]
    names = ("x", "y", "width", "height")
    question = {
        "image": {"width": scene.shape[1], "height": scene.shape[0], "data": scene.ravel().tolist()},
        "boxes": [dict(zip(names, box, strict=True)) for box in boxes],
        "margins": MARGINS,
        "least": settings_json(Settings())["least_context"],
        "size": 48,
    }
    output = subprocess.run(
        ["node", "cut.js"], input=json.dumps(question), capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    faces = [Face(np.array(box), np.zeros((5, 2))) for box in boxes]
    wanted = [crop_face(scene, face, 48, margin) for margin in MARGINS for face in faces]
    assert {crop.close for crop in wanted} == {True, False}
    for page_crop, crop in zip(json.loads(output), wanted, strict=True):
        assert page_crop["close"] == crop.close
        assert np.abs(np.array(page_crop["data"]) - crop.image.ravel().astype(int)).max() <= 1  # single precision


@pytest.mark.parametrize(("margin", "strict"), [(1.4, False), (1.4, True), (2.7, False), (2.7, True)])
def test_little_context_is_noted_and_with_strict_refused(
    margin: float, strict: bool, scene: np.ndarray, pad: Path, tmp_path: Path
) -> None:
    tight = np.ascontiguousarray(scene[150:290, 260:400])
    export = with_margin(pad, tmp_path / "export", margin)
    checked = Pipeline(export, settings=Settings(enlarge=True, sharpness=0, strict=strict)).check(tight)
    predicted = face_cropper("face", [CropShape(margin, 32)], strict=strict)(tight)
    is_refused, verdict = strict and margin == 2.7, checked.faces[0].pad
    assert verdict is not None
    assert checked.reasons == ((CLOSE,) if is_refused else ())
    assert predicted.reason == (CLOSE if is_refused else "")
    assert (checked.decision == "no_decision") == is_refused == (not predicted.crops)
    notes = (LITTLE_CONTEXT,) if margin == 2.7 and not strict else ()
    assert verdict.notes == notes
    assert predicted.notes == notes


def test_picture_with_little_context_is_imported_and_counted(scene: np.ndarray, tmp_path: Path) -> None:
    tight = np.ascontiguousarray(scene[150:290, 260:400])
    for number, name in enumerate(("real/a", "real/b", "attack/print/a", "attack/print/b")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.fromarray(tight // 8 * 7 + np.uint8(number)).save(tmp_path / "photos" / name / "1.png")
    for margin, count in (("1.4", None), ("2.7", 4)):
        options = ImportOptions(size=32, margin=margin, heldout=0.5)
        lines = import_dataset(
            "folder", tmp_path / "photos", tmp_path / margin, lambda _: None, name="tight", options=options
        )
        report = json.loads((tmp_path / margin / "import-report.json").read_text())
        assert (report["images"], report.get("little_context")) == (4, count)
        contexts = PreparedSet.open(tmp_path / margin).rows.further.get("context")
        assert (None if contexts is None else contexts.tolist()) == (["100"] * 4 if count else None)
        assert any("4 images with little context" in line for line in lines) == bool(count)


def test_tilted_face_is_not_scored(scene: np.ndarray) -> None:
    centre = (scene.shape[1] / 2, scene.shape[0] / 2)
    turned = cv2.warpAffine(scene, cv2.getRotationMatrix2D(centre, 50, 1.0), scene.shape[1::-1])
    assert face_cropper("face", [CropShape(1.4, 32)])(scene).crops
    assert not face_cropper("face", [CropShape(1.4, 32)])(turned).crops


def test_padding_repeats_the_edge_and_is_recorded(scene: np.ndarray, tmp_path: Path) -> None:
    tight = np.ascontiguousarray(scene[150:290, 260:400])
    box = make_finder()(tight).box
    cropped = make_cropper("face", 32, margin=4.0, padding="replicate")(tight)
    side = round(4.0 * float(box[2:].max()))
    wide = np.pad(tight, ((side, side), (side, side), (0, 0)), mode="edge")
    left, top = (side + round(float(box[axis] + box[axis + 2] / 2 - side / 2)) for axis in (0, 1))
    expected = cv2.resize(wide[top : top + side, left : left + side], (32, 32), interpolation=cv2.INTER_AREA)
    np.testing.assert_array_equal(cropped.image, expected)
    photos = tmp_path / "photos"
    names = ("real/a", "real/b", "attack/print/a", "attack/print/b")
    for number, name in enumerate(names):  # files with equal content count once
        (photos / name).mkdir(parents=True)
        Image.fromarray(tight // 8 * 7 + np.uint8(number)).save(photos / name / "1.png")
    options = ImportOptions(size=32, margin="4.0", pad="replicate", heldout=0.5)
    import_dataset("folder", photos, tmp_path / "set", lambda _: None, name="padded", options=options)
    crop = PreparedSet.open(tmp_path / "set").crop
    assert crop is not None
    assert (crop.margin, crop.padding) == (4.0, "replicate")
    assert "padded" in str(crop)
    assert "padding" not in record_of("face").model_dump()


def test_margin_and_padding_need_a_face_with_a_box() -> None:
    for options in ({"margin": 2.7}, {"pad": "replicate"}):
        with refused("--margin", "--crop face"):
            ImportOptions(crop="centre", **options)
    with refused("--pad", "'mirror'"):
        ImportOptions(pad="mirror")  # type: ignore[arg-type]


def make_cropped_sets(root: Path, margin: float) -> Mapping[str, Path]:
    sets = {name: make_set(root / name, name, seed) for seed, name in enumerate("ABCU")}
    for path in sets.values():
        settings = json.loads((path / "set.json").read_text())
        crop = record_of("face", margin=margin).model_dump()
        (path / "set.json").write_text(json.dumps(settings | {"crop": crop}))
    return sets


def test_model_records_the_margin_of_its_crops(tmp_path: Path) -> None:
    run_toy(tree(make_cropped_sets(tmp_path, 2.7), training__rounds=1), tmp_path / "run")
    assert open_model(tmp_path / "run").margin == 2.7


def test_decisions_of_a_detector_of_rendered_faces_are_noted(scene: np.ndarray, tmp_path: Path) -> None:
    sets = {name: make_set(tmp_path / name, name, seed) for seed, name in enumerate("ABCU")}
    for path in sets.values():
        settings = json.loads((path / "set.json").read_text())
        crop = CropRecord(how="rendered", alignment="box").model_dump()
        (path / "set.json").write_text(json.dumps(settings | {"crop": crop}))
    run_toy(tree(sets, training__rounds=1), tmp_path / "run")
    model = open_model(tmp_path / "run")
    export(model, tmp_path / "export", data=str(sets["U"]), cache=tmp_path / "cache")
    Image.fromarray(scene).save(tmp_path / "photo.png")
    for directory in ("run", "export"):
        output = output_of("predict", tmp_path / directory, tmp_path / "photo.png")
        assert "(trained on rendered faces only)" in output
    settings = Settings(sharpness=0, enlarge=True)
    verdict = Pipeline(tmp_path / "export", settings=settings).check(scene).faces[0].pad
    assert verdict is not None
    assert verdict.notes == (RENDERED_ONLY,)
    assert "rendered faces only" in (tmp_path / "export" / "README.md").read_text()


def test_start_with_another_margin_is_refused(tmp_path: Path) -> None:
    sets = make_cropped_sets(tmp_path, 1.4)
    run_toy(tree(sets, training__rounds=1), tmp_path / "first")
    weights = open_model(tmp_path / "first").saved.finished
    metadata = {"network": {"width": 8}, "input": {"size": 24, "colour": "rgb", "margin": 2.7}}
    start = tmp_path / "start.safetensors"
    write_tensors(start, weights, json_key(metadata))
    content = tree(sets, training__rounds=1, training__start=str(start))
    with refused("data.sites.A", "1.4 times", "2.7 times", "--margin 2.7"):
        run_toy(content, tmp_path / "run")


@pytest.mark.parametrize("side", [100, 240, 640, 1500])
def test_face_that_fills_the_picture_is_detected_at_every_size(side: int, face: np.ndarray) -> None:
    whole = cv2.resize(face, (side, side), interpolation=cv2.INTER_CUBIC)
    face_found = make_finder()(whole)
    assert 0.4 * side < face_found.box[2:].max() < LEAST_CONTEXT * side
