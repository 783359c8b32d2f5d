"""The page and Python give equal faces, scores and decisions."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from tests.device.exports import with_margin
from tests.device.web.conftest import as_png, serve_folder

from fedvisage.device import Checked, Exported, Pipeline, open_export
from fedvisage.device.predict import GREY
from fedvisage.device.web.site import RuntimeFiles, build
from fedvisage.runs.export.fuse import fuse

pytestmark = pytest.mark.browser

ASK = """async (content) => {
  const { Local } = await import("./local.js");
  const { reader } = await import("./loading.js");
  window.local ??= (async () => {
    const local = new Local();
    const base = new URL("./", document.baseURI).href;
    await local.open(await reader(base).json("page.json"), base);
    return local;
  })();
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const { readPicture } = await import("./camera.js");
  const frame = await readPicture(new File([bytes], "picture.png"));
  const answer = await (await window.local).check(frame, { embed: true });
  const plain = (face) => ({ ...face, embedding: face.embedding && Array.from(face.embedding) });
  return { ...answer, faces: answer.faces.map(plain) };
}"""

SCALE = """async ({ content, sizes }) => {
  const { resized, withoutAlpha } = await import("./pixels.js");
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const { readPicture } = await import("./camera.js");
  const frame = await readPicture(new File([bytes], "picture.png"));
  const canvas = new OffscreenCanvas(frame.width, frame.height);
  const context = canvas.getContext("2d");
  context.drawImage(frame, 0, 0);
  const image = withoutAlpha(context.getImageData(0, 0, frame.width, frame.height));
  return sizes.map(([width, height]) => Array.from(resized(image, width, height).data));
}"""


@pytest.fixture(scope="module")
def address(trained_export: Path, recognition: Path, runtime: RuntimeFiles, tmp_path_factory: Any) -> Iterator[str]:
    out = tmp_path_factory.mktemp("trained-page") / "page"
    build(out, Exported.open(trained_export), Exported.open(recognition), runtime=runtime)
    with serve_folder(out) as where:
        yield where


@pytest.fixture(scope="module")
def page(browser: Any, address: str) -> Iterator[Any]:
    # The page's policy, which other tests cover, would refuse the code of these tests.
    with browser.new_context(bypass_csp=True) as context:
        opened = context.new_page()
        opened.goto(address)
        yield opened


@pytest.fixture(scope="module")
def pictures(photographs: dict[str, np.ndarray], webcam_frames: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    large = cv2.resize(webcam_frames["bonafide"], (1600, 1200), interpolation=cv2.INTER_CUBIC)
    narrow = np.ascontiguousarray(webcam_frames["bonafide"][:, 180:460])
    grey = np.repeat(webcam_frames["bonafide"].mean(axis=2, keepdims=True), 3, axis=2).astype(np.uint8)
    left, right = np.rot90(photographs["one"]), np.rot90(webcam_frames["bonafide"], 3)
    changed = {"large": large, "narrow": narrow, "grey": grey, "left": left, "right": right}
    return {**photographs, **webcam_frames, **{name: np.ascontiguousarray(image) for name, image in changed.items()}}


UPRIGHT = ["one", "two", "blurred", "small", "wall", "bonafide", "replay", "large", "narrow", "grey"]
NAMES = [*UPRIGHT, "turned", "left", "right"]


@pytest.mark.parametrize("name", NAMES)
def test_page_and_python_give_equal_boxes_scores_and_decisions(
    page: Any, trained_export: Path, recognition: Path, pictures: dict[str, np.ndarray], name: str
) -> None:
    compare_answers(page, Pipeline(trained_export, recognition), pictures[name])


def compare_answers(page: Any, pipeline: Pipeline, picture: np.ndarray) -> None:
    """Compare the answers of the page and of Python to a picture."""
    shown = page.evaluate(ASK, base64.b64encode(as_png(picture)).decode())
    expected = pipeline.check(picture)
    assert (shown["decision"], shown["turns"]) == (expected.decision, expected.turns)
    assert tuple(shown["reasons"]) == expected.reasons
    for shown_face, face in zip(shown["faces"], expected.faces, strict=True):
        compare_faces(shown_face, face)


def compare_faces(shown: dict[str, Any], face: Any) -> None:
    box = shown["box"]
    assert [box["x"], box["y"], box["width"], box["height"]] == pytest.approx(
        [face.box.x, face.box.y, face.box.width, face.box.height], abs=1
    )
    assert shown["confidence"] == pytest.approx(face.box.confidence, abs=1e-3)
    assert np.array(shown["points"]) == pytest.approx(np.array(face.points), abs=1)
    assert shown["quality"]["sharpness"] == pytest.approx(face.quality.sharpness, rel=0.02)
    assert shown["quality"]["turned"] == pytest.approx(face.quality.turned, abs=0.01)
    assert tuple(shown["quality"]["reasons"]) == face.quality.reasons
    assert shown["pad"]["decision"] == face.pad.decision
    assert shown["pad"]["threshold"] == pytest.approx(face.pad.threshold, abs=1e-6)
    assert tuple(shown["pad"]["notes"]) == face.pad.notes
    assert (shown["pad"]["score"] is None) == (face.pad.score is None)
    if face.pad.score is not None:
        assert shown["pad"]["score"] == pytest.approx(face.pad.score, abs=1e-3)
    assert (shown["embedding"] is None) == (face.embedding is None)
    if face.embedding is not None:
        assert float(np.array(shown["embedding"]) @ face.embedding) > 1 - 1e-3


def test_page_and_python_give_equal_scores_of_a_fused_model(
    trained_export: Path, webcam_frames: dict[str, np.ndarray], runtime: RuntimeFiles, browser: Any, tmp_path: Path
) -> None:
    wide = with_margin(trained_export, tmp_path / "wide", 2.0)
    fuse([trained_export, wide, wide], tmp_path / "fused", scales=[1.0, 2.0, 0.5], cache=tmp_path)
    build(tmp_path / "page", open_export(tmp_path / "fused"), None, runtime=runtime)
    pipeline = Pipeline(tmp_path / "fused")
    tight = np.ascontiguousarray(webcam_frames["bonafide"][120:420, 170:470])
    with serve_folder(tmp_path / "page") as address, browser.new_context(bypass_csp=True) as context:
        page = context.new_page()
        page.goto(address)
        for picture in (webcam_frames["bonafide"], webcam_frames["replay"], tight):
            compare_answers(page, pipeline, picture)


def test_pictures_cover_all_answers(trained_export: Path, recognition: Path, pictures: dict[str, np.ndarray]) -> None:
    pipeline = Pipeline(trained_export, recognition)
    answers: list[Checked] = [pipeline.check(pictures[name]) for name in NAMES]
    assert {answer.decision for answer in answers} == {"bona_fide", "attack", "no_decision"}
    assert len({answer.reasons for answer in answers}) >= 5
    assert any(face.embedding is not None for answer in answers for face in answer.faces)
    assert {answer.turns for answer in answers} == {0, 1, 2, 3}
    assert any(GREY in face.pad.notes for answer in answers for face in answer.faces if face.pad)


def test_page_scales_pictures_like_opencv(page: Any) -> None:
    noise = np.random.default_rng(3).integers(0, 256, (60, 80, 3)).astype(np.uint8)
    sizes = [(30, 23), (40, 30), (20, 15), (79, 60), (24, 24), (120, 90), (81, 60), (80, 60)]
    content = base64.b64encode(as_png(noise)).decode()
    for (width, height), values in zip(sizes, page.evaluate(SCALE, {"content": content, "sizes": sizes}), strict=True):
        shrinks = width < 80 or height < 60
        wanted = cv2.resize(noise, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
        apart = np.abs(np.array(values).reshape(wanted.shape) - wanted.astype(int))
        assert apart.max() <= 1, (width, height)
        assert (apart > 0).mean() < 0.002, (width, height)
