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
from fedvisage.faces.synthetic.sheet import UNITS_PER_FRAME, step
from fedvisage.streams import numpy_rng

RECTANGLES = 14
MEADOW = np.array([-0.60, -0.48, -0.70])
"""Ground and trees under a sky of mean 1: darker, and greenish."""


@dataclass(frozen=True)
class Recipe:
    """How a kind of background looks: rectangles, contrasts, colourfulness, blur, noise; a horizon or not."""

    rectangles: int
    contrast: float
    gradient: float
    colourful: float
    blur: tuple[float, float]
    coarse: float
    fine: float
    horizon: bool = False


RECIPES = {
    PLAIN: Recipe(0, 0.0, 0.10, 0.06, (0.1, 0.2), 0.015, 0.008),
    GRADIENT: Recipe(1, 0.2, 0.7, 0.12, (0.3, 0.6), 0.03, 0.008),
    ROOM: Recipe(7, 0.65, 0.35, 0.12, (0.01, 0.06), 0.02, 0.01),
    CLUTTER: Recipe(14, 0.75, 0.3, 0.25, (0.005, 0.03), 0.03, 0.03),
    OUTDOOR: Recipe(6, 0.35, 0.5, 0.12, (0.01, 0.06), 0.22, 0.16, horizon=True),
}


def make_backgrounds(conditions: Conditions, size: int) -> Tensor:
    """Return the radiance of the surroundings, B×3×H×W."""
    drawn = [
        _draw(seed, int(kind)) for seed, kind in zip(conditions.seeds, conditions.background.tolist(), strict=True)
    ]
    base, slope, colours, boxes, softness, amounts = (
        torch.tensor(np.stack([one[part] for one in drawn]), dtype=torch.float32) for part in range(6)
    )
    t = (torch.arange(size) + 0.5) / size
    across = step(boxes[:, :, 2, None] - (t - boxes[:, :, 0, None]).abs(), softness[:, None, None])
    down = step(boxes[:, :, 3, None] - (t - boxes[:, :, 1, None]).abs(), softness[:, None, None])
    painted = torch.einsum("bkc,bkh,bkw->bchw", colours, down, across).contiguous()
    painted.add_(base[:, :, None, None] + (t - 0.5)[None, None, :, None] * slope[:, :, None, None])
    cell = UNITS_PER_FRAME / size
    rough = amounts[:, 0, None, None] * noise("coarse", conditions.seeds, "background", size, size, cell)
    rough.addcmul_(noise("medium", conditions.seeds, "background", size, size, cell), amounts[:, 1, None, None])
    # The sky is smooth: where there is a horizon, only what lies below it is rough.
    rough.mul_((1.0 - amounts[:, 2, None] * (1.0 - down[:, 0]))[:, :, None])
    painted.mul_((1.0 + rough)[:, None])
    return painted.clamp_(min=0.02).mul_(conditions.background_level[:, None, None, None])


def _draw(seed: int, kind: int) -> tuple[np.ndarray, ...]:
    """Draw one background: base colour, vertical slope, colours and places of rectangles, softness, noise amounts."""
    recipe, rng = RECIPES[kind], numpy_rng(seed, "background")
    base = np.clip(1.0 + recipe.colourful * rng.normal(0.0, 0.5, 3), 0.3, 1.8)
    slope = -recipe.gradient * rng.uniform(-0.3, 1.2) * (1.0 + recipe.colourful * rng.normal(0.0, 1.0, 3))
    used = (np.arange(RECTANGLES) < recipe.rectangles)[:, None]
    tint = rng.normal(0.0, 0.55, (RECTANGLES, 1)) + recipe.colourful * rng.normal(0.0, 0.5, (RECTANGLES, 3))
    colours = used * recipe.contrast * tint
    boxes = np.concatenate(
        [rng.uniform(0.0, 1.0, (RECTANGLES, 2)), np.exp(rng.uniform(np.log(0.03), np.log(0.45), (RECTANGLES, 2)))], 1
    )
    softness = np.array(rng.uniform(*recipe.blur))
    if recipe.horizon:
        colours[0] = MEADOW + rng.normal(0.0, 0.06, 3)
        boxes[0] = (0.5, 1.0, 1.0, rng.uniform(0.25, 0.75))
    return base, slope, colours, boxes, softness, np.array([recipe.coarse, recipe.fine, float(recipe.horizon)])
