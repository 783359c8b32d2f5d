"""Filming of a rendered domain: people and attacks in front of the same cameras, and re-capture of flat media.

Re-capture turns any face photographs, rendered or real, into photographs of prints, cut prints and displays; it also
needs the room in which the medium is held up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from fedvisage.base.streams import derive
from fedvisage.render.camera import Camera, CameraShots, decode, draw_shots, expose, luminance
from fedvisage.render.capture import Capture, blur_in_motion, photograph
from fedvisage.render.domains import Attack, Domain, RecordingPlace
from fedvisage.render.masks import PAPER, MaskMaterial, draw_masks
from fedvisage.render.media import (
    Holding,
    MediumView,
    Sampling,
    align,
    draw_view,
    locate,
    medium_coordinates,
    resample,
)
from fedvisage.render.noise import Range, between, column, uniform_numbers
from fedvisage.render.people import Conditions, add_movements, draw_conditions, draw_people
from fedvisage.render.prints import Printer, cut_attack, disc_out_of_focus, fingers, mask_outline, print_attack
from fedvisage.render.scene import DEPTH_SIZE, Scene, make_backgrounds, render, small_depth
from fedvisage.render.screens import Display, replay_attack

# Re-capture of flat media.


@dataclass(frozen=True)
class AttackerPhotographs:
    """Pictures in an attacker's hands: sRGB in [0, 1] (B×3×S×S) and five points of the face in pixels (B×5×2).

    `framing` is the size of their faces relative to faces in the crops of the set.
    """

    images: Tensor
    points: Tensor
    framing: float = 1.0


@dataclass(frozen=True)
class PresentationSetting:
    """The place of presentation: radiance of the room; for cut prints also the face behind, with its points."""

    room: Tensor
    face: Tensor | None = None
    points: Tensor | None = None


def present(
    photographs: AttackerPhotographs,
    attacks: Sequence[Attack],
    setting: PresentationSetting,
    view: MediumView,
    seen: Tensor,
    grid: Sampling,
    videos: Sequence[int],
    frames: Sequence[int],
) -> Tensor:
    """Return the radiance of the presented media, all of one species; `seen` holds the points' image positions."""
    images, room = photographs.images, setting.room
    displays = [attack.instrument for attack in attacks if isinstance(attack.instrument, Display)]
    printers = [attack.instrument for attack in attacks if isinstance(attack.instrument, Printer)]
    if attacks[0].species == "replay":
        return replay_attack(images, displays, room, grid, view, videos, frames)
    if setting.face is None or setting.points is None:
        return print_attack(images, printers, room, grid, view, videos)
    eyes = medium_coordinates(photographs.points[:, :2], images.shape[-1])
    behind = align(setting.face, setting.points[:, :2], seen[:, :2])
    return cut_attack(images, printers, room, grid, view, videos, eyes=eyes, behind=behind)


# Takes: photographs of faces are taken again, either as living faces, or printed or shown first. Both pass the same
# capture. The second light shades a living face by its depth. A sheet or a panel is lit as a flat or bent surface, so
# its shading does not follow the face in the picture.

LIVING = Holding(tilt=0.02)
MASK_OF_PAPER = Printer("paper mask", (200, 420), holding=Holding(bend=(0.4, 0.9), tilt=0.08))
RELIEF = 1.7
"""Head units from the nearest to the farthest level of a depth map; the frame is 2 / 0.55 of them wide."""
FRAME = 2 / 0.55
LENSES = ((3.7, 2.0, 1.2), (4.3, 1.9, 1.8), (6.8, 1.8, 2.8), (35.0, 2.8, 8.0))
"""Webcam, two phones, system camera: focal length in mm, f-number, width of the crop on the sensor in mm."""


@dataclass(frozen=True)
class Rendition:
    """Changes of photographs by media and attackers' software before the presentation; ranges are of videos."""

    vivid: Range
    contrast: Range
    spread: Range  # radius of a point after spreading by ink or sub-pixels, as a share of the side


HALF_CONTRAST = (0.2, 0.5)
"""Cycles per pixel at which a photograph keeps half the contrast (MTF50 of ISO 12233's edges), from soft pictures to
the sharpest that pixels allow; most cameras are in between."""
SPREAD = (0.0, 0.012)
GRAIN, DOTS = (0.0, 0.02), (0.0, 0.6)
"""Unevenness of paper, and screens from continuous tone to nearly hard dots."""
SHOWN = (0.94, 1.4)
"""Extent of media: in every domain, their edges are visible on some sides of some videos."""
RENDITIONS = {
    "print": Rendition((1.1, 1.9), (0.8, 1.2), SPREAD),
    "cut": Rendition((1.1, 1.9), (0.8, 1.2), SPREAD),
    "mask": Rendition((1.1, 1.9), (0.8, 1.2), SPREAD),
    "replay": Rendition((0.95, 1.6), (0.9, 1.25), (0.0, 0.005)),
}
"""Drivers and phones enhance colour and contrast, to compensate for the loss on paper and glass."""


def media_of(domain: Domain) -> list[Attack]:
    """Return the attacks of a domain that photographs allow, with the full physics; of masks, those of paper."""
    return [
        _with_full_physics(attack) for attack in domain.attacks if attack.species != "mask" or PAPER in attack.materials
    ]


def _with_full_physics(attack: Attack) -> Attack:
    if isinstance(attack.instrument, Display):
        holding = replace(attack.instrument.holding, shown=SHOWN)
        full = replace(attack.instrument, primaries=(0.0, 2.0), dimming=(0.3, 3.0), gamut=(0.0, 0.1), holding=holding)
        return replace(attack, instrument=full)
    glossy = attack.instrument.gloss[1] > 0.1 if attack.instrument else False
    paper = attack.instrument or MASK_OF_PAPER
    density, sheen = ((1.7, 2.3), (0.0, 0.35)) if glossy else ((1.2, 1.7), (0.0, 0.08))
    printer = replace(
        paper, density=density, sheen=sheen, grain=GRAIN, dot_strength=DOTS, holding=replace(paper.holding, shown=SHOWN)
    )
    return replace(attack, instrument=printer)


def photograph_living(
    photographs: AttackerPhotographs, depth: Tensor, capture: Capture, videos: Sequence[int], frames: Sequence[int]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Photograph living faces: B×3×S×S photographs with B×32×32 depth maps (bytes), under a light shaded by depth."""
    size = photographs.images.shape[-1]
    view = draw_view([LIVING] * len(videos), videos, frames, size, photographs.framing)
    lit = decode(photographs.images) * head_light(depth, size, videos)
    image_points = locate(view, medium_coordinates(photographs.points, size))
    return photograph(resample(lit, view).clamp_min(0), capture, frames), np.asarray(image_points, np.float32)


def photograph_attack(
    photographs: AttackerPhotographs,
    attacks: Sequence[Attack],
    setting: PresentationSetting,
    capture: Capture,
    videos: Sequence[int],
    frames: Sequence[int],
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Photograph attacks of one species: the photographs are printed or shown, and held up in the room."""
    size = photographs.images.shape[-1]
    instruments = [attack.instrument for attack in attacks if attack.instrument]
    species = attacks[0].species
    rendered = replace(photographs, images=rendition(photographs.images, RENDITIONS[species], videos))
    view = draw_view([instrument.holding for instrument in instruments], videos, frames, size, photographs.framing)
    image_points = locate(view, medium_coordinates(photographs.points, size))
    room = replace(setting, room=defocused_room(setting.room, videos))
    radiance = present(rendered, attacks, room, view, image_points, capture.sampling(size), videos, frames)
    if species == "mask" and setting.face is not None and setting.points is not None:
        # The light on the mask also falls on the wearer, as it does on thumbs that hold a sheet.
        light = between(
            videos, "print/light", [printer.light for printer in instruments if isinstance(printer, Printer)]
        )
        behind = align(setting.face, setting.points[:, :2], image_points[:, :2]) * column(light) * 0.6
        cover = mask_outline(view, photographs.points, size, videos)
        radiance = torch.lerp(behind, radiance, camera_soft(cover, videos))
    elif species in ("print", "cut"):
        radiance = with_thumbs(radiance, view, instruments, videos)
    return photograph(radiance, capture, frames), np.asarray(image_points, np.float32)


def camera_soft(seen: Tensor, videos: Sequence[int]) -> Tensor:
    """Return rendered shapes, B×C×S×S, with the softness of photographs of this size.

    The edge of a cut is an example: the faces in front of it and behind it come from cameras and are blurred, and an
    exact edge would be sharper than both.
    """
    half = between(videos, "half contrast", HALF_CONTRAST)
    deviation = math.sqrt(math.log(2) / 2) / (math.pi * half)  # of the Gaussian whose transfer is 1/2 there
    none = torch.zeros_like(half)
    return blur_in_motion(seen, 2 * deviation, none, none).clamp(0, 1)  # a disc's deviation is half its radius


def rendition(images: Tensor, how: Rendition, videos: Sequence[int]) -> Tensor:
    """Return photographs, sRGB in [0, 1], as attackers show them: ink spreads, colour and contrast are enhanced."""
    vivid, contrast, spread = (
        between(videos, f"rendition/{name}", getattr(how, name)) for name in ("vivid", "contrast", "spread")
    )
    if spread.any():
        none = torch.zeros_like(spread)
        images = blur_in_motion(images, spread * images.shape[-1], none, none).clamp(0, 1)
    grey = luminance(images)
    coloured = grey + column(vivid) * (images - grey)
    mean = grey.mean((2, 3), keepdim=True)
    return (mean + column(contrast) * (coloured - mean)).clamp(0, 1)


def head_light(depth: Tensor, size: int, videos: Sequence[int]) -> Tensor:
    """Return B×1×S×S light on heads with these depth maps (bytes): a lamp's cosine law, 1 on frontal surfaces."""
    height = interpolate(depth[:, None].float() / 255, size, mode="bicubic", align_corners=False)
    height = blur_in_motion(height, *(torch.full((len(depth),), share * size) for share in (0.03, 0.0, 0.0))) * RELIEF
    step = FRAME / size
    down, across = torch.gradient(height, spacing=step, dim=(2, 3))
    facing = (1 + across**2 + down**2).rsqrt()
    lamp_x, lamp_y = between(videos, "head/lamp x", (-0.9, 0.9)), between(videos, "head/lamp y", (-0.8, 0.3))
    cosine = facing * (1 - column(lamp_x) * across - column(lamp_y) * down)
    strength = column(between(videos, "head/lamp strength", (0.0, 0.6)))
    return 1 + strength * (cosine.clamp(0, 1.6) - 1)


def defocused_room(room: Tensor, videos: Sequence[int]) -> Tensor:
    """Return the room out of focus, through a lens focused on the medium in front of it."""
    size = room.shape[-1]
    near, far = between(videos, "room/near", (250.0, 600.0)), between(videos, "room/far", (900.0, 4000.0))
    lenses = [LENSES[int(len(LENSES) * number)] for number in uniform_numbers(videos, "room/lens").tolist()]
    discs = [
        disc_out_of_focus(away, held_at, length, aperture) / width * size / 2
        for away, held_at, (length, aperture, width) in zip(far.tolist(), near.tolist(), lenses, strict=True)
    ]
    none = torch.zeros(len(room))
    return blur_in_motion(room, torch.tensor(discs), none, none).clamp_min(0)


def with_thumbs(
    radiance: Tensor, view: MediumView, instruments: Sequence[Printer | Display], videos: Sequence[int]
) -> Tensor:
    """Return the scene with thumbs on the sheet's sides, for half of the videos."""
    light = between(videos, "print/light", [printer.light for printer in instruments if isinstance(printer, Printer)])
    cover, skin = fingers(view, uniform_numbers(videos, "hand/tone"), videos)
    has_thumbs = column((uniform_numbers(videos, "hand/there") < 0.5).float())
    return torch.lerp(radiance, skin * column(light) * 0.6, cover * has_thumbs)


FRAMING = 0.85  # shown photographs are framed wider than crops, so that their edges can stay out of view

Value = TypeVar("Value")


@dataclass(frozen=True)
class Video:
    """One video to film: the person, the kind of presentation, and the seed of all constant values."""

    name: str
    subject: str
    person: int  # seed of the person
    seed: int
    frames: int
    camera: Camera
    attack: Attack | None = None  # None: bona fide

    @property
    def species(self) -> str:
        """Return the species as prepared sets name it."""
        return self.attack.species if self.attack else "bonafide"


@dataclass(frozen=True)
class Frames:
    """Filmed frames: uint8 N×S×S×3, depth uint8 N×32×32, points float32 N×5×2, in the order of the videos."""

    images: NDArray[np.uint8]
    depth: NDArray[np.uint8]
    points: NDArray[np.float32]

    def split(self, videos: Sequence[Video]) -> list["Frames"]:
        """Return each video's own frames."""
        ends = np.cumsum([video.frames for video in videos])
        return [
            Frames(
                self.images[end - v.frames : end], self.depth[end - v.frames : end], self.points[end - v.frames : end]
            )
            for v, end in zip(videos, ends, strict=True)
        ]

    @staticmethod
    def join(parts: Sequence["Frames"]) -> "Frames":
        """Return all frames, part after part."""
        return Frames(
            np.concatenate([part.images for part in parts]),
            np.concatenate([part.depth for part in parts]),
            np.concatenate([part.points for part in parts]),
        )


def render_videos(videos: Sequence[Video], domain: Domain, size: int) -> Frames:
    """Render videos of one species, with all their frames in one batch."""
    species = videos[0].species
    if species in ("bonafide", "mask"):
        masked = videos[0].species == "mask"
        place = (masked and domain.attack_place) or domain.place
        scene = _act(videos, "face", domain, place, size, mask=masked)
        radiance = scene.radiance * scene.face[:, None] if domain.cutout else scene.radiance
        images = expose(radiance, _shots(videos), _frame_seeds(videos))
        depth = scene.depth if not masked else torch.zeros_like(scene.depth)
        return Frames(images, small_depth(depth), np.asarray(scene.points, np.float32))
    # Present photographs on flat media, and photograph them again.
    photographs, face = _photographs(videos, domain, size)
    setting, shots, frames = _setting(videos, domain, size), _shots(videos), _frame_seeds(videos)
    attacks = [video.attack for video in videos for _ in range(video.frames) if video.attack]
    seeds = [video.seed for video in videos for _ in range(video.frames)]
    holdings = [attack.instrument.holding for attack in attacks if attack.instrument]
    view = draw_view(holdings, seeds, frames, size, photographs.framing)
    points = locate(view, medium_coordinates(photographs.points, size))
    grid = Sampling(shots.pixels, shots.blur)
    radiance = present(photographs, attacks, setting, view, points, grid, seeds, frames)
    if domain.cutout:  # black outside the face of the photograph
        radiance = radiance * resample(face[:, None], view).clamp(0, 1)
    images = expose(radiance, shots, frames)
    flat = np.zeros((len(images), DEPTH_SIZE, DEPTH_SIZE), np.uint8)
    return Frames(images, flat, np.asarray(points, np.float32))


def _photographs(videos: Sequence[Video], domain: Domain, size: int) -> tuple[AttackerPhotographs, Tensor]:
    """Return the attacker's picture for every frame, and its face mask: a still, or for half of the replays a video."""
    alive = [
        video.species == "replay" and uniform_numbers([video.seed], "replay/video").item() < 0.5 for video in videos
    ]
    takes = [video.frames if moving else 1 for video, moving in zip(videos, alive, strict=True)]
    scene = _act(videos, "photograph", domain, domain.place, size, takes=takes)
    seeds = _frame_seeds(videos, "photograph", takes)
    shots = draw_shots([domain.photographer] * len(seeds), _repeat([video.seed for video in videos], takes))
    images = torch.from_numpy(expose(scene.radiance, shots, seeds)).permute(0, 3, 1, 2) / 255
    starts = np.cumsum([0, *takes[:-1]])
    rows = [
        int(start) + (frame if moving else 0)
        for video, start, moving in zip(videos, starts, alive, strict=True)
        for frame in range(video.frames)
    ]
    return AttackerPhotographs(images[rows], scene.points[rows], FRAMING), scene.face[rows]


def _setting(videos: Sequence[Video], domain: Domain, size: int) -> PresentationSetting:
    """Return the room of the presentation, one per video, and for cut prints the impostor in it."""
    rows = _repeat(list(range(len(videos))), [video.frames for video in videos])
    place = domain.attack_place or domain.place
    if videos[0].species == "cut":
        scene = _act(videos, "impostor", domain, place, size, takes=[1] * len(videos))
        # The background is far behind the plane of focus.
        coarse = adaptive_avg_pool2d(scene.radiance, 8)
        room = interpolate(coarse, scene.radiance.shape[-1], mode="bilinear", align_corners=False)
        return PresentationSetting(room[rows], scene.radiance[rows], scene.points[rows])
    seeds = [derive(video.seed, "room") for video in videos]
    conditions = draw_conditions(seeds, light=place.light, backgrounds=place.backgrounds)
    return PresentationSetting(make_backgrounds(conditions, size)[rows])


def _act(
    videos: Sequence[Video],
    role: str,
    domain: Domain,
    place: RecordingPlace,
    size: int,
    *,
    takes: Sequence[int] | None = None,
    mask: bool = False,
) -> Scene:
    """Render people in motion: one draw of conditions per video, small movements between its takes."""
    takes = takes or [video.frames for video in videos]
    seeds = [derive(video.seed, role) for video in videos]
    persons = [derive(video.seed, "impostor person") if role == "impostor" else video.person for video in videos]
    conditions = draw_conditions(seeds, yaw_max=domain.yaw, light=place.light, backgrounds=place.backgrounds)
    rows = _repeat(list(range(len(videos))), takes)
    moved: Conditions = add_movements(conditions.select(rows), _frame_seeds(videos, role, takes))
    if role == "photograph":
        moved = replace(moved, scale=moved.scale * FRAMING)
    people = draw_people(persons).select(rows)
    return render(people, moved, size, mask=_masks(videos).select(rows) if mask else None)


def _masks(videos: Sequence[Video]) -> MaskMaterial:
    kinds = [
        video.attack.materials[int(len(video.attack.materials) * uniform_numbers([video.seed], "mask/material").item())]
        for video in videos
        if video.attack
    ]
    return draw_masks([derive(video.seed, "mask") for video in videos], kinds)


def _shots(videos: Sequence[Video]) -> CameraShots:
    counts = [video.frames for video in videos]
    return draw_shots(_repeat([video.camera for video in videos], counts), _repeat([v.seed for v in videos], counts))


def _frame_seeds(videos: Sequence[Video], role: str = "frame", takes: Sequence[int] | None = None) -> list[int]:
    takes = takes or [video.frames for video in videos]
    return [derive(v.seed, role, number) for v, count in zip(videos, takes, strict=True) for number in range(count)]


def _repeat(values: Sequence[Value], counts: Sequence[int]) -> list[Value]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
