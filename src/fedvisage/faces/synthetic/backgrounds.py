"""Backgrounds: plain walls, rooms, clutter and the open air, out of focus, from a seed.

A background is a gradient, a number of soft rectangles (furniture, windows, people far away) and noise. Rectangles
are products of a column and a row, so any number of them is one matrix product.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedvisage.faces.synthetic.conditions import CLUTTER, GRADIENT, OUTDOOR, PLAIN, ROOM, Conditions
from fedvisage.faces.synthetic.noise import noise
from fedvisage.faces.synthetic.sheet import step
from fedvisage.streams import numpy_rng

RECTANGLES = 14


@dataclass(frozen=True)
class Recipe:
    """How a kind of background looks: number of rectangles, contrasts, colourfulness, blur and noise."""

    rectangles: int
    contrast: float
    gradient: float
    colourful: float
    blur: tuple[float, float]
    coarse: float
    fine: float


RECIPES = {
    PLAIN: Recipe(0, 0.0, 0.10, 0.06, (0.1, 0.2), 0.02, 0.012),
    GRADIENT: Recipe(1, 0.2, 0.7, 0.12, (0.3, 0.6), 0.05, 0.01),
    ROOM: Recipe(6, 0.6, 0.35, 0.10, (0.01, 0.06), 0.05, 0.015),
    CLUTTER: Recipe(14, 0.6, 0.3, 0.22, (0.005, 0.04), 0.08, 0.03),
    OUTDOOR: Recipe(4, 0.45, 0.9, 0.18, (0.02, 0.08), 0.16, 0.06),
}


def make_backgrounds(conditions: Conditions, size: int) -> Tensor:
    """Return the radiance of the surroundings, B×3×H×W."""
    drawn = [
        _draw(seed, int(kind)) for seed, kind in zip(conditions.seeds, conditions.background.tolist(), strict=True)
    ]
    base, slope, colours, boxes, softness, amounts = (
        torch.tensor(np.stack([np.asarray(one[part]) for one in drawn]), dtype=torch.float32) for part in range(6)
    )
    t = (torch.arange(size) + 0.5) / size
    across = step(boxes[:, :, 2, None] - (t - boxes[:, :, 0, None]).abs(), softness[:, None, None])
    down = step(boxes[:, :, 3, None] - (t - boxes[:, :, 1, None]).abs(), softness[:, None, None])
    painted = torch.einsum("bkc,bkh,bkw->bchw", colours, down, across)
    ramp = (t - 0.5)[None, None, :, None] * slope[:, :, None, None]
    cell = 3.6 / size
    rough = amounts[:, :1, None] * noise("coarse", conditions.seeds, "background", size, size, cell)
    rough += amounts[:, 1:, None] * noise("medium", conditions.seeds, "background", size, size, cell)
    painted = painted.contiguous().add_(base[:, :, None, None] + ramp).mul_((1.0 + rough)[:, None])
    return painted.clamp_(min=0.02).mul_(conditions.background_level[:, None, None, None])


def _draw(seed: int, kind: int) -> tuple[np.ndarray, ...]:
    """Draw one background: base colour, vertical slope, colours and places of rectangles, softness, noise amounts."""
    recipe, rng = RECIPES[kind], numpy_rng(seed, "background")
    base = np.clip(1.0 + recipe.colourful * rng.normal(0.0, 0.5, 3), 0.3, 1.8)
    slope = -recipe.gradient * rng.uniform(-0.3, 1.2) * (1.0 + recipe.colourful * rng.normal(0.0, 1.0, 3))
    used = (np.arange(RECTANGLES) < recipe.rectangles)[:, None]
    tint = rng.normal(0.0, 0.55, (RECTANGLES, 1)) + recipe.colourful * rng.normal(0.0, 0.5, (RECTANGLES, 3))
    boxes = np.concatenate(
        [rng.uniform(0.0, 1.0, (RECTANGLES, 2)), np.exp(rng.uniform(np.log(0.03), np.log(0.4), (RECTANGLES, 2)))], 1
    )
    softness = rng.uniform(*recipe.blur)
    return base, slope, used * recipe.contrast * tint, boxes, softness, np.array([recipe.coarse, recipe.fine])
