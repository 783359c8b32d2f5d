"""The pipeline on pictures: boxes, quality, decisions and embeddings."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.device.exports import with_threshold
from tests.device.service.clients import connect
from tests.device.web.conftest import as_png
from tests.refusals import refused

from fedvisage.base.files import json_text
from fedvisage.device import Box, Checked, CheckedFace, Exported, Match, PadVerdict, Pipeline, Settings
from fedvisage.device.pipeline import FaceTrack
from fedvisage.device.predict import GREY, InputPicture, InputPictures, predict
from fedvisage.device.service.app import open_engine
from fedvisage.device.service.limits import Limits
from fedvisage.faces.align import align
from fedvisage.faces.cropping import crop_face, make_detector
from fedvisage.faces.quality import Quality
from fedvisage.runs.analysis import analyze

Photographs = dict[str, np.ndarray]


def test_face_gets_the_score_of_its_crop(pad: Path, photographs: Photographs) -> None:
    model, picture = Exported.open(pad), photographs["one"]
    checked = Pipeline(pad).check(picture)
    (detected,) = make_detector()(picture)
    crop = crop_face(picture, detected, model.size)
    logit = float(model.run(crop.image[None])[0])
    (face,) = checked.faces
    assert face.pad is not None
    assert face.pad.logit == pytest.approx(logit, abs=1e-5)
    assert face.pad.score == pytest.approx(1 / (1 + np.exp(-logit)))
    assert model.threshold is not None
    assert checked.decision == ("bona_fide" if logit >= model.threshold.value else "attack")
    assert face.pad.operating_point == "source-eer"
    assert 20 <= face.box.x <= 220 - face.box.width
    assert face.quality.ok


@pytest.mark.parametrize(
    ("name", "word"), [("two", "several"), ("blurred", "blurred"), ("small", "small"), ("wall", "no face")]
)
def test_unusable_picture_has_its_own_answer(pad: Path, photographs: Photographs, name: str, word: str) -> None:
    checked = Pipeline(pad).check(photographs[name])
    assert checked.decision == "no_decision"
    assert any(word in reason for reason in checked.reasons)
    assert all(face.pad is not None and face.pad.score is None for face in checked.faces)


def test_all_faces_of_a_picture_can_be_scored(pad: Path, photographs: Photographs) -> None:
    checked = Pipeline(pad, settings=Settings(several=True)).check(photographs["two"])
    assert [face.pad is not None and face.pad.score is not None for face in checked.faces] == [True, True]
    assert checked.faces[0].box.width > checked.faces[1].box.width


@pytest.mark.parametrize(("name", "is_noted"), [("grey", True), ("one", False)])
def test_grey_picture_has_the_note_of_predict(pad: Path, photographs: Photographs, name: str, is_noted: bool) -> None:
    picture = photographs[name]
    (predicted,) = predict(Exported.open(pad), InputPictures([InputPicture(name, lambda: picture)])).images
    verdict = Pipeline(pad).check(picture).faces[0].pad
    (analyzed,) = analyze(picture, pad)
    with connect(open_engine(pad, None), limits=Limits(rate=0)) as client:
        (served,) = client.post("/v1/pad", files={"image": as_png(picture)}).json()["faces"]
    assert verdict is not None
    assert (GREY in predicted.notes) == is_noted
    assert set(verdict.notes) == set(analyzed.notes) == set(served["pad"]["notes"]) == set(predicted.notes)


def test_upside_down_face_has_its_box_in_the_original_picture(pad: Path, photographs: Photographs) -> None:
    pipeline = Pipeline(pad)
    upright, turned = (pipeline.check(photographs[name]) for name in ("one", "turned"))
    assert turned.turns == 2
    box, other = upright.faces[0].box, turned.faces[0].box
    assert (480 - other.x - other.width, 240 - other.y - other.height) == pytest.approx((box.x, box.y), abs=0.2)
    eye, same = upright.faces[0].points[0], turned.faces[0].points[0]
    assert (480 - same[0], 240 - same[1]) == pytest.approx(eye, abs=0.2)


def test_attack_is_recognised_only_on_request(pad: Path, recognition: Path, photographs: Photographs) -> None:
    searched = list[np.ndarray]()

    def search(embedding: np.ndarray) -> list[Match]:
        searched.append(embedding)
        return [Match("someone", 0.5, 0.4, "match", "fmr")]

    pipeline = Pipeline(with_threshold(pad, 50.0), recognition, search=search)
    (face,) = pipeline.check(photographs["one"]).faces
    assert (face.embedding, face.matches, searched) == (None, (), [])
    (face,) = pipeline.check(photographs["one"], report=True).faces
    assert face.pad is not None
    assert (face.pad.decision, [match.person for match in face.matches]) == ("attack", ["someone"])
    (face,) = Pipeline(with_threshold(pad, -50.0), recognition, search=search).check(photographs["one"]).faces
    assert face.embedding is not None
    assert len(searched) == 2
    assert pipeline.check(photographs["blurred"], report=True).faces[0].embedding is None


def test_embedding_is_of_the_aligned_face(recognition: Path, photographs: Photographs) -> None:
    picture, model = photographs["one"], Exported.open(recognition)
    (face,) = Pipeline(recognition=recognition).check(picture).faces
    aligned, _ = align(picture, make_detector()(picture)[0].points, model.size)
    assert face.embedding is not None
    assert face.embedding == pytest.approx(model.run(aligned[None])[0], abs=1e-5)
    assert np.linalg.norm(face.embedding) == pytest.approx(1, abs=1e-4)


def test_results_are_plain_values_without_template(pad: Path, recognition: Path, photographs: Photographs) -> None:
    checked = Pipeline(with_threshold(pad, -50.0), recognition).check(photographs["one"])
    values = json.loads(json_text(checked.as_values()))
    assert values["decision"] == "bona_fide"
    assert values["faces"][0]["quality"]["ok"]
    assert "embedding" not in json.dumps(values)


def test_models_of_the_wrong_task_are_refused(pad: Path, recognition: Path) -> None:
    with refused("recognition", "recognition model", "--pad", "attack detector"):
        Pipeline(recognition)
    with refused("pad", "attack detector", "--recognition", "recognition model"):
        Pipeline(recognition=pad)


def frame(score: float | None, x: float = 0.0) -> Checked:
    """Return a frame's check with one face at a place, or none."""
    if score is None:
        return Checked(())
    logit = np.log(score / (1 - score))
    verdict = PadVerdict("bona_fide" if score >= 0.5 else "attack", score, 0.5, logit, 0.0, "source-eer")
    quality = Quality((), 100.0, 1.0, 0.0, 0.0)
    return Checked((CheckedFace(Box(x, 0, 100, 100, 1.0), (), quality, verdict),))


def test_log_odds_are_averaged_over_the_last_frames() -> None:
    running, scores = FaceTrack(3), [0.9, 0.05, 0.2, 0.3, 0.99]
    states = [running.add(frame(score)) for score in scores]
    # The geometric means of odds of 9, 1/19, 1/4, 3/7 and 99.
    odds = [
        9,
        (9 / 19) ** 0.5,
        (9 / 19 / 4) ** (1 / 3),
        (1 / 19 / 4 * 3 / 7) ** (1 / 3),
        (1 / 4 * 3 / 7 * 99) ** (1 / 3),
    ]
    assert [state.verdict.score for state in states if state.verdict] == pytest.approx([o / (1 + o) for o in odds])
    assert [state.frames for state in states] == [1, 2, 3, 3, 3]
    assert [state.decision for state in states] == ["bona_fide", "attack", "attack", "attack", "bona_fide"]


def test_another_face_starts_a_new_mean() -> None:
    running = FaceTrack(10)
    for _ in range(5):
        running.add(frame(0.9))
    swapped = running.add(frame(0.2, x=300))
    assert (swapped.frames, swapped.decision) == (1, "attack")


def test_frame_without_a_face_ends_the_mean() -> None:
    running = FaceTrack(10)
    running.add(frame(0.9))
    assert running.add(frame(None)).decision == "no_decision"
    assert running.add(frame(0.2)).frames == 1


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
from PIL import Image
from fedvisage.cli import app
from fedvisage.device import Pipeline
picture = np.asarray(Image.open(sys.argv[3]))
print(Pipeline(sys.argv[1], sys.argv[2]).check(picture, report=True).faces[0].embedding.shape)
app(["predict", sys.argv[1], sys.argv[3], "--json"], standalone_mode=False)
app(["predict", sys.argv[2], sys.argv[3], "--against", sys.argv[3]], standalone_mode=False)
app(["watch", sys.argv[3], "--pad", sys.argv[1]], standalone_mode=False)
"""


@pytest.mark.long
def test_pipeline_needs_no_torch(pad: Path, recognition: Path, photographs: Photographs, tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(photographs["one"]).save(tmp_path / "one.png")
    words = [sys.executable, "-c", WITHOUT_TORCH, str(pad), str(recognition), str(tmp_path / "one.png")]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "(16,)" in result.stdout
    assert "same person" in result.stdout
    assert '"frame": 0' in result.stdout
