"""Attacks on real photographs: from a folder of faces to a prepared set with the faces and their re-captures.

An owner of bona fide images alone can take part: the attacks of a domain are simulated on the owner's own pictures.
Folder layout: a subject is the first folder below the root, or each picture where there is none. Pictures should be
face crops; what is not square is cropped to its central square.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from fedvisage.data.prepared import Writer
from fedvisage.errors import UserError
from fedvisage.faces.synthetic.camera import Camera, decode, draw_shots
from fedvisage.faces.synthetic.domain import Attack, Domain
from fedvisage.faces.synthetic.domains import find_domain
from fedvisage.faces.synthetic.recapture import Photographs, Setting, recapture
from fedvisage.faces.synthetic.sets import Progress, heldout_subjects, spread
from fedvisage.faces.synthetic.specification import Synthesis
from fedvisage.streams import derive, numpy_rng

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}

FRAMING = 0.9  # enlarges shown photographs a little, so that few edges come into view: crops have no wider framing
# Eyes, nose, corners of the mouth in a face crop, as shares of its side: the mean of usual alignments.
USUAL_POINTS = ((0.34, 0.42), (0.66, 0.42), (0.50, 0.60), (0.37, 0.78), (0.63, 0.78))


@dataclass(frozen=True)
class Picture:
    """One photograph of the folder, and the attacks to make of it; `behind` is a photograph of somebody else."""

    path: Path
    subject: str
    name: str
    seed: int
    behind: Path
    attacks: tuple[tuple[Attack, Camera], ...]
    frames: int


def synthesise_from(
    photos: Path, spec: Synthesis, destination: Path, *, workers: int = 1, progress: Progress | None = None
) -> None:
    """Write a set of the folder's photographs (bona fide) and of the domain's attacks on them.

    `spec.subjects` and `spec.videos` limit how many people, and photographs of each, are used; each photograph is
    attacked as often as the domain attacks a bona fide video. Masks are left out: they need geometry.
    """
    pictures = plan_pictures(photos, spec)
    heldout = heldout_subjects(spec, list(dict.fromkeys(picture.subject for picture in pictures)))
    work = partial(attack_picture, size=spec.size)
    total, done = sum(1 + picture.frames * len(picture.attacks) for picture in pictures), 0
    source = f"photographs with simulated attacks {spec.digest_text}"
    with Writer(destination, name=spec.domain, size=spec.size, source=source, depth=False, points=False) as out:
        for picture, images in zip(pictures, spread(work, pictures, workers), strict=True):
            _write(out, picture, images, "heldout" if picture.subject in heldout else "train")
            done += len(images)
            if progress:
                progress(done, total)


def plan_pictures(photos: Path, spec: Synthesis) -> list[Picture]:
    """Choose people, photographs and attacks."""
    domain = find_domain(spec.domain)
    attacks = [
        attack
        for attack in domain.attacks
        if attack.species != "mask" and (spec.species is None or attack.species in spec.species)
    ]
    if not attacks:
        raise UserError("synth", f"domain {spec.domain} has only masks here, which cannot be made from photographs")
    people = _chosen(photos, spec)
    everyone = [path for paths in people.values() for path in paths]
    pictures = []
    for subject, paths in people.items():
        for path in paths:
            name = path.relative_to(photos).as_posix()
            seed = derive(spec.seed, "photograph", domain.name, name)
            behind = everyone[derive(seed, "behind") % len(everyone)]
            planned = tuple(_attack(domain, attacks, seed, turn) for turn in range(max(1, round(domain.ratio))))
            pictures.append(Picture(path, subject, name, seed, behind, planned, spec.frames))
    return pictures


def _attack(domain: Domain, attacks: Sequence[Attack], seed: int, turn: int) -> tuple[Attack, Camera]:
    start = derive(seed, "first attack") % len(attacks)
    camera = domain.attack_cameras[derive(seed, "which camera", turn) % len(domain.attack_cameras)]
    return attacks[(start + turn) % len(attacks)], camera


def _chosen(photos: Path, spec: Synthesis) -> dict[str, list[Path]]:
    """Return people and their photographs, in the order of names, no more than the specification asks for."""
    if not photos.is_dir():
        raise UserError(str(photos), "is no directory; give a folder of face photographs")
    people: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(photos.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            inside = path.relative_to(photos).parts
            people[inside[0] if len(inside) > 1 else path.name].append(path)
    if not people:
        raise UserError(str(photos), f"holds no photographs ({', '.join(sorted(SUFFIXES))})")
    names = sorted(people)
    if spec.subjects is not None and spec.subjects < len(names):
        kept = numpy_rng(spec.seed, "people", spec.domain).choice(len(names), spec.subjects, replace=False)
        names = [names[index] for index in sorted(kept)]
    return {name: people[name][: spec.videos] for name in names}


def attack_picture(picture: Picture, size: int) -> NDArray[np.uint8]:
    """Return the photograph and then the frames of its attacks, uint8 N×S×S×3."""
    photograph, behind = (_as_batch(read_square(path, size)) for path in (picture.path, picture.behind))
    points = torch.tensor(USUAL_POINTS)[None] * size
    images = [(photograph[0] * 255).round().byte().permute(1, 2, 0).numpy()[None]]
    for turn, (attack, camera) in enumerate(picture.attacks):
        count = picture.frames
        video = derive(picture.seed, "video", turn)
        light = decode(behind).expand(count, -1, -1, -1)
        room = interpolate(adaptive_avg_pool2d(light, 8), size, mode="bilinear", align_corners=False)
        face = (light, points.expand(count, -1, -1)) if attack.species == "cut" else (None, None)
        seeds = [video] * count
        frames = [derive(video, "frame", number) for number in range(count)]
        shown = Photographs(photograph.expand(count, -1, -1, -1), points.expand(count, -1, -1), FRAMING)
        shots = draw_shots([camera] * count, seeds)
        images.append(recapture(shown, [attack] * count, Setting(room, *face), shots, seeds, frames)[0])
    return np.concatenate(images)


def read_square(path: Path, size: int) -> NDArray[np.uint8]:
    """Read a photograph as RGB, cropped to its central square and resized."""
    stored = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    if stored is None:
        raise UserError(str(path), "is no readable picture; remove it or convert it")
    side = min(stored.shape[:2])
    top, left = (stored.shape[0] - side) // 2, (stored.shape[1] - side) // 2
    square = stored[top : top + side, left : left + side, ::-1]
    filtering = cv2.INTER_AREA if side > size else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(np.ascontiguousarray(square), (size, size), interpolation=filtering), np.uint8)


def _as_batch(image: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255


def _write(out: Writer, picture: Picture, images: NDArray[np.uint8], split: str) -> None:
    videos = [(f"{picture.name}/bonafide", "bonafide", 0)]
    videos += [
        (f"{picture.name}/{turn + 1:02d}-{attack.species}", attack.species, frame)
        for turn, (attack, _) in enumerate(picture.attacks)
        for frame in range(picture.frames)
    ]
    out.add(
        images,
        label=[int(species == "bonafide") for _, species, _ in videos],
        species=[species for _, species, _ in videos],
        subject=[picture.subject] * len(videos),
        video=[video for video, _, _ in videos],
        frame=[frame for _, _, frame in videos],
        split=[split] * len(videos),
        item=[f"{video}/{frame:03d}" for video, _, frame in videos],
    )
