"""Takes: photographs of faces taken again, as a living face would be, or printed or shown first.

Both pass the same capture. A living face keeps its shape: its second light shades it by its depth. A sheet or a panel
is lit as what it is, flat or bent, so shading does not follow the face in it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from fedvisage.faces.synthetic.camera import decode, luminance
from fedvisage.faces.synthetic.capture import Capture, blurred, photograph
from fedvisage.faces.synthetic.domain import Attack, Domain
from fedvisage.faces.synthetic.draws import Range, between, column, unit
from fedvisage.faces.synthetic.mask import PAPER
from fedvisage.faces.synthetic.paper import disc_out_of_focus, fingers, mask_outline
from fedvisage.faces.synthetic.presenting import Holding, View, align, hold, locate, medium_coordinates, show
from fedvisage.faces.synthetic.printing import Printer
from fedvisage.faces.synthetic.recapture import Photographs, Setting, present
from fedvisage.faces.synthetic.replay import Display

LIVING = Holding(tilt=0.02)
MASK_OF_PAPER = Printer("paper mask", (200, 420), holding=Holding(bend=(0.4, 0.9), tilt=0.08))
RELIEF = 1.7
"""Head units from the nearest to the farthest level of a depth map, whose frame is 2 / 0.55 of them wide."""
FRAME = 2 / 0.55
LENSES = ((3.7, 2.0, 1.2), (4.3, 1.9, 1.8), (6.8, 1.8, 2.8), (35.0, 2.8, 8.0))
"""Webcam, two phones, system camera: focal length in mm, f-number, mm of the sensor that the crop takes."""


@dataclass(frozen=True)
class Rendition:
    """How media and attackers' software change photographs that are printed or shown; ranges are of videos."""

    vivid: Range
    contrast: Range
    spread: Range  # radius to which ink or sub-pixels spread a point, as a share of the side


HALF_CONTRAST = (0.2, 0.5)
"""Cycles a pixel at which a photograph keeps half the contrast (MTF50 of ISO 12233's edges), from soft pictures to as
sharp ones as pixels hold; most cameras' are between."""
SPREAD = (0.0, 0.012)
GRAIN, DOTS = (0.0, 0.02), (0.0, 0.6)
"""Unevenness of paper, and screens from continuous tone to nearly hard dots."""
SHOWN = (0.94, 1.4)
"""How far media reach: their edges come into view on some sides of some videos, in every domain."""
RENDITIONS = {
    "print": Rendition((1.1, 1.9), (0.8, 1.2), SPREAD),
    "cut": Rendition((1.1, 1.9), (0.8, 1.2), SPREAD),
    "mask": Rendition((1.1, 1.9), (0.8, 1.2), SPREAD),
    "replay": Rendition((0.95, 1.6), (0.9, 1.25), (0.0, 0.005)),
}
"""Drivers and phones render pleasing pictures: they give back colour and contrast that ink and glass take."""


def media_of(domain: Domain) -> list[Attack]:
    """Return the attacks of a domain that photographs allow, with the full physics; of masks, those of paper."""
    return [_full(attack) for attack in domain.attacks if attack.species != "mask" or PAPER in attack.materials]


def _full(attack: Attack) -> Attack:
    if isinstance(attack.instrument, Display):
        held_so = replace(attack.instrument.holding, shown=SHOWN)
        full = replace(attack.instrument, primaries=(0.0, 2.0), dimming=(0.3, 3.0), gamut=(0.0, 0.1), holding=held_so)
        return replace(attack, instrument=full)
    glossy = attack.instrument.gloss[1] > 0.1 if attack.instrument else False
    paper = attack.instrument or MASK_OF_PAPER
    density, sheen = ((1.7, 2.3), (0.0, 0.35)) if glossy else ((1.2, 1.7), (0.0, 0.08))
    printer = replace(paper, density=density, sheen=sheen, grain=GRAIN, dot_strength=DOTS,
                      holding=replace(paper.holding, shown=SHOWN))  # fmt: skip
    return replace(attack, instrument=printer)


def living_take(
    photographs: Photographs, depth: Tensor, capture: Capture, videos: Sequence[int], frames: Sequence[int]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Take living faces: B×3×S×S photographs with their depth maps, B×32×32 bytes, under a light that follows it."""
    size = photographs.images.shape[-1]
    view = hold([LIVING] * len(videos), videos, frames, size, photographs.framing)
    lit = decode(photographs.images) * head_light(depth, size, videos)
    seen = locate(view, medium_coordinates(photographs.points, size))
    return photograph(show(lit, view).clamp_min(0), capture, frames), np.asarray(seen, np.float32)


def attack_take(
    photographs: Photographs,
    attacks: Sequence[Attack],
    setting: Setting,
    capture: Capture,
    videos: Sequence[int],
    frames: Sequence[int],
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Take attacks of one species: the photographs are printed or shown, and held up in the room."""
    size = photographs.images.shape[-1]
    instruments = [attack.instrument for attack in attacks if attack.instrument]
    species = attacks[0].species
    rendered = replace(photographs, images=rendition(photographs.images, RENDITIONS[species], videos))
    view = hold([instrument.holding for instrument in instruments], videos, frames, size, photographs.framing)
    seen = locate(view, medium_coordinates(photographs.points, size))
    room = replace(setting, room=far_away(setting.room, videos))
    radiance = present(rendered, attacks, room, view, seen, capture.sampling(size), videos, frames)
    if species == "mask" and setting.face is not None and setting.points is not None:
        # What falls on the mask falls on the wearer, too, as on thumbs that hold a sheet.
        light = between(videos, "print/light", [one.light for one in instruments if isinstance(one, Printer)])
        behind = align(setting.face, setting.points[:, :2], seen[:, :2]) * column(light) * 0.6
        cover = mask_outline(view, photographs.points, size, videos)
        radiance = torch.lerp(behind, radiance, as_photographed(cover, videos))
    elif species in ("print", "cut"):
        radiance = held(radiance, view, instruments, videos)
    return photograph(radiance, capture, frames), np.asarray(seen, np.float32)


def as_photographed(seen: Tensor, videos: Sequence[int]) -> Tensor:
    """Return what no camera has seen yet, B×C×S×S, as soft as photographs of this size are.

    The edge of a cut, for one: a camera has blurred the faces before and behind it already, and it would be sharper
    than all of them.
    """
    half = between(videos, "half contrast", HALF_CONTRAST)
    deviation = math.sqrt(math.log(2) / 2) / (math.pi * half)  # of the Gaussian whose transfer is 1/2 there
    none = torch.zeros_like(half)
    return blurred(seen, 2 * deviation, none, none).clamp(0, 1)  # a disc's deviation is half its radius


def rendition(images: Tensor, how: Rendition, videos: Sequence[int]) -> Tensor:
    """Return photographs, sRGB in [0, 1], as attackers show them: ink spreads, colour and contrast are enhanced."""
    vivid, contrast, spread = (
        between(videos, f"rendition/{name}", getattr(how, name)) for name in ("vivid", "contrast", "spread")
    )
    if spread.any():
        none = torch.zeros_like(spread)
        images = blurred(images, spread * images.shape[-1], none, none).clamp(0, 1)
    grey = luminance(images)
    coloured = grey + column(vivid) * (images - grey)
    mean = grey.mean((2, 3), keepdim=True)
    return (mean + column(contrast) * (coloured - mean)).clamp(0, 1)


def head_light(depth: Tensor, size: int, videos: Sequence[int]) -> Tensor:
    """Return B×1×S×S light on heads with these depth maps (bytes): a lamp's cosine law, 1 on what faces the camera."""
    height = interpolate(depth[:, None].float() / 255, size, mode="bicubic", align_corners=False)
    height = blurred(height, *(torch.full((len(depth),), share * size) for share in (0.03, 0.0, 0.0))) * RELIEF
    step = FRAME / size
    down, across = torch.gradient(height, spacing=step, dim=(2, 3))
    facing = (1 + across**2 + down**2).rsqrt()
    lamp_x, lamp_y = between(videos, "head/lamp x", (-0.9, 0.9)), between(videos, "head/lamp y", (-0.8, 0.3))
    cosine = facing * (1 - column(lamp_x) * across - column(lamp_y) * down)
    strength = column(between(videos, "head/lamp strength", (0.0, 0.6)))
    return 1 + strength * (cosine.clamp(0, 1.6) - 1)


def far_away(room: Tensor, videos: Sequence[int]) -> Tensor:
    """Return the room out of focus, as a lens sees it that is focused on what is held before it."""
    size = room.shape[-1]
    near, far = between(videos, "room/near", (250.0, 600.0)), between(videos, "room/far", (900.0, 4000.0))
    lenses = [LENSES[int(len(LENSES) * number)] for number in unit(videos, "room/lens").tolist()]
    discs = [
        disc_out_of_focus(away, held_at, length, aperture) / width * size / 2
        for away, held_at, (length, aperture, width) in zip(far.tolist(), near.tolist(), lenses, strict=True)
    ]
    none = torch.zeros(len(room))
    return blurred(room, torch.tensor(discs), none, none).clamp_min(0)


def held(radiance: Tensor, view: View, instruments: Sequence[Printer | Display], videos: Sequence[int]) -> Tensor:
    """Return the scene with thumbs on the sheet's sides, for half of the videos."""
    light = between(videos, "print/light", [one.light for one in instruments if isinstance(one, Printer)])
    cover, skin = fingers(view, unit(videos, "hand/tone"), videos)
    there = column((unit(videos, "hand/there") < 0.5).float())
    return torch.lerp(radiance, skin * column(light) * 0.6, cover * there)
