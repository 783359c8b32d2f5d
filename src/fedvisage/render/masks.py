"""Masks: a rigid or elastic copy of a face worn over a face, with true geometry, wrong reflectance and hard edges.

The wearer's own eyes, and often the mouth, show through holes whose rims are as thick as the material.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fedvisage.base.streams import numpy_rng
from fedvisage.render.light import Coat
from fedvisage.render.noise import noise
from fedvisage.render.people import PersonBatch
from fedvisage.render.sheet import Sheet, step, window

RESIN, SILICONE, PLASTER, PAPER = range(4)


@dataclass(frozen=True)
class MaskMaterial:
    """The material of a batch of B masks.

    Attributes:
        tint: B×3, albedo towards which the mask's colours are pulled.
        flatness: B in [0, 1]; 0 = painted like the face, 1 = one colour.
        gloss: B, strength of the highlight, constant over the mask.
        sharpness: B, exponent of the highlight.
        scatter: B in [0, 1], distance that light travels in the material.
        hole: B, size of the eye holes relative to the eyes.
        mouth_hole: B, 1 = the mouth is cut out.
        thickness: B, head units.
        reach: B, radius at which the mask ends, as a share of the head's radius.
        grain: B, roughness of the surface (print layers, paper, plaster).
        seeds: one seed per mask.

    """

    tint: Tensor
    flatness: Tensor
    gloss: Tensor
    sharpness: Tensor
    scatter: Tensor
    hole: Tensor
    mouth_hole: Tensor
    thickness: Tensor
    reach: Tensor
    grain: Tensor
    seeds: tuple[int, ...]

    def __len__(self) -> int:
        """Return the number of masks."""
        return len(self.seeds)

    def select(self, rows: Sequence[int]) -> "MaskMaterial":
        """Return these rows as a new batch."""
        chosen = {f.name: getattr(self, f.name)[list(rows)] for f in fields(self) if f.name != "seeds"}
        return MaskMaterial(**chosen, seeds=tuple(self.seeds[row] for row in rows))


@dataclass(frozen=True)
class _Material:
    """The ranges from which masks of one kind are drawn."""

    flatness: tuple[float, float]
    gloss: tuple[float, float]
    sharpness: tuple[float, float]
    scatter: tuple[float, float]
    thickness: tuple[float, float]
    grain: tuple[float, float]
    mouth_hole: float
    tint: tuple[float, float, float]


_MATERIALS = {
    RESIN: _Material(
        (0.25, 0.6), (0.10, 0.22), (25.0, 60.0), (0.0, 0.1), (0.04, 0.07), (0.2, 0.5), 0.0, (0.42, 0.30, 0.24)
    ),
    SILICONE: _Material(
        (0.3, 0.6), (0.05, 0.12), (8.0, 20.0), (0.3, 0.6), (0.03, 0.05), (0.0, 0.2), 0.7, (0.45, 0.30, 0.23)
    ),
    PLASTER: _Material(
        (0.75, 1.0), (0.0, 0.02), (5.0, 8.0), (0.0, 0.1), (0.06, 0.10), (0.3, 0.9), 0.3, (0.62, 0.58, 0.52)
    ),
    PAPER: _Material(
        (0.1, 0.35), (0.02, 0.08), (6.0, 15.0), (0.0, 0.0), (0.01, 0.02), (0.3, 0.8), 0.2, (0.55, 0.48, 0.44)
    ),
}


def draw_masks(seeds: Sequence[int], kinds: int | Sequence[int] = RESIN) -> MaskMaterial:
    """Draw a mask for each seed, of the kind RESIN, SILICONE, PLASTER or PAPER (one kind for all, or one per mask)."""
    rows = []
    for seed, kind in zip(seeds, [kinds] * len(seeds) if isinstance(kinds, int) else kinds, strict=True):
        material, rng = _MATERIALS[kind], numpy_rng(seed, "mask")
        rows.append(
            {
                "tint": (torch.tensor(material.tint) * float(rng.uniform(0.75, 1.2))).tolist(),
                "flatness": rng.uniform(*material.flatness),
                "gloss": rng.uniform(*material.gloss),
                "sharpness": rng.uniform(*material.sharpness),
                "scatter": rng.uniform(*material.scatter),
                "hole": rng.uniform(1.05, 1.5),
                "mouth_hole": float(rng.random() < material.mouth_hole),
                "thickness": rng.uniform(*material.thickness),
                "reach": rng.uniform(0.86, 0.98),
                "grain": rng.uniform(*material.grain),
            }
        )
    values = {name: torch.tensor([row[name] for row in rows], dtype=torch.float32) for name in rows[0]}
    return MaskMaterial(**values, seeds=tuple(seeds))


def mask_cover(mask: MaskMaterial, people: PersonBatch, radius: Tensor, sheet: Sheet) -> Tensor:
    """Return the cover of the mask, B×V×U in [0, 1]: inside its rim, without the holes for eyes and mouth."""
    p, edge = people, 1.6 * sheet.cell
    rim = step(mask.reach[:, None, None] - radius, edge) * step(sheet.v + 0.92, 0.03)[:, :, None]
    across = (sheet.u.abs() - p["eye_spacing"]) / (p["eye_width"] * mask.hole[:, None] * 1.08)
    down = sheet.v / (p["eye_opening"] * mask.hole[:, None] * 1.35)
    eye = 1.0 - (across.abs() ** 2.2)[:, None, :] - (down.abs() ** 2.2)[:, :, None]
    across, down = sheet.u / (p["mouth_width"] * 0.95), (sheet.v - p["mouth_height"]) / 0.14
    mouth = 1.0 - (across.abs() ** 2.4)[:, None, :] - (down.abs() ** 2.0)[:, :, None]
    eye_hole, mouth_hole = step(eye, 0.16), step(mouth, 0.2) * mask.mouth_hole[:, None, None]
    return rim * (1.0 - eye_hole) * (1.0 - mouth_hole)


def wear(mask: MaskMaterial, cover: Tensor, coat: Coat, skin: Tensor, sheet: Sheet) -> Tensor:
    """Put the mask over a coat, in place, and return the fine relief of its surface, B×V×U.

    The paint of the mask is copied from the coat; ``skin`` is the colour of the imitated skin, B×3.
    """
    ground = (0.6 * mask.tint + 0.4 * skin)[:, :, None, None]
    painted = coat.albedo.lerp(ground.expand_as(coat.albedo), mask.flatness[:, None, None, None])
    finish = torch.stack([mask.gloss, mask.sharpness, mask.scatter], 1)[:, :, None, None]
    coat.cover(window(sheet), cover, painted, finish)
    grain = noise("fine", mask.seeds, "grain", sheet.v.shape[1], sheet.u.shape[1], sheet.cell)
    return cover * mask.grain[:, None, None] * 0.003 * grain
