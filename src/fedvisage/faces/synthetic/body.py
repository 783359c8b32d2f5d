"""The body: neck, shoulders and clothes behind the head, drawn in the image with simple shading."""

import numpy as np
import torch
from torch import Tensor

from fedvisage.faces.synthetic.conditions import Conditions
from fedvisage.faces.synthetic.light import colour_of
from fedvisage.faces.synthetic.noise import noise
from fedvisage.faces.synthetic.people import People
from fedvisage.faces.synthetic.pose import pixel_grid, units_per_frame
from fedvisage.faces.synthetic.sheet import UNITS_PER_FRAME, step, tint
from fedvisage.faces.synthetic.skin import skin_colour
from fedvisage.streams import numpy_rng


def put_body(picture: Tensor, people: People, conditions: Conditions) -> None:
    """Draw neck and shoulders into a picture (B×3×H×W), in place. Only its lower part can show them."""
    size = picture.shape[-1]
    x, y = pixel_grid(conditions, size)
    y = y[:, size * 2 // 5 :]
    edge = (units_per_frame(conditions) / size)[:, None, None]
    clothes = torch.tensor(np.stack([_draw_clothes(seed) for seed in conditions.seeds]), dtype=torch.float32)
    neck_half = people["neck_width"][..., None] + 0.25 * (y - 1.25).clamp(min=0.0)
    neck = step(neck_half - x.abs(), edge) * step(y - 0.2, 0.1)
    collar, opening = clothes[:, 3, None, None], clothes[:, 4, None, None]
    # Shoulders fall away from the neck; the neckline dips in front.
    shoulder = 1.18 + 0.42 * (x.abs() - 0.55).clamp(min=0.0)
    neckline = collar + opening * (1.0 - (x / 0.8) ** 2).clamp(min=0.0)
    fabric = step(y - torch.maximum(shoulder, neckline), edge)
    skin = (0.92 * skin_colour(people))[:, :, None, None]
    lit_neck = _irradiance(conditions, (x / neck_half).clamp(-0.98, 0.98))
    lit_neck.mul_(_below_chin(people, y)[:, None])
    lower = picture[:, :, -y.shape[1] :]
    lower.lerp_(lit_neck.mul_(skin), neck[:, None])
    upright = _irradiance(conditions, (x / 2.2).clamp(-0.9, 0.9))
    cloth = tint(_folds(conditions, y.shape[1], size), clothes[:, :3]).mul_(upright)
    lower.lerp_(cloth, fabric[:, None])


def _irradiance(conditions: Conditions, across: Tensor) -> Tensor:
    """Return the light on an upright cylinder, B×3×H×W, at a place across it (-1 left edge, 1 right edge)."""
    c = conditions
    forward = (1.0 - across * across).sqrt()
    facing = (across * c.key[:, 0, None, None] + forward * c.key[:, 2, None, None] + 0.08).clamp_(min=0.0)
    around = colour_of(c.ambient_kelvin) * (c.ambient_strength + 0.4 * c.fill_strength)[:, None]
    light = tint(facing, colour_of(c.key_kelvin) * c.key_strength[:, None])
    return light.add_(tint(forward.mul_(0.45).add_(0.55), around))


def _below_chin(people: People, y: Tensor) -> Tensor:
    """Return how much light reaches the neck, B×H×1: little under the chin, most of it at the collar."""
    return 0.30 + 0.60 * step(y - people["chin"][..., None] + 0.22, 0.42)


def _folds(conditions: Conditions, rows: int, columns: int) -> Tensor:
    """Return the light and dark of folds and weave in the lower rows of the picture, B×rows×columns."""
    cell = UNITS_PER_FRAME / columns
    folds = noise("coarse", conditions.seeds, "folds", rows, columns, cell)
    weave = noise("fine", conditions.seeds, "weave", rows, columns, cell)
    return folds.mul_(0.14).add_(weave, alpha=0.06).add_(1.0).clamp_(min=0.2)


def _draw_clothes(seed: int) -> np.ndarray:
    """Draw colour (3), height of the collar and depth of the neckline."""
    rng = numpy_rng(seed, "clothes")
    brightness = np.exp(rng.uniform(np.log(0.02), np.log(0.6)))
    colour = np.clip(brightness * np.exp(rng.normal(0.0, 0.35, 3)), 0.01, 0.85)
    return np.concatenate([colour, [rng.uniform(1.05, 1.3), rng.uniform(0.0, 0.5)]])
