"""The second generation of rendered sets: both classes pass through the same simulated camera.

Portraits of a domain's people are photographed again, as living faces and as prints, cut prints and displays. Each
attack has a bona fide video with the same camera and settings, so that camera artefacts do not reveal the class.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.base.parallel import Progress, map_in_order
from fedvisage.base.streams import derive
from fedvisage.data.writer import Writer
from fedvisage.render.camera import Camera, decode
from fedvisage.render.capture import CAMERAS, draw_camera, draw_capture
from fedvisage.render.domains import GOOD_PHOTOGRAPHER, Attack, find_domain
from fedvisage.render.filming import (
    AttackerPhotographs,
    PresentationSetting,
    Video,
    camera_soft,
    photograph_attack,
    photograph_living,
)
from fedvisage.render.people import describe_person
from fedvisage.render.sets import Synthesis, attacks_per_photograph, film_subject, heldout_subjects, medium_of, word

FRAMING = 0.9  # shows portraits slightly enlarged to hide their edges: crops have no wider framing


@dataclass(frozen=True, eq=False)
class Portrait:
    """A rendered face with its five points and depth map."""

    name: str
    subject: str
    person: int  # seed of the person
    image: NDArray[np.uint8]
    points: NDArray[np.float32]
    depth: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class CapturePlan:
    """One portrait and its planned attacks; `behind` is the holder of a cut print, and sets the light of the room."""

    portrait: Portrait
    behind: Portrait
    seed: int
    attacks: tuple[tuple[Attack, Camera], ...]
    frames: int


def recapture_portraits(
    spec: Synthesis, destination: Path, *, workers: int = 1, progress: Progress | None = None
) -> None:
    """Render portraits of a domain's people, and write re-captures of them and of attacks on them."""
    attacks, sittings = spec.retaken_attacks(), plan_portraits(spec)
    work = partial(render_portraits, domain=spec.domain, size=spec.size)
    with closing(map_in_order(work, sittings, workers)) as rendered:
        portraits = [portrait for person_portraits in rendered for portrait in person_portraits]
    # All portraits are rendered first: an attack re-captures one of them.
    heldout = heldout_subjects(spec, [videos[0].subject for videos in sittings])
    plans = plan_captures(portraits, attacks, spec)
    with (
        Writer(
            destination,
            name=spec.domain,
            size=spec.size,
            source=f"synthetic {spec.digest_text}",
            depth=True,
            points=True,
            further=("camera", "medium", "tone", "age"),
        ) as out,
        closing(map_in_order(capture, plans, workers)) as films,
    ):
        for done, (plan, (images, points)) in enumerate(zip(plans, films, strict=True), start=1):
            _write_frames(out, plan, images, points, "heldout" if plan.portrait.subject in heldout else "train")
            if progress:
                progress(done, len(plans))


def plan_portraits(spec: Synthesis) -> list[list[Video]]:
    """Return the portrait sessions of each subject, one frame each, by a good camera.

    The people are those of the first generation.
    """
    domain = find_domain(spec.domain)
    return [
        [
            Video(
                f"{domain.name}-{number + 1:04d}/{turn + 1:02d}",
                f"{domain.name}-{number + 1:04d}",
                derive(spec.seed, "person", domain.name, number),
                derive(spec.seed, "portrait", domain.name, number, turn),
                1,
                GOOD_PHOTOGRAPHER,
            )
            for turn in range(spec.videos or domain.videos)
        ]
        for number in range(spec.subjects or domain.subjects)
    ]


def render_portraits(videos: Sequence[Video], domain: str, size: int) -> list[Portrait]:
    """Render the portraits of one subject, with exact points and depth, as soft as photographs of faces."""
    filmed = film_subject(videos, find_domain(domain), size)
    rendered = torch.from_numpy(filmed.images).permute(0, 3, 1, 2).float()
    soft = camera_soft(rendered / 255, [video.seed for video in videos]) * 255
    images = np.ascontiguousarray(soft.round().byte().permute(0, 2, 3, 1).numpy())
    rows = zip(videos, images, filmed.points, filmed.depth, strict=True)
    return [Portrait(video.name, video.subject, video.person, *arrays) for video, *arrays in rows]


def plan_captures(portraits: Sequence[Portrait], attacks: Sequence[Attack], spec: Synthesis) -> list[CapturePlan]:
    """Choose the attacks on each portrait, and their cameras independently of the attack."""
    domain, plans = find_domain(spec.domain), []
    cameras = [camera for camera in CAMERAS if spec.cameras is None or word(camera.name) in spec.cameras]
    for portrait in portraits:
        seed = derive(spec.seed, "photograph", domain.name, portrait.name)
        behind = portraits[derive(seed, "behind") % len(portraits)]
        first = derive(seed, "first attack")
        planned = tuple(
            (attacks[(first + turn) % len(attacks)], draw_camera(derive(seed, "video", turn), cameras))
            for turn in range(attacks_per_photograph(domain.ratio))
        )
        plans.append(CapturePlan(portrait, behind, seed, planned, spec.frames))
    return plans


def capture(plan: CapturePlan) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return frames of the portrait, then of its attacks, uint8 N×S×S×3, and their points, float32 N×5×2."""
    count, portrait = plan.frames, plan.portrait
    depth = torch.from_numpy(portrait.depth)[None].expand(count, -1, -1)
    shown = AttackerPhotographs(_repeat_image(portrait, count), _repeat_points(portrait, count), FRAMING)
    behind = decode(_repeat_image(plan.behind, 1)).expand(count, -1, -1, -1)
    behind_points = _repeat_points(plan.behind, count)
    bona_fide, attacked = [], []
    for turn, (attack, camera) in enumerate(plan.attacks):
        video = derive(plan.seed, "video", turn)
        frames = [derive(video, "frame", number) for number in range(count)]
        settings = draw_capture([camera] * count, [video] * count)
        poses = [derive(frame_seed, "alive") for frame_seed in frames]
        bona_fide.append(photograph_living(shown, depth, settings, [derive(video, "alive")] * count, poses))
        held = (behind, behind_points) if attack.species in ("cut", "mask") else (None, None)
        room = PresentationSetting(behind, *held)
        attacked.append(photograph_attack(shown, [attack] * count, room, settings, [video] * count, frames))
    images, points = zip(*bona_fide, *attacked, strict=True)
    return np.concatenate(images), np.concatenate(points).astype(np.float32)


def _repeat_image(portrait: Portrait, count: int) -> Tensor:
    image = torch.from_numpy(portrait.image).permute(2, 0, 1)[None].float() / 255
    return image.expand(count, -1, -1, -1)


def _repeat_points(portrait: Portrait, count: int) -> Tensor:
    return torch.from_numpy(portrait.points)[None].expand(count, -1, -1)


def _write_frames(
    out: Writer, plan: CapturePlan, images: NDArray[np.uint8], points: NDArray[np.float32], split: str
) -> None:
    """Add the frames of one portrait: first those of the living face, then those of the attacks."""
    name, turns = plan.portrait.name, list(enumerate(plan.attacks, start=1))
    takes = [(f"{name}/{turn:02d}-bonafide", "bonafide", camera, "") for turn, (_, camera) in turns]
    takes += [
        (f"{name}/{turn:02d}-{attack.species}", attack.species, camera, medium_of(attack))
        for turn, (attack, camera) in turns
    ]
    rows = [(*take, frame) for take in takes for frame in range(plan.frames)]
    flat, cameras = np.zeros_like(plan.portrait.depth), [word(camera.name) for _, _, camera, *_ in rows]
    appearance = {name: [text] * len(rows) for name, text in describe_person(plan.portrait.person).items()}
    out.add(
        images,
        label=[int(species == "bonafide") for _, species, *_ in rows],
        species=[species for _, species, *_ in rows],
        subject=[plan.portrait.subject] * len(rows),
        video=[video for video, *_ in rows],
        frame=[frame for *_, frame in rows],
        split=[split] * len(rows),
        item=[f"{video}/{frame:03d}" for video, *_, frame in rows],
        depth=np.stack([plan.portrait.depth if species == "bonafide" else flat for _, species, *_ in rows]),
        points=points,
        further={"camera": cameras, "medium": [row[3] for row in rows], **appearance},
    )
