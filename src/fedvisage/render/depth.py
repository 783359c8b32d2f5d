"""Depth of real photographs: the average face in the pose that matches the photograph's five landmarks.

The surface is the renderer's own head with every trait at its mean and no expression. Its pose is weak perspective
(three angles, scale, place), fitted to the two eyes, the tip of the nose and the corners of the mouth by least squares.
The map is made like the renderer's exact ones, so both kinds can be mixed: 255 is the nearest point of the face, 0 is
1.7 head units (half head widths) further back, or no face.

The fit does not recover a person's own shape, the expression, or hair in front of the forehead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import cos, sin
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.render.head import make_hair, make_head
from fedvisage.render.people import Conditions, average_person, draw_conditions
from fedvisage.render.scene import depth_map, face_cover, landmarks, small_depth
from fedvisage.render.sheet import PIVOT, find_visible_points, halve, look_up, make_sheet

Points = NDArray[np.floating[Any]]
Map = NDArray[np.uint8]

SIZE = 64
"""Resolution in pixels of the rendered surface, before it is averaged to the size of a map."""
LANDMARK_SPREAD = 0.05
"""Deviation of a landmark as a share of the face's width, from differences between people and errors of detectors. The
best of 0.0125 to 0.1 on rendered faces, with exact and with detected points; the choice changes results by less than a
tenth of the error."""
POSE_SPREAD = (0.5, 0.3)
"""Usual turn and nod of heads in photographs (standard deviations, radians). This prior decides where the points
cannot: a raised chin and a short nose look alike."""
FARTHEST = (1.0, 0.6)
"""Limits of the fitted turn and nod; beyond them, half of the landmarks would be hidden."""


@dataclass(frozen=True)
class _Surface:
    """The average face on the sheet: its height, also at half the resolution, its face area, and its five points."""

    height: Tensor
    small: Tensor
    cover: Tensor
    points: Tensor


def canonical_depth(points: Points, size: int) -> Map:
    """Return the 32×32 depth map of the face with these five points (x, y) in an image of size×size pixels.

    Raises ValueError if the points lie on one spot or are not finite.
    """
    conditions, surface = fit_pose(points / size), _average_face()
    view = find_visible_points(surface.height, surface.small, conditions, SIZE)
    face = look_up(surface.cover[:, None], view.u, view.v, outside="zeros")[:, 0]
    return np.asarray(small_depth(depth_map(view.near, face))[0])


def fit_pose(points: Points) -> Conditions:
    """Return the pose in which the average face has these five points (5×2, in shares of the frame)."""
    landmarks_of = _average_face().points.double()  # single precision is too coarse for differences
    around = (landmarks_of[0] - PIVOT).numpy()
    target = np.asarray(points, np.float64)
    if not (np.isfinite(target).all() and np.ptp(target) > 1e-3):
        raise ValueError("the five points of a face must be finite and must not coincide")
    spread = np.sqrt(target.var(axis=0).sum() / float(landmarks_of[0, :, :2].var(dim=0, correction=0).sum()))

    def misfit(pose: NDArray[np.float64]) -> NDArray[np.float64]:
        missed = place_points(around, pose) - target
        return np.concatenate([(missed / (2 * spread * LANDMARK_SPREAD)).ravel(), pose[:2] / POSE_SPREAD])

    from scipy.optimize import least_squares  # imported here, because most runs use prepared sets and never fit depth

    eyes = target[1] - target[0]
    start = np.array([0.0, 0.0, np.arctan2(eyes[1], eyes[0]), 2 * spread, *target.mean(axis=0)])
    limits = np.array([*FARTHEST, np.inf, np.inf, np.inf, np.inf])
    best = least_squares(misfit, start, bounds=(-limits, limits), x_scale=[1, 1, 1, spread, spread, spread])
    yaw, pitch, roll, scale, *centre = torch.from_numpy(best.x).float()[:, None]
    return replace(_neutral(), yaw=yaw, pitch=pitch, roll=roll, scale=scale, centre=torch.stack(centre, 1))


def place_points(around: Points, pose: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the frame positions of points around the pivot: a fast `sheet.project` for the fit of five points."""
    yaw, pitch, roll, scale = pose[:4].tolist()
    across = np.array([cos(yaw), 0.0, sin(yaw)])
    down = np.array([sin(pitch) * sin(yaw), cos(pitch), -sin(pitch) * cos(yaw)])
    turned = np.stack([cos(roll) * across - sin(roll) * down, sin(roll) * across + cos(roll) * down], axis=1)
    return np.asarray(around @ turned * (scale / 2) + pose[4:])


@cache
def _neutral() -> Conditions:
    return draw_conditions([0], yaw_max=0, pitch_max=0, roll_max=0, expression=0)


@cache
def _average_face() -> _Surface:
    person, sheet = average_person(), make_sheet(SIZE)
    head = make_head(person, _neutral(), sheet)
    cover = face_cover(head, make_hair(person, head, sheet))
    points = landmarks(person, _neutral(), head.height)
    return _Surface(head.height, halve(head.height), cover, points)
