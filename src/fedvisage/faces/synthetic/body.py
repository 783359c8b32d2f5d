"""The body: neck, shoulders and clothes behind the head, drawn in the image with simple shading."""

import numpy as np
import torch
from torch import Tensor

from fedvisage.faces.synthetic.conditions import Conditions
from fedvisage.faces.synthetic.light import colour_of
from fedvisage.faces.synthetic.noise import noise
from fedvisage.faces.synthetic.people import People
from fedvisage.faces.synthetic.pose import pixel_grid, units_per_frame
from fedvisage.faces.synthetic.sheet import step
from fedvisage.faces.synthetic.skin import skin_colour
from fedvisage.streams import numpy_rng


def make_body(people: People, conditions: Conditions, size: int) -> tuple[Tensor, Tensor]:
    """Return radiance (B×3×H×W) and coverage (B×H×W) of neck and shoulders."""
    x, y = pixel_grid(conditions, size)
    edge = (units_per_frame(conditions) / size)[:, None, None]
    clothes = torch.tensor(np.stack([_draw_clothes(seed) for seed in conditions.seeds]), dtype=torch.float32)
    neck_half = people["neck_width"][..., None] + 0.25 * (y - 1.25).clamp(min=0.0)
    neck = step(neck_half - x.abs(), edge) * step(y - 0.2, 0.1)
    collar, opening = clothes[:, 3, None, None], clothes[:, 4, None, None]
    # Shoulders fall away from the neck; the neckline dips in front.
    shoulder = 1.18 + 0.42 * (x.abs() - 0.55).clamp(min=0.0)
    neckline = collar + opening * (1.0 - (x / 0.8) ** 2).clamp(min=0.0)
    fabric = step(y - torch.maximum(shoulder, neckline), edge)
    cloth_colour = clothes[:, :3, None, None] * _folds(conditions, size)[:, None]
    skin = 0.92 * skin_colour(people)[:, :, None, None]
    lit_neck = _irradiance(conditions, (x / neck_half).clamp(-0.98, 0.98)) * _below_chin(people, y)[:, None]
    lit_cloth = _irradiance(conditions, (x / 2.2).clamp(-0.9, 0.9))
    radiance = skin * lit_neck * (1.0 - fabric[:, None]) + cloth_colour * lit_cloth * fabric[:, None]
    return radiance, torch.maximum(neck, fabric)


def _irradiance(conditions: Conditions, across: Tensor) -> Tensor:
    """Return the light on an upright cylinder, B×3×H×W, at a place across it (-1 left edge, 1 right edge)."""
    c = conditions
    forward = (1.0 - across * across).sqrt()
    cosine = (across * c.key[:, 0, None, None] + forward * c.key[:, 2, None, None] + 0.08).clamp(min=0.0)
    key = (colour_of(c.key_kelvin) * c.key_strength[:, None])[:, :, None, None]
    around = (colour_of(c.ambient_kelvin) * (c.ambient_strength + 0.4 * c.fill_strength)[:, None])[:, :, None, None]
    return key * cosine[:, None] + around * (0.55 + 0.45 * forward)[:, None]


def _below_chin(people: People, y: Tensor) -> Tensor:
    """Return how much light reaches the neck, B×H×1: little under the chin, most of it at the collar."""
    return 0.30 + 0.60 * step(y - people["chin"][..., None] + 0.22, 0.42)


def _folds(conditions: Conditions, size: int) -> Tensor:
    """Return the light and dark of folds and weave, B×H×W."""
    cell = 3.6 / size
    folds = noise("coarse", conditions.seeds, "folds", size, size, cell)
    weave = noise("fine", conditions.seeds, "weave", size, size, cell)
    return (1.0 + 0.14 * folds + 0.06 * weave).clamp(min=0.2)


def _draw_clothes(seed: int) -> np.ndarray:
    """Draw colour (3), height of the collar and depth of the neckline."""
    rng = numpy_rng(seed, "clothes")
    brightness = np.exp(rng.uniform(np.log(0.02), np.log(0.6)))
    colour = np.clip(brightness * np.exp(rng.normal(0.0, 0.35, 3)), 0.01, 0.85)
    return np.concatenate([colour, [rng.uniform(1.05, 1.3), rng.uniform(0.0, 0.5)]])
