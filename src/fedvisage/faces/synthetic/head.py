"""The head: height of the face above the sheet, from a person's traits and expression.

The height is a rounded block (an implicit outline that is round above the eyes and tapers to the chin) plus a sum of
bells: brow, sockets, nose, lips, chin. Each bell is a product of two one-dimensional curves, so that the sum over all
bells is one matrix product.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedvisage.faces.synthetic.conditions import Conditions
from fedvisage.faces.synthetic.people import People
from fedvisage.faces.synthetic.sheet import Bell, Sheet, outer, step, sum_of_bells

BACK = -1.35
"""Height of the plane at which the head ends, behind the ears."""
EDGE = 1.045
"""Radius at which the head ends: beyond the outline of the face lies a strip of the head's side."""


@dataclass(frozen=True)
class Head:
    """The bare head on the sheet.

    Attributes:
        height: B×V×U, towards the viewer; about 0 at the cheeks, BACK outside of the head.
        radius: B×V×U, 0 in the middle of the face, 1 at the outline of the face, EDGE where the head ends.
        ears: B×V×U in [0, 1], where the ears are.

    """

    height: Tensor
    radius: Tensor
    ears: Tensor


def mouth_centre(people: People, conditions: Conditions) -> Tensor:
    """Return the height v of the line between the lips, B×1."""
    return people["mouth_height"] + 0.02 * conditions.mouth_open[:, None]


def mouth_half_width(people: People, conditions: Conditions) -> Tensor:
    """Return half of the distance between the corners of the mouth, B×1."""
    return people["mouth_width"] * (1 + 0.16 * conditions.smile - 0.12 * conditions.mouth_open)[:, None]


def mouth_corner_lift(people: People, conditions: Conditions) -> Tensor:
    """Return how far the corners of the mouth lie above its middle, B×1."""
    return people["mouth_curve"] + 0.075 * conditions.smile[:, None]


def make_head(people: People, conditions: Conditions, sheet: Sheet) -> Head:
    """Build the bare head (no hair) of each person with the expression of this moment."""
    radius = _outline(people, conditions, sheet)
    square = radius * radius
    height = (square * square).square_().mul_(-0.42).sub_(square, alpha=0.10)
    across = (people["roundness"] * 0.85 * sheet.u**2)[:, None, :]
    above = people["forehead_slope"] * (-0.35 - sheet.v).clamp(min=0) ** 2
    height = height - across - above[:, :, None] + _bells(people, conditions, sheet)
    field = _ear_field(people, sheet)
    height = torch.maximum(height, step(field, 0.25).mul_(0.28).add_(BACK))
    return Head(height, radius, step(field - 0.08, 0.08))


def _outline(people: People, conditions: Conditions, sheet: Sheet) -> Tensor:
    """Return the implicit outline: a superellipse, rounder above than below, whose lower half tapers to the chin."""
    chin = people["chin"] + 0.16 * conditions.mouth_open[:, None]
    below = (sheet.v / chin).clamp(min=0)
    above = (-sheet.v / people["head_top"]).clamp(min=0)
    power = people["jaw_power"]
    width = 0.975 * people["head_width"] * (1.0 - people["jaw_taper"] * below.clamp(max=1.3) ** 2)
    row = (sheet.u.abs() + 1e-4) ** power
    value = outer(width**-power, row).add_((below**power + above**2.3)[:, :, None])
    return value.log_().div_(power[:, :, None]).exp_()


def _ear_field(people: People, sheet: Sheet) -> Tensor:
    """Return the ears as a field that is 1 in their middle and 0 at their rims: an upright ellipse on each side."""
    size, out = people["ear_size"], people["ear_out"]
    row = ((sheet.u.abs() - (people["head_width"] - 0.16)) / (0.16 + out)) ** 2
    column = ((sheet.v - 0.18) / (size * 1.25)) ** 2
    return 1.0 - row[:, None, :] - column[:, :, None]


def _bells(people: People, conditions: Conditions, sheet: Sheet) -> Tensor:
    """Sum all bells of the face: one matrix product of columns (B×V×K) with rows (B×K×U)."""
    bells = [
        *_upper_bells(people, conditions),
        *_nose_bells(people),
        *_lower_bells(people, conditions),
    ]
    return sum_of_bells(bells, len(people), sheet)


def _upper_bells(people: People, conditions: Conditions) -> list[Bell]:
    """Return brow ridge, eye sockets, eyeballs, cheekbones, bags under the eyes and wrinkles."""
    p, raised = people, 0.03 * conditions.brow_raise[:, None]
    spacing, wrinkled = p["eye_spacing"], 0.016 * p["wrinkles"]
    brow = p["brow_height"] + 0.05 - raised
    return [
        (p["brow_ridge"], spacing - 0.05, brow, 0.26, 0.085),
        (0.5 * p["brow_ridge"], 0.0, brow + 0.02, 0.12, 0.09),
        (-p["socket_depth"], spacing - 0.02, 0.0, 0.19, 0.13),
        (-0.5 * p["socket_depth"], spacing - 0.19, -0.04, 0.06, 0.09),
        (0.75 * p["socket_depth"], spacing, 0.005, 0.13, 0.085),
        (p["eye_bags"], spacing, 0.19, 0.15, 0.045),
        (-0.8 * p["eye_bags"], spacing, 0.27, 0.17, 0.03),
        (p["cheekbones"] + 0.04 * conditions.smile[:, None], 0.60, 0.42, 0.22, 0.17),
        (-0.04, 0.92, -0.35, 0.13, 0.25),
        (-wrinkled, 0.0, -0.52 - raised, 0.30, 0.018),
        (-wrinkled, 0.0, -0.63 - raised, 0.36, 0.018),
        (-0.7 * wrinkled, 0.0, -0.75 - raised, 0.30, 0.018),
        (-0.8 * wrinkled, 0.07, -0.22, 0.014, 0.07),
        (-0.8 * wrinkled, spacing + 0.27, 0.02, 0.05, 0.014),
        (-0.8 * wrinkled, spacing + 0.26, 0.09, 0.05, 0.014),
    ]


def _nose_bells(people: People) -> list[Bell]:
    """Return bridge, back, tip, wings and nostrils of the nose."""
    p = people
    length, width, height = p["nose_length"], p["nose_width"], p["nose_height"]
    return [
        (p["nose_bridge"], 0.0, 0.0, p["nose_bridge_width"], 0.20),
        (0.45 * height + 0.3 * p["nose_bridge"] + p["nose_bend"], 0.0, 0.5 * length, p["nose_bridge_width"], 0.16),
        (0.85 * height, 0.0, length - 0.02, p["nose_tip"], 0.10),
        (0.22 * height, 0.0, length + 0.04, 0.8 * width, 0.12),
        (0.50 * height, width, length + 0.045, 0.055, 0.065),
        (-0.05, 0.50 * width, length + 0.12, 0.035, 0.026),
        (-0.07, width + 0.095, length + 0.03, 0.035, 0.08),
        (-0.02, 0.0, length + 0.19, 0.16, 0.05),
    ]


def _lower_bells(people: People, conditions: Conditions) -> list[Bell]:
    """Return muzzle, lips, folds, cheeks and chin."""
    p, smile = people, conditions.smile[:, None].clamp(min=0)
    mouth, half = mouth_centre(people, conditions), mouth_half_width(people, conditions)
    drop = 0.14 * conditions.mouth_open[:, None]
    fold = -(p["folds"] + 0.035 * smile)
    wing, chin = p["nose_width"], p["chin"] + drop
    return [
        (p["muzzle"], 0.0, mouth - 0.02, 0.30, 0.20),
        (0.45 * p["lip_upper"] + 0.01, 0.10, mouth - 0.5 * p["lip_upper"], 0.55 * half, 0.045),
        (0.50 * p["lip_lower"] + 0.01, 0.0, mouth + drop + 0.5 * p["lip_lower"], 0.50 * half, 0.05),
        (-0.055, 0.0, mouth, 0.75 * half, 0.020),
        (-0.035, half + 0.01, mouth - 0.01, 0.045, 0.05),
        (-0.018, 0.0, mouth - p["lip_upper"] - 0.09, 0.035, 0.06),
        (-0.06, 0.0, mouth + drop + p["lip_lower"] + 0.09, 0.20, 0.05),
        (fold, wing + 0.13, p["nose_length"] + 0.13, 0.05, 0.09),
        (fold, wing + 0.20, p["nose_length"] + 0.26, 0.05, 0.09),
        (fold, wing + 0.255, p["nose_length"] + 0.40, 0.05, 0.10),
        (-p["cheek_hollow"], 0.62, 0.85, 0.20, 0.18),
        (0.03 * smile, 0.50, 0.62, 0.15, 0.15),
        (p["chin_forward"], 0.0, chin - 0.17, p["chin_width"], 0.12),
        (-p["chin_cleft"], 0.0, chin - 0.15, 0.025, 0.07),
    ]
