"""Attacks on real photographs: from a folder of faces to a prepared set with the faces and their re-captures.

An owner of bona fide images alone can take part: the attacks of a domain are simulated on the owner's own pictures.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from fedvisage.data.prepared import Writer
from fedvisage.datasets.importers.cropping import LARGEST, Crop, record_of
from fedvisage.datasets.importers.depth import flat
from fedvisage.datasets.importers.portraits import Photograph, Portrait, list_photographs, read_portrait
from fedvisage.datasets.importers.report import ImportReport, Skipped, Tally, reasons
from fedvisage.datasets.rendered.sets import heldout_subjects
from fedvisage.datasets.rendered.specification import Synthesis
from fedvisage.errors import UserError
from fedvisage.faces.synthetic.camera import Camera, decode, draw_shots
from fedvisage.faces.synthetic.domain import Attack, Domain
from fedvisage.faces.synthetic.domains import find_domain
from fedvisage.faces.synthetic.recapture import Photographs, Setting, recapture
from fedvisage.streams import derive, numpy_rng
from fedvisage.workers.spread import Progress, spread

FRAMING = 0.9  # enlarges shown photographs a little, so that few edges come into view: crops have no wider framing
# Eyes, nose, corners of the mouth in a face crop, as shares of its side: the mean of usual alignments.
USUAL_POINTS = ((0.34, 0.42), (0.66, 0.42), (0.50, 0.60), (0.37, 0.78), (0.63, 0.78))


@dataclass(frozen=True, eq=False)
class Picture:
    """One portrait, and the attacks to make of it; `behind` is who holds a cut print, or what the room is lit like."""

    portrait: Portrait
    behind: Portrait
    seed: int
    attacks: tuple[tuple[Attack, Camera], ...]
    frames: int


def synthesise_from(
    photos: Path,
    spec: Synthesis,
    destination: Path,
    *,
    crop: Crop = "face",
    max_bad: float = 0.05,
    workers: int = 1,
    reading: Progress | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Write a set of the folder's photographs (bona fide) and of the domain's attacks on them.

    `spec.subjects` and `spec.videos` limit how many people, and photographs of each, are used; each photograph is
    attacked as often as the domain attacks a bona fide video. Masks are left out: they need geometry. Photographs
    that cannot be used are skipped and reported; more than a share `max_bad` of them stops the work.
    """
    attacks = attacks_without_masks(spec)
    source = f"photographs with simulated attacks crop={crop} {spec.digest_text}"
    found = crop == "face"
    out = Writer(
        destination, name=spec.domain, size=spec.size, source=source, depth=found, points=found,
        crop=record_of(crop, search=LARGEST),
    )  # fmt: skip
    portraits, tally = _read(photos, spec, crop, max_bad, workers, reading)
    heldout = heldout_subjects(spec, list(dict.fromkeys(portrait.photograph.subject for portrait in portraits)))
    pictures = plan_pictures(portraits, attacks, spec)
    with out, closing(spread(attack_picture, pictures, workers)) as films:
        for done, filmed in enumerate(films):
            subject = pictures[done].portrait.photograph.subject
            _write(out, pictures[done], filmed, "heldout" if subject in heldout else "train")
            if progress:
                progress(done + 1, len(pictures))
        return tally.attach(out, own_subjects=sum(portrait.photograph.own_subject for portrait in portraits))


def attacks_without_masks(spec: Synthesis) -> list[Attack]:
    """Return the attacks of the domain that can be made from photographs."""
    attacks = [
        attack
        for attack in find_domain(spec.domain).attacks
        if attack.species != "mask" and (spec.species is None or attack.species in spec.species)
    ]
    if not attacks:
        raise UserError("synth", f"domain {spec.domain} has only masks here, which cannot be made from photographs")
    return attacks


def choose(photographs: Sequence[Photograph], spec: Synthesis) -> list[Photograph]:
    """Return no more people, and photographs of each, than the specification asks for, in the order of names."""
    people: dict[str, list[Photograph]] = defaultdict(list)
    for photograph in photographs:
        people[photograph.subject].append(photograph)
    names = sorted(people)
    if spec.subjects is not None and spec.subjects < len(names):
        kept = numpy_rng(spec.seed, "people", spec.domain).choice(len(names), spec.subjects, replace=False)
        names = [names[index] for index in sorted(kept)]
    return [photograph for name in names for photograph in people[name][: spec.videos]]


def _read(
    photos: Path, spec: Synthesis, crop: Crop, max_bad: float, workers: int, reading: Progress | None
) -> tuple[list[Portrait], Tally]:
    """Return the portraits of different content, and the tally of what cannot be used."""
    found, skipped = list_photographs(photos)
    chosen = choose(found, spec)
    tally = Tally(photos, len(chosen) + len(skipped), max_bad, skipped)
    tally.stop_if_too_many()
    portraits: dict[str, Portrait] = {}
    with closing(spread(partial(read_portrait, crop=crop, size=spec.size), chosen, workers)) as found_or_not:
        for done, one in enumerate(found_or_not, start=1):
            if isinstance(one, Skipped):
                tally.skip(one.path, one.reason)
            elif one.digest in portraits:
                tally.skip(one.photograph.name, f"the same content as {portraits[one.digest].photograph.name}")
            else:
                portraits[one.digest] = one
            if reading:
                reading(done, len(chosen))
    if not portraits:
        raise UserError(str(photos), f"holds no photograph that can be used: {reasons(tally.skipped)}")
    return list(portraits.values()), tally


def plan_pictures(portraits: Sequence[Portrait], attacks: Sequence[Attack], spec: Synthesis) -> list[Picture]:
    """Choose the attacks on each portrait."""
    domain, pictures = find_domain(spec.domain), []
    for portrait in portraits:
        seed = derive(spec.seed, "photograph", domain.name, portrait.photograph.name)
        behind = portraits[derive(seed, "behind") % len(portraits)]
        planned = tuple(_attack(domain, attacks, seed, turn) for turn in range(max(1, round(domain.ratio))))
        pictures.append(Picture(portrait, behind, seed, planned, spec.frames))
    return pictures


def _attack(domain: Domain, attacks: Sequence[Attack], seed: int, turn: int) -> tuple[Attack, Camera]:
    start = derive(seed, "first attack") % len(attacks)
    camera = domain.attack_cameras[derive(seed, "which camera", turn) % len(domain.attack_cameras)]
    return attacks[(start + turn) % len(attacks)], camera


def attack_picture(picture: Picture) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return the portrait and then the frames of its attacks, uint8 N×S×S×3, and their points, float32 N×5×2."""
    photograph, behind = (_as_batch(portrait.image) for portrait in (picture.portrait, picture.behind))
    points, points_behind = (_points(portrait) for portrait in (picture.portrait, picture.behind))
    size = photograph.shape[-1]
    images, seen = [picture.portrait.image[None]], [points.numpy()]
    for turn, (attack, camera) in enumerate(picture.attacks):
        count = picture.frames
        video = derive(picture.seed, "video", turn)
        light = decode(behind).expand(count, -1, -1, -1)
        room = interpolate(adaptive_avg_pool2d(light, 8), size, mode="bilinear", align_corners=False)
        face = (light, points_behind.expand(count, -1, -1)) if attack.species == "cut" else (None, None)
        seeds = [video] * count
        frames = [derive(video, "frame", number) for number in range(count)]
        shown = Photographs(photograph.expand(count, -1, -1, -1), points.expand(count, -1, -1), FRAMING)
        shots = draw_shots([camera] * count, seeds)
        filmed, where = recapture(shown, [attack] * count, Setting(room, *face), shots, seeds, frames)
        images.append(filmed)
        seen.append(where)
    return np.concatenate(images), np.concatenate(seen).astype(np.float32)


def _as_batch(image: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255


def _points(portrait: Portrait) -> Tensor:
    """Return the points that were found, or where they usually are in a crop."""
    usual = np.array(USUAL_POINTS, np.float32) * portrait.image.shape[0]
    return torch.from_numpy(usual if portrait.points is None else portrait.points)[None]


def _write(out: Writer, picture: Picture, filmed: tuple[NDArray[np.uint8], NDArray[np.float32]], split: str) -> None:
    name, subject = picture.portrait.photograph.name, picture.portrait.photograph.subject
    videos = [(f"{name}/bonafide", "bonafide", 0)]
    videos += [
        (f"{name}/{turn + 1:02d}-{attack.species}", attack.species, frame)
        for turn, (attack, _) in enumerate(picture.attacks)
        for frame in range(picture.frames)
    ]
    images, points = filmed
    fitted = picture.portrait.depth
    out.add(
        images,
        label=[int(species == "bonafide") for _, species, _ in videos],
        species=[species for _, species, _ in videos],
        subject=[subject] * len(videos),
        video=[video for video, _, _ in videos],
        frame=[frame for _, _, frame in videos],
        split=[split] * len(videos),
        item=[f"{video}/{frame:03d}" for video, _, frame in videos],
        depth=None if fitted is None else np.stack([fitted, *[flat()] * (len(videos) - 1)]),
        points=None if picture.portrait.points is None else points,
    )
