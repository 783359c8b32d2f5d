"""Films the videos of a rendered domain: people before cameras, and attacks before the same cameras."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from fedvisage.faces.synthetic.backgrounds import make_backgrounds
from fedvisage.faces.synthetic.camera import Camera, Shots, draw_shots, expose
from fedvisage.faces.synthetic.conditions import Conditions, draw_conditions, move
from fedvisage.faces.synthetic.domain import Attack, Domain, Place
from fedvisage.faces.synthetic.draws import unit
from fedvisage.faces.synthetic.mask import Mask, draw_masks
from fedvisage.faces.synthetic.people import draw_people
from fedvisage.faces.synthetic.recapture import Photographs, Setting, recapture
from fedvisage.faces.synthetic.scene import DEPTH_SIZE, Scene, render, small_depth
from fedvisage.streams import derive

FRAMING = 0.85  # photographs to be shown are framed wider than crops, so that their edges need not come into view

Value = TypeVar("Value")


@dataclass(frozen=True)
class Video:
    """One video to film: who, what kind, and the seed of everything that stays the same in it."""

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
    """What was filmed: uint8 N×S×S×3, depth uint8 N×32×32, points float32 N×5×2, in the order of the videos."""

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
    def joined(parts: Sequence["Frames"]) -> "Frames":
        """Return all frames, part after part."""
        return Frames(
            np.concatenate([part.images for part in parts]),
            np.concatenate([part.depth for part in parts]),
            np.concatenate([part.points for part in parts]),
        )


def film(videos: Sequence[Video], domain: Domain, size: int) -> Frames:
    """Film videos of one species, all their frames in one batch."""
    species = videos[0].species
    if species in ("bonafide", "mask"):
        return _film_faces(videos, domain, size)
    return _film_media(videos, domain, size)


def _film_faces(videos: Sequence[Video], domain: Domain, size: int) -> Frames:
    masked = videos[0].species == "mask"
    place = domain.attack_place if masked else domain.place
    scene = _act(videos, "face", domain, place, size, mask=masked)
    radiance = scene.radiance * scene.face[:, None] if domain.cutout else scene.radiance
    images = expose(radiance, _shots(videos), _frame_seeds(videos))
    depth = scene.depth if not masked else torch.zeros_like(scene.depth)
    return Frames(images, small_depth(depth), np.asarray(scene.points, np.float32))


def _film_media(videos: Sequence[Video], domain: Domain, size: int) -> Frames:
    photographs, face = _photographs(videos, domain, size)
    setting = _setting(videos, domain, size)
    attacks = [video.attack for video in videos for _ in range(video.frames) if video.attack]
    seeds = [video.seed for video in videos for _ in range(video.frames)]
    images, points = recapture(
        photographs,
        attacks,
        setting,
        _shots(videos),
        seeds,
        _frame_seeds(videos),
        face[:, None] if domain.cutout else None,
    )
    return Frames(images, np.zeros((len(images), DEPTH_SIZE, DEPTH_SIZE), np.uint8), points)


def _photographs(videos: Sequence[Video], domain: Domain, size: int) -> tuple[Photographs, Tensor]:
    """Return what the attacker shows in every frame, and its face mask: a still, or for half of the replays a video."""
    alive = [video.species == "replay" and unit([video.seed], "replay/video").item() < 0.5 for video in videos]
    takes = [video.frames if moving else 1 for video, moving in zip(videos, alive, strict=True)]
    scene = _act(videos, "photograph", domain, domain.place, size, takes=takes)
    seeds = _frame_seeds(videos, "photograph", takes)
    shots = draw_shots([domain.photographer] * len(seeds), _repeated([video.seed for video in videos], takes))
    images = torch.from_numpy(expose(scene.radiance, shots, seeds)).permute(0, 3, 1, 2) / 255
    starts = np.cumsum([0, *takes[:-1]])
    rows = [
        int(start) + (frame if moving else 0)
        for video, start, moving in zip(videos, starts, alive, strict=True)
        for frame in range(video.frames)
    ]
    return Photographs(images[rows], scene.points[rows], FRAMING), scene.face[rows]


def _setting(videos: Sequence[Video], domain: Domain, size: int) -> Setting:
    """Return the room in which attacks are presented, one per video, and for cut prints the impostor in it."""
    rows = _repeated(list(range(len(videos))), [video.frames for video in videos])
    if videos[0].species == "cut":
        scene = _act(videos, "impostor", domain, domain.attack_place, size, takes=[1] * len(videos))
        return Setting(_blurred(scene.radiance)[rows], scene.radiance[rows], scene.points[rows])
    seeds = [derive(video.seed, "room") for video in videos]
    place = domain.attack_place
    conditions = draw_conditions(seeds, light=place.light, backgrounds=place.backgrounds)
    return Setting(make_backgrounds(conditions, size)[rows])


def _blurred(radiance: Tensor) -> Tensor:
    """Return what is far behind the plane that is in focus."""
    return interpolate(adaptive_avg_pool2d(radiance, 8), radiance.shape[-1], mode="bilinear", align_corners=False)


def _act(
    videos: Sequence[Video],
    role: str,
    domain: Domain,
    place: Place,
    size: int,
    *,
    takes: Sequence[int] | None = None,
    mask: bool = False,
) -> Scene:
    """Render people acting: one draw of conditions a video, small movements between its takes."""
    takes = takes or [video.frames for video in videos]
    seeds = [derive(video.seed, role) for video in videos]
    persons = [derive(video.seed, "impostor person") if role == "impostor" else video.person for video in videos]
    conditions = draw_conditions(seeds, yaw_max=domain.yaw, light=place.light, backgrounds=place.backgrounds)
    rows = _repeated(list(range(len(videos))), takes)
    moved: Conditions = move(conditions.select(rows), _frame_seeds(videos, role, takes))
    if role == "photograph":
        moved = replace(moved, scale=moved.scale * FRAMING)
    people = draw_people(persons).select(rows)
    return render(people, moved, size, mask=_masks(videos).select(rows) if mask else None)


def _masks(videos: Sequence[Video]) -> Mask:
    kinds = [
        video.attack.materials[int(len(video.attack.materials) * unit([video.seed], "mask/material").item())]
        for video in videos
        if video.attack
    ]
    return draw_masks([derive(video.seed, "mask") for video in videos], kinds)


def _shots(videos: Sequence[Video]) -> Shots:
    counts = [video.frames for video in videos]
    return draw_shots(
        _repeated([video.camera for video in videos], counts), _repeated([v.seed for v in videos], counts)
    )


def _frame_seeds(videos: Sequence[Video], role: str = "frame", takes: Sequence[int] | None = None) -> list[int]:
    takes = takes or [video.frames for video in videos]
    return [derive(v.seed, role, number) for v, count in zip(videos, takes, strict=True) for number in range(count)]


def _repeated(values: Sequence[Value], counts: Sequence[int]) -> list[Value]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
