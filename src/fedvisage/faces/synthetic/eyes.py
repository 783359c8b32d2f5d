"""Eyes and brows: eyeball with iris and pupil between two lids, lashes, crease, and the hairs of the brows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedvisage.faces.synthetic.coat import Coat, Finish
from fedvisage.faces.synthetic.conditions import Conditions
from fedvisage.faces.synthetic.hair import hair_colour
from fedvisage.faces.synthetic.noise import noise
from fedvisage.faces.synthetic.people import People
from fedvisage.faces.synthetic.sheet import Sheet, Window, bell, outer, step, window

IRIS_RADIUS, PUPIL_RADIUS = 0.086, 0.034
BROWN, PALE_BROWN = torch.tensor([0.030, 0.014, 0.007]), torch.tensor([0.16, 0.085, 0.030])
BLUE = torch.tensor([0.13, 0.19, 0.25])


@dataclass(frozen=True)
class Lids:
    """The rims of both eyes as curves over u.

    Attributes:
        x: B×U, position between the inner (-1) and the outer corner (+1) of the nearer eye.
        upper: B×U, height v of the upper rim.
        lower: B×U, height v of the lower rim.

    """

    x: Tensor
    upper: Tensor
    lower: Tensor


def eye_height(people: People, u: Tensor) -> Tensor:
    """Return the height v of the eyes' middle; one eye sits a little higher than the other."""
    return people["eye_lift"] + torch.sign(u) * people["asymmetry"]


def make_lids(people: People, conditions: Conditions, part: Window) -> Lids:
    """Return the rims of the eyes for this opening of the lids."""
    p = people
    x = (part.u.abs() - p["eye_spacing"]) / p["eye_width"]
    inside = (1.0 - x * x).clamp(min=0.0)
    wide = p["eye_opening"] * (1.0 + 0.15 * conditions.brow_raise - 0.18 * conditions.smile.clamp(min=0))[:, None]
    middle = eye_height(p, part.u) - p["eye_tilt"] * x.clamp(-1.3, 1.3)
    closed = conditions.blink[:, None]
    peak = (1.0 - 0.18 * x).clamp(min=0.5)
    lower = middle + 0.72 * wide * inside**0.8
    upper = middle - 1.15 * wide * inside**0.72 * peak
    return Lids(x, upper + closed * (lower - upper - 0.012), lower)


def paint_eyes(coat: Coat, people: People, conditions: Conditions, sheet: Sheet) -> None:
    """Paint the eyes on a coat: sclera, iris and pupil between the lids, then lashes and the crease above."""
    part = eye_window(sheet)
    lids = make_lids(people, conditions, part)
    v = part.v[:, :, None]
    above, below = v - lids.upper[:, None, :], lids.lower[:, None, :] - v
    across = step(1.06 - lids.x.abs(), 0.05)[:, None, :]
    aperture = step(above, 0.014) * step(below, 0.014) * across
    crease = bell(above, -0.058, 0.0113) * (0.34 * people["lid_crease"][..., None])
    lower_rim = bell(below, -0.004, 0.0113) * 0.35
    coat.darken(part, (crease + lower_rim) * across)
    shaded = 1.0 - 0.55 * step(0.030 - above, 0.03) - 0.25 * (lids.x * lids.x).clamp(max=1.0)[:, None, :]
    coat.cover(part, aperture, _eyeball(people, conditions, part) * shaded[:, None], Finish(0.06, 60.0, 0.3))
    lash_width = 0.020 * (1.0 + 0.35 * lids.x.clamp(-1.0, 1.0))[:, None, :]
    lashes = bell(above, -0.004, 0.7 * lash_width) * step(1.12 - lids.x.abs(), 0.06)[:, None, :]
    coat.cover(part, 0.88 * lashes, torch.tensor([0.014, 0.010, 0.008])[:, None, None], Finish(0.0, 20.0))


def eye_window(sheet: Sheet) -> Window:
    """Return the part of the sheet that can hold eyes."""
    return window(sheet, -0.24, 0.22, 0.84)


def _eyeball(people: People, conditions: Conditions, part: Window) -> Tensor:
    """Return the colours of both eyeballs, B×3×V×U."""
    p = people
    looking = conditions.gaze * torch.tensor([0.055, 0.025])
    across = part.u - torch.sign(part.u) * p["eye_spacing"] - looking[:, :1]
    down = part.v - p["eye_lift"] + 0.012 - looking[:, 1:]
    distance = ((across**2)[:, None, :] + (down**2)[:, :, None]).sqrt()
    iris = step(IRIS_RADIUS - distance, 0.014)[:, None]
    pupil = step(PUPIL_RADIUS - distance, 0.012)
    ring = 1.0 - 0.6 * step(distance - 0.85 * IRIS_RADIUS, 0.02)
    colour = PALE_BROWN + p["iris_blue"] * (BLUE - PALE_BROWN)
    colour = colour * (BROWN / colour) ** torch.maximum(p["iris_dark"], 1.8 * p["melanin"]).clamp(max=1.0)
    white = (p["sclera"] * torch.tensor([1.0, 0.93, 0.90]))[..., None, None]
    seen = white + iris * (colour[..., None, None] * ring[:, None] - white)
    return seen * (1.0 - 0.95 * pupil)[:, None]


def add_catch_lights(
    radiance: Tensor, people: People, conditions: Conditions, sheet: Sheet, light: Tensor, colour: Tensor
) -> None:
    """Add the mirror image of the key light on both corneas to the radiance (B×3×V×U), in place.

    A cornea is a small convex mirror: the reflection sits between its middle and the light's direction.
    ``light`` is the direction of the key light in head axes, ``colour`` its irradiance, both B×3.
    """
    part = eye_window(sheet)
    lids = make_lids(people, conditions, part)
    shift = conditions.gaze * torch.tensor([0.055, 0.025]) + 0.055 * light[:, :2]
    across = part.u - torch.sign(part.u) * people["eye_spacing"] - shift[:, :1]
    down = part.v - people["eye_lift"] + 0.012 - shift[:, 1:]
    size = (0.011 + 0.009 * conditions.key_softness)[:, None]
    spot = outer(bell(down, 0.0, size), bell(across, 0.0, size))
    v = part.v[:, :, None]
    spot = spot * step(v - lids.upper[:, None, :], 0.014) * step(lids.lower[:, None, :] - v, 0.014)
    part.of(radiance).addcmul_(spot[:, None], 0.6 * colour[:, :, None, None])


def paint_brows(coat: Coat, people: People, conditions: Conditions, sheet: Sheet) -> None:
    """Paint the eyebrows on a coat: a tapered, arched band of short hairs."""
    p, part = people, window(sheet, -0.68, 0.0, 0.95)
    x = (part.u.abs() - p["eye_spacing"] - 0.01) / p["brow_length"]
    # x runs from -1 (towards the nose) to +1 (temple); the arch is highest past the middle.
    arch = p["brow_arch"] * (1.0 - (x - 0.12) ** 2) + p["brow_tilt"] * x
    middle = p["brow_height"] - 0.05 * conditions.brow_raise[:, None] - arch + torch.sign(part.u) * p["asymmetry"]
    thick = p["brow_thickness"] * (1.0 - 0.55 * ((x + 0.3).clamp(0.0, 1.3) / 1.3) ** 1.5)
    ends = step(1.0 - x.abs(), 0.14)
    hairs = noise("fine", p.seeds, "brows", part.v.shape[1], part.u.shape[1], sheet.cell)
    distance = (part.v[:, :, None] - middle[:, None, :]).abs() + 0.010 * hairs
    share = step(thick[:, None, :] - distance, 0.035) * ends[:, None, :] * (1.0 + 0.15 * hairs).clamp(max=1.15)
    share = (share * (0.95 * p["brow_density"])[..., None]).clamp(max=0.97)
    coat.cover(part, share, 0.8 * hair_colour(p)[:, :, None, None], Finish(0.02, 15.0))
