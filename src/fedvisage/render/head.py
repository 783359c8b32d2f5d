"""The head: face shape, hair, eyes, brows and glasses, from a person's traits and expression.

The height above the sheet is a rounded block (an implicit outline that is round above the eyes and tapers to the chin)
plus a sum of bells: brow, sockets, nose, lips, chin. Each bell is a product of two one-dimensional curves, so the sum
over all bells is one matrix product.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedvisage.base.streams import numpy_rng
from fedvisage.render.light import Coat, Finish
from fedvisage.render.noise import noise
from fedvisage.render.people import Conditions, PersonBatch
from fedvisage.render.sheet import BOTTOM, Bell, Sheet, Window, bell, outer, plateau, step, sum_of_bells, tint, window

BACK = -1.35
"""Height of the plane at which the head ends, behind the ears."""
EDGE = 1.045
"""Radius at which the head ends; between the outline of the face (1) and this radius is a strip of the head's side."""


@dataclass(frozen=True)
class Head:
    """The bare head on the sheet.

    Attributes:
        height: B×V×U, towards the viewer; about 0 at the cheeks, BACK outside the head.
        radius: B×V×U, 0 in the middle of the face, 1 at the outline of the face, EDGE at the end of the head.
        ears: B×V×U in [0, 1], coverage of the ears.

    """

    height: Tensor
    radius: Tensor
    ears: Tensor


def mouth_centre(people: PersonBatch, conditions: Conditions) -> Tensor:
    """Return the height v of the line between the lips, B×1."""
    return people["mouth_height"] + 0.02 * conditions.mouth_open[:, None]


def mouth_half_width(people: PersonBatch, conditions: Conditions) -> Tensor:
    """Return half of the distance between the corners of the mouth, B×1."""
    return people["mouth_width"] * (1 + 0.16 * conditions.smile - 0.12 * conditions.mouth_open)[:, None]


def mouth_corner_lift(people: PersonBatch, conditions: Conditions) -> Tensor:
    """Return the height of the corners of the mouth above its middle, B×1."""
    return people["mouth_curve"] + 0.075 * conditions.smile[:, None]


def make_head(people: PersonBatch, conditions: Conditions, sheet: Sheet) -> Head:
    """Build the bare head (no hair) of each person with the current expression."""
    radius = _outline(people, conditions, sheet)
    square = radius * radius
    height = (square * square).square_().mul_(-0.42).sub_(square, alpha=0.10)
    across = (people["roundness"] * 0.85 * sheet.u**2)[:, None, :]
    above = people["forehead_slope"] * (-0.35 - sheet.v).clamp(min=0) ** 2
    # Sum all bells of the face: one matrix product of columns (B×V×K) with rows (B×K×U).
    bells = [*_upper_bells(people, conditions), *_nose_bells(people), *_lower_bells(people, conditions)]
    height = height - across - above[:, :, None] + sum_of_bells(bells, len(people), sheet)
    # Ears as a field that is 1 in their middle and 0 at their rims: an upright ellipse on each side.
    size, out = people["ear_size"], people["ear_out"]
    row = ((sheet.u.abs() - (people["head_width"] - 0.16)) / (0.16 + out)) ** 2
    column = ((sheet.v - 0.18) / (size * 1.25)) ** 2
    field = 1.0 - row[:, None, :] - column[:, :, None]
    height = torch.maximum(height, step(field, 0.25).mul_(0.28).add_(BACK))
    return Head(height, radius, step(field - 0.08, 0.08))


def _outline(people: PersonBatch, conditions: Conditions, sheet: Sheet) -> Tensor:
    """Return the implicit outline: a superellipse, rounder above than below, whose lower half tapers to the chin."""
    chin = people["chin"] + 0.16 * conditions.mouth_open[:, None]
    below = (sheet.v / chin).clamp(min=0)
    above = (-sheet.v / people["head_top"]).clamp(min=0)
    power = people["jaw_power"]
    width = 0.975 * people["head_width"] * (1.0 - people["jaw_taper"] * below.clamp(max=1.3) ** 2)
    row = (sheet.u.abs() + 1e-4) ** power
    value = outer(width**-power, row).add_((below**power + above**2.3)[:, :, None])
    return value.log_().div_(power[:, :, None]).exp_()


def _upper_bells(people: PersonBatch, conditions: Conditions) -> list[Bell]:
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


def _nose_bells(people: PersonBatch) -> list[Bell]:
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


def _lower_bells(people: PersonBatch, conditions: Conditions) -> list[Bell]:
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


# Hair: a cap of strands on the skull, long hair next to the face, and beards.

FAIR, RED, BLACK = (
    torch.tensor([0.42, 0.27, 0.125]),
    torch.tensor([0.26, 0.085, 0.028]),
    torch.tensor([0.014, 0.010, 0.008]),
)
GREY = torch.tensor([0.36, 0.35, 0.33])
LONG = 0.25
"""Hair longer than this (``hair_length``) falls at the sides of the face."""


@dataclass(frozen=True)
class Hair:
    """Hair on the sheet.

    Attributes:
        cover: B×V×U in [0, 1], coverage of the head by hair.
        outline: B×V×U in [0, 1], the silhouette of head and hair together.
        height: B×V×U, height of the hair's surface.
        strands: B×V×U, the pattern of light and dark strands.

    """

    cover: Tensor
    outline: Tensor
    height: Tensor
    strands: Tensor


def hair_colour(people: PersonBatch) -> Tensor:
    """Return the mean albedo of each person's hair, B×3."""
    colour = FAIR + people["hair_red"] * (RED - FAIR)
    # Dark skin implies dark hair.
    colour = colour * (BLACK / colour) ** torch.maximum(people["hair_dark"], 1.6 * people["melanin"]).clamp(max=1.0)
    return colour + people["hair_grey"] * (GREY - colour)


def make_hair(people: PersonBatch, head: Head, sheet: Sheet) -> Hair:
    """Grow hair on a head: above the hair line, down to the ears or the shoulders, with a fringe or bald patches."""
    p, grid = people, (sheet.v.shape[1], sheet.u.shape[1], sheet.cell)
    strands = noise("strands", p.seeds, "hair", *grid)
    locks = noise("locks", p.seeds, "hair", *grid)
    bald = step(p["hair_bald"] - 0.35, 0.12)[..., None]
    line = _hair_line(p, sheet)
    ragged = (0.024 * locks).add_(strands, alpha=0.012)
    scalp = step(line[:, None, :] - sheet.v[:, :, None] + ragged, 0.06)
    # Distance of the hair from the skull, as a share of its radius, by height v.
    volume = (p["hair_volume"] * step(0.35 - sheet.v, 0.9)) * (1.0 - bald[:, :, 0]) + 0.012
    reach = EDGE - 0.01 + volume[:, :, None] + 0.02 * locks
    width = 1.5 * sheet.cell
    cover = step(reach - head.radius, width).mul_(scalp)
    falling = window(sheet, top=-0.9)
    falling.of(cover).copy_(torch.maximum(falling.of(cover), _curtain(p, falling, falling.of(ragged))))
    cover.mul_(1.0 - bald * step(-0.15 - sheet.v[:, :, None], 0.4))
    skull = torch.maximum(step(EDGE - head.radius, width), head.ears)
    lift = (0.5 * volume[:, :, None] + 0.02 * locks).clamp(min=0.0)
    # Height of the surface of long hair at the sides of the cheeks, BACK and below for short hair. It extends beyond
    # the edges of the hair: a cliff along each strand would tear holes in a turned head.
    long = step(p["hair_length"] - LONG, 0.01)
    row = -0.95 - 0.40 * (sheet.u.abs() - 0.95).clamp(min=0.0)
    ground = (
        (row - 2.0 * (1.0 - long))[:, None, :].expand(-1, sheet.v.shape[1], -1).contiguous().add_(locks, alpha=0.03)
    )
    height = torch.maximum(head.height + cover * lift, ground)
    return Hair(cover, torch.maximum(skull, cover), height, strands + 0.6 * locks)


def _hair_line(people: PersonBatch, sheet: Sheet) -> Tensor:
    """Return the lower edge of the hair over u: the hair line in the middle, down to the ears at the sides."""
    p = people
    side = (sheet.u.abs() / p["head_width"]).clamp(max=1.25)
    temples = p["hair_recession"] * 0.5 * bell(side, 0.5, 0.18)
    fringe = step(p["hair_fringe"] - 0.3, 0.3)
    parted = 0.08 * torch.tanh(4.0 * (sheet.u - p["hair_parting"])) * torch.sign(p["hair_parting"])
    low = -0.50 + parted
    middle = p["hair_line"] + fringe * (low - p["hair_line"]) - temples * (1.0 - fringe)
    burns = 0.10 + 0.25 * p["hair_length"].clamp(max=1.0)
    rise = step(side - 0.90, 0.13)
    curve = middle + 0.35 * side**4 * (1.0 - rise)
    return curve + rise * (burns - curve)


def _curtain(people: PersonBatch, part: Window, ragged: Tensor) -> Tensor:
    """Return the cover of long hair at the sides of the face, in the window's shape."""
    p = people
    length, wavy = p["hair_length"], 0.06 * p["hair_waves"] * torch.sin(2.2 * part.v)
    end = (0.3 + 1.5 * length)[..., None]
    inner = 0.90 * p["head_width"] - 0.10 * (part.v - 0.2).clamp(0.0, 1.2) + wavy
    outer_edge = p["head_width"] * (1.0 + p["hair_volume"]) + 0.05 + 0.14 * step(part.v - 0.2, 0.9) + wavy
    across = part.u.abs()[:, None, :] + ragged
    band = step(across - inner[:, :, None], 0.06) * step(outer_edge[:, :, None] - across, 0.05)
    rows = step(part.v + 0.65, 0.5)[:, :, None] * step(end - part.v[:, :, None] + 2.0 * ragged, 0.12)
    return band * rows * step(length - LONG, 0.01)[..., None]


def paint_hair(coat: Coat, people: PersonBatch, hair: Hair, sheet: Sheet) -> None:
    """Add the hair to a coat."""
    shade = (1.0 + 0.26 * hair.strands).clamp_(min=0.25)
    albedo = tint(shade, hair_colour(people))
    # Outside the skull there is only hair, however thin, so no skin may shine through its soft edge.
    share = hair.cover / hair.outline.clamp(min=0.02)
    coat.cover(window(sheet), share.clamp_(max=1.0), albedo, Finish(0.05, 9.0))


def paint_beard(coat: Coat, people: PersonBatch, head: Head, sheet: Sheet) -> None:
    """Paint a full beard and moustache on people with a beard."""
    p, part = people, window(sheet, -0.15, BOTTOM, 1.15)
    hairs = noise("fine", p.seeds, "beard", part.v.shape[1], part.u.shape[1], sheet.cell)
    mouth, side = p["mouth_height"], part.u.abs()
    edge = mouth - 0.30 + 0.55 * plateau(side, 0.42, 6) - 0.55 * step(side - 0.78, 0.22)
    jaw = step(part.v[:, :, None] - edge[:, None, :] + 0.05 * hairs, 0.22)
    moustache = outer(plateau(part.v - mouth + 0.165, 0.075, 4), step(0.40 - side, 0.08))
    lips = outer(plateau(part.v - mouth - 0.02, 0.12, 4), plateau(side, p["mouth_width"], 4))
    share = torch.maximum(jaw, moustache) * (1.0 - lips) * step(p["beard"] - 0.30, 0.25)[..., None]
    share = share * step(1.02 - part.of(head.radius), 0.03) * (1.0 + 0.1 * hairs)
    albedo = tint((1.0 + 0.16 * hairs).clamp_(min=0.3), hair_colour(p))
    coat.cover(part, (0.82 * share).clamp_(max=0.95), albedo, Finish(0.03, 9.0))


# Eyes and brows: eyeballs with iris and pupil between two lids, lashes, creases, and the hairs of the brows.

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


def make_lids(people: PersonBatch, conditions: Conditions, part: Window) -> Lids:
    """Return the rims of the eyes for the current opening of the lids."""
    p = people
    x = (part.u.abs() - p["eye_spacing"]) / p["eye_width"]
    inside = (1.0 - x * x).clamp(min=0.0)
    wide = p["eye_opening"] * (1.0 + 0.15 * conditions.brow_raise - 0.18 * conditions.smile.clamp(min=0))[:, None]
    # One eye is slightly higher than the other.
    middle = p["eye_lift"] + torch.sign(part.u) * p["asymmetry"] - p["eye_tilt"] * x.clamp(-1.3, 1.3)
    closed = conditions.blink[:, None]
    peak = (1.0 - 0.18 * x).clamp(min=0.5)
    lower = middle + 0.72 * wide * inside**0.8
    upper = middle - 1.15 * wide * inside**0.72 * peak
    return Lids(x, upper + closed * (lower - upper - 0.012), lower)


def paint_eyes(coat: Coat, people: PersonBatch, conditions: Conditions, sheet: Sheet) -> None:
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
    """Return the part of the sheet that can contain eyes."""
    return window(sheet, -0.24, 0.22, 0.84)


def _eyeball(people: PersonBatch, conditions: Conditions, part: Window) -> Tensor:
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
    colours = white + iris * (colour[..., None, None] * ring[:, None] - white)
    return colours * (1.0 - 0.95 * pupil)[:, None]


def add_catch_lights(
    radiance: Tensor, people: PersonBatch, conditions: Conditions, sheet: Sheet, light: Tensor, colour: Tensor
) -> None:
    """Add the mirror image of the key light on both corneas to the radiance (B×3×V×U), in place.

    A cornea is a small convex mirror: the reflection is between its middle and the light's direction. ``light`` is the
    direction of the key light in head axes, ``colour`` its irradiance, both B×3.
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


def paint_brows(coat: Coat, people: PersonBatch, conditions: Conditions, sheet: Sheet) -> None:
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


# Glasses: two rims, a bridge and the temples, just in front of the face.

DISTANCE = 0.05
"""Distance of the frame from the skin, head units."""


def glasses_window(sheet: Sheet) -> Window:
    """Return the part of the sheet that can contain glasses."""
    return window(sheet, -0.45, 0.55, 1.15)


def paint_glasses(coat: Coat, people: PersonBatch, conditions: Conditions, sheet: Sheet) -> Tensor:
    """Paint the frames on a coat and return their cover, in the window of the glasses (B×V'×U')."""
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
    parts = torch.maximum(torch.maximum(rims, bridge), temples) * conditions.glasses[:, None, None]
    frame = step(parts - 0.42, 0.25)
    coat.cover(part, frame, drawn[:, :3, None, None], Finish(0.10, 30.0))
    return frame


def _draw_frame(seed: int) -> np.ndarray:
    """Draw colour (3), half width and half height of a lens, thickness of the rim and squareness."""
    rng = numpy_rng(seed, "glasses")
    colour = np.exp(rng.uniform(np.log(0.01), np.log(0.2))) * np.exp(rng.normal(0.0, 0.25, 3))
    shape = [rng.uniform(0.30, 0.36), rng.uniform(0.19, 0.29), rng.uniform(0.016, 0.030), rng.uniform(2.0, 4.5)]
    return np.concatenate([colour, shape])
