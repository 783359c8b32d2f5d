"""Sets with crops at several margins: the same pixels as on a device, one margin per recipe, and refusals."""

import json
import pickle
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.commands import output_of
from tests.data.small_sets import columns_of
from tests.datasets.imports import import_quietly
from tests.device.exports import with_margin
from tests.refusals import refused
from tests.toy import run_toy, tree

from fedvisage.base.errors import UserError
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer
from fedvisage.datasets.options import ImportOptions
from fedvisage.device import Exported, Pipeline, Settings, open_export
from fedvisage.device.predict import face_cropper
from fedvisage.faces.cropping import crop_face, make_detector, record_of
from fedvisage.render.identities import Identities, photograph_person, photographs_of
from fedvisage.runs.export.fuse import fuse
from fedvisage.tasks.finished_model import open_model

MARGINS = (1.4, 2.7, 4.0)
SIZE = 32


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of faces in rooms: four people, bona fide and, darker, as prints; the last picture ends at the face."""
    root = tmp_path_factory.mktemp("scenes") / "photos"
    face = photograph_person(photographs_of(Identities(images=1, size=112), 0), 112)[0][0]
    for number in range(4):
        room = np.random.default_rng(number).integers(90, 130, (480, 640, 3)).astype(np.uint8)
        room[180:292, 260:372] = face
        for kind, picture in (("real", room), ("attack/print", room // 4 * 3)):
            folder = root / kind / f"person{number}"
            folder.mkdir(parents=True)
            Image.fromarray(picture).save(folder / "1.png")
    (root / "real/person9").mkdir()
    Image.fromarray(face).save(root / "real/person9/1.png")
    return root


def import_rooms(scenes: Path, out: Path, margin: str) -> PreparedSet:
    import_quietly("folder", scenes, out, name="rooms", size=SIZE, margin=margin, heldout=0.5, max_bad=0.5)
    return PreparedSet.open(out, verify=True)


@pytest.fixture(scope="module")
def margins_set(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("several") / "set"
    import_rooms(scenes, out, "1.4,2.7,4")
    return out


@pytest.mark.long
def test_margins_have_the_pixels_of_single_sets_and_devices(
    margins_set: Path, scenes: Path, pad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = PreparedSet.open(margins_set)
    images_shown = list[np.ndarray]()

    def record(_: Exported, crops: np.ndarray) -> np.ndarray:
        images_shown.extend(crops)
        return np.zeros(len(crops))

    monkeypatch.setattr(Exported, "run", record)
    for margin in MARGINS:
        part = prepared.at_margin(margin)
        single = import_rooms(scenes, tmp_path / f"{margin}", f"{margin:g}")
        np.testing.assert_array_equal(part.images, single.images)
        assert part.crop == single.crop
        model = Exported.open(with_margin(pad, tmp_path / f"model-{margin}", margin))
        cropper, pipeline = face_cropper("face", model.shapes), Pipeline(model, settings=Settings(sharpness=0))
        for item, image in zip(part.rows.item, part.images, strict=True):
            picture = np.asarray(Image.open(next(scenes.rglob(f"{item.removesuffix('.png')}.png"))).convert("RGB"))
            np.testing.assert_array_equal(cropper(picture).crops[0], image)
            images_shown.clear()
            pipeline.check(picture)
            np.testing.assert_array_equal(images_shown[0], image)


def test_picture_with_little_context_is_imported_and_counted(margins_set: Path) -> None:
    report = json.loads((margins_set / "import-report.json").read_text())
    assert len(PreparedSet.open(margins_set)) == 9
    assert report["little_context"] == 1


def test_context_of_each_picture_is_a_column(margins_set: Path, scenes: Path) -> None:
    """The picture's shorter side over the box's longer side, where that is below the widest margin."""
    rows = PreparedSet.open(margins_set).rows
    detect = make_detector()
    for item, context in zip(rows.item, rows.further["context"], strict=True):
        picture = np.asarray(Image.open(next(scenes.rglob(f"{item.removesuffix('.png')}.png"))).convert("RGB"))
        box = max(detect(picture), key=lambda face: face.area).box
        shown = min(min(picture.shape[:2]) / max(box[2:]), MARGINS[-1])
        assert int(context) <= 100 * shown < int(context) + 50


@pytest.mark.long
def test_pictures_on_their_side_and_filled_by_a_face_are_imported_upright(scenes: Path, tmp_path: Path) -> None:
    """Turned by a quarter, and cut to the face, in which the networks do not find it without surroundings."""
    detect, missed = make_detector(), 0
    for number in range(4):
        for kind in ("real", "attack/print"):
            picture = np.asarray(Image.open(scenes / kind / f"person{number}" / "1.png"))
            x, y, width, height = max(detect(picture), key=lambda face: face.area).box.round().astype(int)
            inner = picture[y + height // 10 : y + height - height // 10, x + width // 10 : x + width - width // 10]
            missed += detect(inner) == []
            for name, turned in (("side", np.rot90(picture)), ("tight", inner // 8 * 7 + np.uint8(number))):
                folder = tmp_path / "photos" / kind / f"{name}{number}"
                folder.mkdir(parents=True)
                Image.fromarray(turned).save(folder / "1.png")
    assert missed >= 2
    import_quietly("folder", tmp_path / "photos", tmp_path / "set", name="turned", size=SIZE, heldout=0.5)
    prepared = PreparedSet.open(tmp_path / "set")
    assert len(prepared) == 16
    report = json.loads((tmp_path / "set" / "import-report.json").read_text())
    assert report["turned"] == 8
    assert report["skipped"] == []
    original = {path.parent.name: path for path in (scenes / "real").rglob("*.png")}
    for item, image in zip(prepared.rows.item, prepared.images, strict=True):
        if item.startswith("real/side"):
            picture = np.asarray(Image.open(original[f"person{item.removeprefix('real/side')[0]}"]))
            (face,) = detect(picture)
            upright = crop_face(picture, face, SIZE).image
            assert np.abs(image.astype(int) - upright).mean() < 12


def test_margins_survive_pickling(margins_set: Path) -> None:
    prepared = PreparedSet.open(margins_set)
    assert list(prepared.by_margin) == list(MARGINS)
    assert prepared.at_margin(3.0) is prepared
    wide = prepared.at_margin(4.0)
    assert wide.digest != prepared.digest
    again = pickle.loads(pickle.dumps(wide))
    assert again.crop == wide.crop
    np.testing.assert_array_equal(again.images, wide.images)
    lines = output_of("data", "show", margins_set)
    assert "1.4 times their box, and 2.7 times, and 4 times" in lines


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.pop("further_margins"),
        lambda manifest: manifest.update(further_margins=[2.7]),
        lambda manifest: manifest.update(further_margins=[2.7, 2.7]),
        lambda manifest: manifest.update(further_margins=[2.7, -4.0]),
    ],
)
def test_set_with_inconsistent_margins_is_refused(margins_set: Path, tmp_path: Path, change: object) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in margins_set.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    manifest = json.loads((copy / "set.json").read_text())
    assert callable(change)
    change(manifest)
    (copy / "set.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError):
        PreparedSet.open(copy)


@pytest.mark.parametrize("margin", ["", "wide", "0.5", "1.4,6", "1,2,3,4,5", "2.7,2.7"])
def test_invalid_margins_are_refused(margin: str) -> None:
    with refused("--margin", "margin" if margin == "2.7,2.7" else "numbers"):
        ImportOptions(margin=margin)


def noise_set(path: Path, name: str, seed: int) -> Path:
    """Write a set of noise with crops of two margins, the wider ones brighter."""
    rng = np.random.default_rng(seed)
    crop = record_of("face", margin=1.4)
    with Writer(path, name=name, size=SIZE, source="noise", crop=crop, further_margins=(2.7,)) as out:
        for subject, species in product(range(6), ("bonafide", "print")):
            images = rng.integers(20, 120, (2, SIZE, SIZE, 3)).astype(np.uint8)
            columns = columns_of(
                2,
                species=[species] * 2,
                subject=[f"{name}{subject}"] * 2,
                video=[f"{name}{subject}-{species}"] * 2,
                frame=[0, 1],
                split=["train" if subject < 4 else "heldout"] * 2,
                item=[f"{name}/{subject}/{species}/{frame}.png" for frame in range(2)],
            )
            out.add(images, at_further_margins=[images + np.uint8(100)], **columns)
    return path


def evaluate(model: Path, data: Path, out: Path) -> np.ndarray:
    """Evaluate a model by the command, and return its logits."""
    output_of("evaluate", model, "--data", data, "--out", out)
    head, *_ = (out / "scores.csv").read_text().splitlines()
    column = head.split(",").index("logit")
    return np.loadtxt(out / "scores.csv", delimiter=",", skiprows=1, usecols=column)


@pytest.mark.long
def test_recipe_selects_a_margin_and_its_model_stores_it(tmp_path: Path) -> None:
    sets = {name: noise_set(tmp_path / name, name, seed) for seed, name in enumerate("ABCU")}
    content = tree(sets, training__rounds=1, input__margin=2.7)
    run_toy(content, tmp_path / "run")
    model, target = open_model(tmp_path / "run"), PreparedSet.open(sets["U"])
    assert model.margin == 2.7
    wide = target.at_margin(2.7).images
    assert wide.min() >= 120
    scores = evaluate(tmp_path / "run", sets["U"], tmp_path / "out")
    np.testing.assert_allclose(np.sort(scores), np.sort(model.score(np.array(wide))), atol=1e-4)
    with refused("data.sites.A", "1.4 or 2.7 times", "input.margin", "--margin 3"):
        run_toy({**content, "input": {**content["input"], "margin": 3.0}}, tmp_path / "other")


@pytest.mark.long
def test_fused_model_is_evaluated_at_the_margins_of_its_members(margins_set: Path, pad: Path, tmp_path: Path) -> None:
    members = [with_margin(pad, tmp_path / f"{margin}", margin) for margin in (1.4, 4.0)]
    fuse(members, tmp_path / "fused", scales=[0.5, 0.25], on=[str(margins_set)], cache=tmp_path)
    prepared = PreparedSet.open(margins_set)
    single_scores = [
        open_export(member).score([np.array(prepared.at_margin(margin).images)])
        for member, margin in zip(members, (1.4, 4.0), strict=True)
    ]
    fused = open_export(tmp_path / "fused")
    expected = sum(logits / term.scale for logits, term in zip(single_scores, fused.config.members, strict=True))  # type: ignore[union-attr]
    scores = evaluate(tmp_path / "fused", margins_set, tmp_path / "out")
    np.testing.assert_allclose(np.sort(scores), np.sort(expected), rtol=1e-6)


def test_set_without_a_members_margin_is_refused(scenes: Path, pad: Path, tmp_path: Path) -> None:
    prepared = import_rooms(scenes, tmp_path / "narrow", "1.4,2.7")
    members = [with_margin(pad, tmp_path / f"{margin}", margin) for margin in (2.7, 4.0)]
    with refused(prepared.path, "1.4 times", "4 times"):
        fuse(members, tmp_path / "fused", on=[str(prepared.path)], cache=tmp_path)
    assert not (tmp_path / "fused").exists()
