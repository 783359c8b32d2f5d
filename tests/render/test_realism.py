"""Realism: a detector trained on photographs finds the rendered faces and their points.

Once before the plainest camera there is, and once as the domains deliver their bona fide images: in the domain's
light, through its cameras and their JPEG, with the points of the set as the truth.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedvisage.base.streams import derive
from fedvisage.faces.detection import Detector
from fedvisage.render.domains import find_domain
from fedvisage.render.filming import Video
from fedvisage.render.people import add_movements, draw_conditions, draw_people
from fedvisage.render.scene import Scene, render
from fedvisage.render.sets import Synthesis, film_subject, plan_videos

pytestmark = pytest.mark.slow

FACES, SIZE = 60, 128

Photographs = Iterator[tuple[NDArray[np.uint8], NDArray[np.float32], float]]
"""Pictures with their true points and the true width of the face, in pixels."""


def photograph(scene: Scene) -> NDArray[np.uint8]:
    """Expose for the face and apply a display's gamma: the plainest camera there is."""
    light = scene.radiance.mean(1)
    level = (light * scene.face).sum((1, 2)) / scene.face.sum((1, 2))
    exposed = (scene.radiance * (0.26 / level)[:, None, None, None]).clamp(0, 1)
    return np.asarray((exposed ** (1 / 2.2) * 255).round().to(torch.uint8).permute(0, 2, 3, 1))


def before_a_plain_camera() -> Photographs:
    for start in range(0, FACES, 20):
        seeds = range(start, start + 20)
        conditions = draw_conditions([1000 + seed for seed in seeds])
        scene = render(draw_people(seeds), conditions, SIZE)
        yield from zip(photograph(scene), scene.points.numpy(), (conditions.scale * SIZE).tolist(), strict=True)


def as_delivered(name: str) -> Photographs:
    domain = find_domain(name)
    for videos in plan_videos(Synthesis(name, size=SIZE, subjects=FACES // 2, videos=2, frames=1)):
        living = [video for video in videos if video.attack is None]
        filmed = film_subject(living, domain, SIZE)
        yield from zip(filmed.images, filmed.points, widths(living, name), strict=True)


def widths(videos: Sequence[Video], name: str) -> list[float]:
    """Return the width of the face in the only frame of each video: drawn again, as sets do not store it."""
    domain = find_domain(name)
    conditions = draw_conditions(
        [derive(video.seed, "face") for video in videos],
        yaw_max=domain.yaw,
        light=domain.place.light,
        backgrounds=domain.place.backgrounds,
    )
    return (add_movements(conditions, [derive(video.seed, "face", 0) for video in videos]).scale * SIZE).tolist()


def detect_points(picture: NDArray[np.uint8], detector: Detector) -> NDArray[np.float64]:
    """Return the five points of the most likely face; NaN without a face."""
    faces = detector.detect(picture)
    return faces[0].points if faces else np.full((5, 2), np.nan)


@pytest.mark.parametrize(
    "look",
    [before_a_plain_camera, *(partial(as_delivered, name) for name in "OCIM")],
    ids=["plain camera", "O", "C", "I", "M"],
)
def test_detector_finds_the_faces_and_their_points(look: Callable[[], Photographs]) -> None:
    detector = Detector()
    pictures, points, face_widths = zip(*look(), strict=True)
    truth, width = np.array(points, np.float64), np.array(face_widths)[:, None]
    seen = np.array([detect_points(picture, detector) for picture in pictures])
    apart = (np.linalg.norm(seen - truth, axis=2) / width).mean(1)
    detected = np.isfinite(apart)
    assert len(detected) == FACES
    assert detected.mean() >= 0.90
    assert (apart[detected] <= 0.07).mean() >= 0.95
    # Faces are framed alike, so a guess that is always the same comes close as well; the detector comes closer.
    guess = (np.linalg.norm(truth.mean(0) - truth, axis=2) / width).mean(1)
    assert apart[detected].mean() <= 0.6 * guess.mean()
