"""Several frames of one face: bursts and videos get one decision, by the mean of their log-odds."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from fedvisage.base.progress import discard_steps
from fedvisage.cli import app
from fedvisage.device import Exported
from fedvisage.device.predict import CroppedFace, Predictions, describe_notes, list_input_pictures, score_pictures
from fedvisage.metrics.threshold import Threshold

SIDE = 32


def add_pictures(folder: Path, brightness: Sequence[int], size: int = SIDE) -> list[Path]:
    """Write a grey picture of each brightness."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.png" for number in range(len(brightness))]
    for path, value in zip(paths, brightness, strict=True):
        Image.fromarray(np.full((size, size, 3), value, np.uint8)).save(path)
    return paths


def add_video(path: Path, brightness: Sequence[int]) -> Path:
    """Write a video with a grey frame of each brightness."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (SIDE, SIDE))
    for value in brightness:
        writer.write(np.full((SIDE, SIDE, 3), value, np.uint8))
    writer.release()
    return path


def find_face(picture: NDArray[np.uint8]) -> CroppedFace:
    """Take a picture as its face, unless it is dark."""
    return CroppedFace((picture,)) if picture.mean() > 50 else CroppedFace(reason="no face found")


def decide(*paths: Path, burst: bool = False) -> Predictions:
    """Score pictures by (brightness − 128) / 16; the threshold is 0."""
    inputs = list_input_pictures(paths)
    inputs = inputs.as_burst() if burst else inputs
    return score_pictures(
        inputs,
        find_face,
        lambda crops: (crops[0].mean((1, 2, 3)) - 128) / 16,
        Threshold(0.0, "fixed", None, None),
        discard_steps,
    )


def test_burst_gets_one_decision_by_the_mean_log_odds(tmp_path: Path) -> None:
    add_pictures(tmp_path, [96, 144, 240, 10])
    (result,) = decide(tmp_path, burst=True).images
    assert result.logit == pytest.approx((-2 + 1 + 7) / 3)
    assert (result.decision, result.frames) == ("live", 3)
    assert result.path == f"{tmp_path}/0.png to {tmp_path}/3.png"
    assert [image.decision for image in decide(tmp_path).images] == ["attack", "live", "live", "rejected"]


def test_text_states_the_number_of_frames(tmp_path: Path) -> None:
    add_pictures(tmp_path, [100, 90])
    assert "mean of 2 frames" in decide(tmp_path, burst=True).lines()[1]
    assert not any("frames" in line for line in decide(tmp_path).lines())


def test_text_counts_faces_of_one_picture_only() -> None:
    assert describe_notes(("several faces",), 3) == "  (3 faces: the largest)"
    assert describe_notes(("several faces",), 1) == "  (several faces: the largest)"  # in one frame of a burst


@pytest.mark.parametrize("count", [3, 40])
def test_video_is_one_face_of_at_most_ten_frames(count: int, tmp_path: Path) -> None:
    (video,) = add_pictures(tmp_path / "pictures", [200])
    film = add_video(tmp_path / "film.avi", [80] * (count - count // 3) + [220] * (count // 3))
    results = decide(film, video).images
    assert [(result.path, result.frames) for result in results] == [(str(film), min(count, 10)), (str(video), 1)]
    share = 1 / 3 if count == 3 else 0.3
    assert results[0].logit == pytest.approx(((1 - share) * 80 + share * 220 - 128) / 16, abs=0.2)


def test_burst_without_a_face_is_rejected_with_the_reason(tmp_path: Path) -> None:
    add_pictures(tmp_path, [10, 20])
    (result,) = decide(tmp_path, burst=True).images
    assert (result.decision, result.reason, result.frames) == ("rejected", "no face found", 0)


def test_bad_files_get_one_answer_each(tmp_path: Path) -> None:
    (good,) = add_pictures(tmp_path, [200])
    empty, pipe, link = tmp_path / "empty.jpg", tmp_path / "pipe.png", tmp_path / "link.png"
    broken, pipe_film = tmp_path / "broken.mp4", tmp_path / "pipe.avi"
    empty.write_bytes(b"")
    broken.write_bytes(b"\0\0\0\x18ftypmp42 and no more")
    link.symlink_to(tmp_path / "missing.png")
    os.mkfifo(pipe)
    os.mkfifo(pipe_film)
    results = decide(empty, pipe, link, broken, pipe_film, good).images
    assert [result.decision for result in results] == ["rejected"] * 5 + ["live"]
    for result, word in zip(results, ("empty", "regular", "missing", "video", "regular"), strict=False):
        assert word in result.reason


def test_command_averages_a_folder(pad: Path, tmp_path: Path) -> None:
    add_pictures(tmp_path, [100, 130, 160], Exported.open(pad).size)
    words = ["predict", str(pad), str(tmp_path), "--crop=none", "--json", "--quiet"]
    runs = [CliRunner().invoke(app, [*words, *more]) for more in ([], ["--burst"])]
    single, (burst,) = (json.loads(run.stdout)["images"] for run in runs)
    assert burst["logit"] == pytest.approx(np.mean([image["logit"] for image in single]))
    assert burst["frames"] == 3
