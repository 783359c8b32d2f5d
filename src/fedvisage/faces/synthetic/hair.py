"""Hair: a cap of strands on the skull, which may fall beside the face, and beards."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedvisage.faces.synthetic.coat import Coat, Finish
from fedvisage.faces.synthetic.head import EDGE, Head
from fedvisage.faces.synthetic.noise import noise
from fedvisage.faces.synthetic.people import People
from fedvisage.faces.synthetic.sheet import BOTTOM, Sheet, Window, bell, outer, plateau, step, tint, window

FAIR, RED, BLACK = (
    torch.tensor([0.42, 0.27, 0.125]),
    torch.tensor([0.26, 0.085, 0.028]),
    torch.tensor([0.014, 0.010, 0.008]),
)
GREY = torch.tensor([0.36, 0.35, 0.33])
LONG = 0.25
"""Hair longer than this (``hair_length``) falls beside the face."""


@dataclass(frozen=True)
class Hair:
    """Hair on the sheet.

    Attributes:
        cover: B×V×U in [0, 1], where hair covers the head.
        outline: B×V×U in [0, 1], the silhouette of head and hair together.
        height: B×V×U, how high the surface of the hair lies.
        strands: B×V×U, the pattern of light and dark strands.

    """

    cover: Tensor
    outline: Tensor
    height: Tensor
    strands: Tensor


def hair_colour(people: People) -> Tensor:
    """Return the mean albedo of each person's hair, B×3."""
    colour = FAIR + people["hair_red"] * (RED - FAIR)
    # Dark skin comes with dark hair.
    colour = colour * (BLACK / colour) ** torch.maximum(people["hair_dark"], 1.6 * people["melanin"]).clamp(max=1.0)
    return colour + people["hair_grey"] * (GREY - colour)


def make_hair(people: People, head: Head, sheet: Sheet) -> Hair:
    """Grow hair on a head: above the hair line, down to the ears or the shoulders, with a fringe or bald patches."""
    p, grid = people, (sheet.v.shape[1], sheet.u.shape[1], sheet.cell)
    strands = noise("strands", p.seeds, "hair", *grid)
    locks = noise("locks", p.seeds, "hair", *grid)
    bald = step(p["hair_bald"] - 0.35, 0.12)[..., None]
    line = _hair_line(p, sheet)
    ragged = (0.024 * locks).add_(strands, alpha=0.012)
    scalp = step(line[:, None, :] - sheet.v[:, :, None] + ragged, 0.06)
    volume = _volume(p, sheet) * (1.0 - bald[:, :, 0]) + 0.012
    reach = EDGE - 0.01 + volume[:, :, None] + 0.02 * locks
    width = 1.5 * sheet.cell
    cover = step(reach - head.radius, width).mul_(scalp)
    falling = window(sheet, top=-0.9)
    falling.of(cover).copy_(torch.maximum(falling.of(cover), _curtain(p, falling, falling.of(ragged))))
    cover.mul_(1.0 - bald * step(-0.15 - sheet.v[:, :, None], 0.4))
    skull = torch.maximum(step(EDGE - head.radius, width), head.ears)
    lift = (0.5 * volume[:, :, None] + 0.02 * locks).clamp(min=0.0)
    ground = _hanging_ground(p, sheet).add_(locks, alpha=0.03)
    height = torch.maximum(head.height + cover * lift, ground)
    return Hair(cover, torch.maximum(skull, cover), height, strands + 0.6 * locks)


def _volume(people: People, sheet: Sheet) -> Tensor:
    """Return how far the hair stands off the skull, as a share of its radius, by height v."""
    return people["hair_volume"] * step(0.35 - sheet.v, 0.9)


def _hair_line(people: People, sheet: Sheet) -> Tensor:
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


def _hanging_ground(people: People, sheet: Sheet) -> Tensor:
    """Return the height of the surface on which long hair hangs beside the cheeks, BACK and below for short hair.

    It goes on beyond the edges of the hair: a cliff along each strand would tear holes when the head turns.
    """
    long = step(people["hair_length"] - LONG, 0.01)
    row = -0.95 - 0.40 * (sheet.u.abs() - 0.95).clamp(min=0.0)
    return (row - 2.0 * (1.0 - long))[:, None, :].expand(-1, sheet.v.shape[1], -1).contiguous()


def _curtain(people: People, part: Window, ragged: Tensor) -> Tensor:
    """Return where long hair falls beside the face, of the window's shape."""
    p = people
    length, wavy = p["hair_length"], 0.06 * p["hair_waves"] * torch.sin(2.2 * part.v)
    end = (0.3 + 1.5 * length)[..., None]
    inner = 0.90 * p["head_width"] - 0.10 * (part.v - 0.2).clamp(0.0, 1.2) + wavy
    outer_edge = p["head_width"] * (1.0 + p["hair_volume"]) + 0.05 + 0.14 * step(part.v - 0.2, 0.9) + wavy
    across = part.u.abs()[:, None, :] + ragged
    band = step(across - inner[:, :, None], 0.06) * step(outer_edge[:, :, None] - across, 0.05)
    rows = step(part.v + 0.65, 0.5)[:, :, None] * step(end - part.v[:, :, None] + 2.0 * ragged, 0.12)
    return band * rows * step(length - LONG, 0.01)[..., None]


def paint_hair(coat: Coat, people: People, hair: Hair, sheet: Sheet) -> None:
    """Lay the hair over a coat."""
    shade = (1.0 + 0.26 * hair.strands).clamp_(min=0.25)
    albedo = tint(shade, hair_colour(people))
    # Beyond the skull there is nothing but hair, however thin: no skin may shine through its soft edge.
    share = hair.cover / hair.outline.clamp(min=0.02)
    coat.cover(window(sheet), share.clamp_(max=1.0), albedo, Finish(0.05, 9.0))


def paint_beard(coat: Coat, people: People, head: Head, sheet: Sheet) -> None:
    """Paint a full beard and moustache on those who wear one."""
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
