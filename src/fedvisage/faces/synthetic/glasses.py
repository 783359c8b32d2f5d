"""Glasses: two rims, a bridge and the temples, lying just in front of the face."""

import numpy as np
import torch
from torch import Tensor

from fedvisage.faces.synthetic.coat import Coat, Finish
from fedvisage.faces.synthetic.conditions import Conditions
from fedvisage.faces.synthetic.people import People
from fedvisage.faces.synthetic.sheet import Sheet, Window, bell, outer, plateau, step, window
from fedvisage.streams import numpy_rng

DISTANCE = 0.05
"""How far in front of the skin the frame lies, head units."""


def glasses_window(sheet: Sheet) -> Window:
    """Return the part of the sheet that can hold glasses."""
    return window(sheet, -0.45, 0.55, 1.15)


def paint_glasses(coat: Coat, people: People, conditions: Conditions, sheet: Sheet) -> Tensor:
    """Paint the frames on a coat and return where they are, in the window of the glasses (B×V'×U')."""
    part = glasses_window(sheet)
    drawn = torch.tensor(np.stack([_draw_frame(seed) for seed in conditions.seeds]), dtype=torch.float32)
    half_width, half_height, thick, power = (drawn[:, 3 + k, None] for k in range(4))
    middle = 0.04
    across = ((part.u.abs() - people["eye_spacing"] - 0.01).abs() / half_width + 1e-4) ** power
    down = ((part.v - middle).abs() / half_height + 1e-4) ** power
    distance = (across[:, None, :] + down[:, :, None]).log_().div_(power[:, :, None]).exp_().sub_(1.0)
    rims = bell(distance, 0.0, (thick / half_height)[:, :, None])
    inner = people["eye_spacing"] - half_width
    bridge = outer(bell(part.v, middle - 0.06, 0.9 * thick), step(inner + 0.03 - part.u.abs(), 0.03))
    outer_end = people["eye_spacing"] + half_width
    temples = outer(bell(part.v, middle - 0.08, 0.9 * thick), step(part.u.abs() - outer_end, 0.03))
    temples = temples * plateau(part.u, 1.05, 8)[:, None, :]
    worn = torch.maximum(torch.maximum(rims, bridge), temples) * conditions.glasses[:, None, None]
    frame = step(worn - 0.42, 0.25)
    coat.cover(part, frame, drawn[:, :3, None, None], Finish(0.10, 30.0))
    return frame


def _draw_frame(seed: int) -> np.ndarray:
    """Draw colour (3), half width and half height of a lens, thickness of the rim and squareness."""
    rng = numpy_rng(seed, "glasses")
    colour = np.exp(rng.uniform(np.log(0.01), np.log(0.2))) * np.exp(rng.normal(0.0, 0.25, 3))
    shape = [rng.uniform(0.30, 0.36), rng.uniform(0.19, 0.29), rng.uniform(0.016, 0.030), rng.uniform(2.0, 4.5)]
    return np.concatenate([colour, shape])
