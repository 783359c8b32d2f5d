"""Skin: colour and gloss of the face, with lips, stubble, freckles, moles and pores."""

import numpy as np
import torch
from torch import Tensor

from fedvisage.base.streams import numpy_rng
from fedvisage.render.head import mouth_centre, mouth_corner_lift, mouth_half_width
from fedvisage.render.light import Coat, Finish
from fedvisage.render.noise import noise
from fedvisage.render.people import Conditions, PersonBatch
from fedvisage.render.sheet import Bell, Sheet, bell, step, sum_of_bells, tint, window

PALEST = torch.tensor([0.66, 0.455, 0.36])
DARKEST = torch.tensor([0.095, 0.052, 0.033])
BLOOD = torch.tensor([0.10, -0.16, -0.13])
"""Relative change of the albedo under more blood."""
MOLES = 7
SKIN_SHARPNESS = 14.0


def skin_colour(people: PersonBatch) -> Tensor:
    """Return the mean albedo of each person's skin, B×3: its logarithm falls linearly with melanin."""
    melanin = people["melanin"]
    colour = PALEST * (DARKEST / PALEST) ** melanin
    yellow = people["yellowness"] * torch.tensor([0.0, 0.02, -0.08])
    return colour * (1.0 + yellow)


def pores_of(people: PersonBatch, sheet: Sheet) -> Tensor:
    """Return the pattern of pores, B×V×U, for both colour and relief."""
    return noise("fine", people.seeds, "pores", sheet.v.shape[1], sheet.u.shape[1], sheet.cell)


def make_skin(people: PersonBatch, conditions: Conditions, sheet: Sheet) -> Coat:
    """Return the coat of the bare face: skin with lips and open mouth, without eyes, brows and hair."""
    p, grid = people, (sheet.v.shape[1], sheet.u.shape[1], sheet.cell)
    fine = pores_of(p, sheet)
    medium = noise("medium", p.seeds, "blotches", *grid)
    coarse = noise("coarse", p.seeds, "blotches", *grid)
    blotches = p["blotches"][..., None]
    blood = _blood(p, sheet).addcmul_(coarse, 0.26 * blotches).addcmul_(medium, 0.10 * blotches)
    shade = _shadows(p, conditions, sheet).neg_().add_(1.0)
    # Darkening by freckles, at the peaks of the noise.
    strength = p["freckles"] * (1.0 - p["melanin"])
    shade.addcmul_(fine, 0.025 * p["pores"][..., None]).sub_(
        0.16 * strength[..., None] * (fine + 0.6 * medium - 0.9).clamp(min=0.0, max=1.2)
    ).clamp_(min=0.08)
    colour = skin_colour(p)
    albedo = tint(blood, colour * BLOOD).add_(colour[:, :, None, None]).mul_(shade[:, None])
    finish = torch.empty_like(albedo)
    finish[:, 0] = _oil(p, sheet).mul_(0.3 * fine + 1.0)
    finish[:, 1] = SKIN_SHARPNESS
    finish[:, 2] = 1.0
    coat = Coat(albedo, finish)
    _paint_mouth(coat, people, conditions, sheet)
    return coat


def _blood(people: PersonBatch, sheet: Sheet) -> Tensor:
    """Return the visibility of blood: on cheeks, nose, chin, and the rims of the eyes."""
    p = people
    bells: list[Bell] = [
        (0.8, 0.52, 0.52, 0.22, 0.2),
        (0.7, 0.0, p["nose_length"], 0.16, 0.13),
        (0.6, p["nose_width"], p["nose_length"] + 0.05, 0.08, 0.07),
        (0.3, 0.0, p["chin"] - 0.2, 0.2, 0.12),
        (0.5, p["eye_spacing"], 0.05, 0.2, 0.07),
        (-0.5, 0.3, -0.65, 0.5, 0.2),
        (1.2, 1.08, 0.15, 0.12, 0.3),
    ]
    rosy = p["redness"][..., None]
    return sum_of_bells(bells, len(p), sheet).mul_(0.7 + 0.6 * rosy).add_(0.5 * rosy)


def _shadows(people: PersonBatch, conditions: Conditions, sheet: Sheet) -> Tensor:
    """Return the darkening of the skin around the eyes, at shaven beards, nostrils, folds and moles."""
    p = people
    beard = 0.34 * p["stubble"] * (1.0 - 0.5 * p["melanin"])
    mouth = mouth_centre(people, conditions)
    bells: list[Bell] = [
        (0.22 + 0.30 * p["dark_circles"], p["eye_spacing"] - 0.06, 0.10, 0.13, 0.055),
        (0.16 + 0.15 * p["dark_circles"], p["eye_spacing"] - 0.17, -0.03, 0.06, 0.09),
        (0.10, p["eye_spacing"], -0.10, 0.17, 0.05),
        (0.88, 0.52 * p["nose_width"], p["nose_length"] + 0.112, 0.85 * p["nostril"], 0.020),
        (0.08, 0.0, p["nose_length"] + 0.14, 0.13, 0.03),
        (0.16, p["nose_width"] + 0.075, p["nose_length"] + 0.05, 0.022, 0.06),
        (0.9 * beard, 0.13, mouth - 0.20, 0.17, 0.06),
        (beard, 0.0, mouth + 0.40, 0.36, 0.19),
        (beard, 0.55, mouth + 0.22, 0.20, 0.26),
        (beard, 0.82, mouth - 0.12, 0.10, 0.30),
    ]
    return sum_of_bells(bells, len(p), sheet) + _moles(people, sheet)


def _moles(people: PersonBatch, sheet: Sheet) -> Tensor:
    """Return the person's own dark spots, which are at the same places in every picture of the person."""
    draws = []
    for seed in people.seeds:
        rng = numpy_rng(seed, "moles")
        draws.append(
            [
                rng.uniform(-0.85, 0.85, MOLES),
                rng.uniform(-0.7, 1.4, MOLES),
                rng.uniform(0.012, 0.03, MOLES),
                rng.random(MOLES) ** 2,
            ]
        )
    u, v, width, strength = torch.tensor(np.array(draws), dtype=torch.float32).unbind(1)
    columns = bell(sheet.v[:, :, None], v[:, None], width[:, None])
    rows = bell(sheet.u[:, None, :], u[:, :, None], width[:, :, None])
    return columns @ (rows * (0.8 * people["moles"] * strength)[:, :, None])


def _oil(people: PersonBatch, sheet: Sheet) -> Tensor:
    """Return the gloss of the skin: stronger on forehead, nose and chin."""
    bells: list[Bell] = [
        (0.7, 0.0, -0.6, 0.5, 0.22),
        (0.9, 0.0, 0.35, 0.1, 0.25),
        (0.5, 0.55, 0.35, 0.18, 0.12),
        (0.4, 0.0, people["chin"] - 0.15, 0.15, 0.1),
    ]
    return (0.35 + sum_of_bells(bells, len(people), sheet)) * (0.19 * people["oil"])[..., None]


def _paint_mouth(coat: Coat, people: PersonBatch, conditions: Conditions, sheet: Sheet) -> None:
    """Paint lips, the gap between them, and teeth. The edges are curves v(u), so only the fills are maps."""
    p, opened, part = people, conditions.mouth_open[:, None], window(sheet, 0.72, 1.58, 0.62)
    centre, half = mouth_centre(p, conditions), mouth_half_width(p, conditions)
    x = part.u / half
    inside = (1.0 - x * x).clamp(min=0.0)
    line = centre - mouth_corner_lift(p, conditions) * (x * x - 0.3) - 0.012 * bell(x, 0.0, 0.18)
    bow = 1.0 - p["cupid_bow"] * bell(x, 0.0, 0.092) * 0.8
    thin = 1.0 - 0.25 * conditions.smile[:, None].clamp(min=0)
    upper_edge = line - 0.02 * opened * inside
    lower_edge = line + (0.004 + 0.20 * opened) * inside
    top = upper_edge - p["lip_upper"] * thin * inside**0.75 * bow
    bottom = lower_edge + p["lip_lower"] * thin * inside**0.8
    v = part.v[:, :, None]
    ends = step(1.03 - x.abs(), 0.03)[:, None, :]

    def between(high: Tensor, low: Tensor, softness: float) -> Tensor:
        return step(v - high[:, None, :], softness) * step(low[:, None, :] - v, softness) * ends

    redder = torch.tensor([0.08, -0.42, -0.30]) * (0.45 + 0.55 * p["lip_colour"])
    lip_colour = skin_colour(p) * (0.80 + redder - 0.12 * p["melanin"])
    coat.cover(part, 0.85 * between(top, bottom, 0.022), lip_colour[:, :, None, None], Finish(0.12, 26.0, 0.8))
    gap = between(upper_edge - 0.010, lower_edge + 0.010, 0.012)
    coat.cover(part, 0.92 * gap, torch.tensor([0.035, 0.012, 0.010])[:, None, None], Finish(0.02, 20.0))
    teeth = between(upper_edge + 0.012, torch.minimum(upper_edge + 0.085, lower_edge - 0.015), 0.012)
    showing = (opened * 4.0 - 0.2).clamp(0.0, 1.0)[..., None]
    coat.cover(part, 0.8 * teeth * showing, torch.tensor([0.50, 0.45, 0.38])[:, None, None], Finish(0.15, 40.0))
