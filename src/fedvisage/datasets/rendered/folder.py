"""Attacks on real photographs: from a folder of faces to a prepared set of re-captured faces and attacks.

An owner of bona fide images alone can take part: the attacks of a domain are simulated on the owner's own pictures.
Both classes pass the same simulated cameras, so that what a camera does says nothing about the class.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.data.prepared import Writer
from fedvisage.datasets.importers.cropping import LARGEST, Crop, record_of
from fedvisage.datasets.importers.depth import flat
from fedvisage.datasets.importers.portraits import Photograph, Portrait, list_photographs, read_portrait
from fedvisage.datasets.importers.report import ImportReport, Skipped, Tally, reasons
from fedvisage.datasets.rendered.sets import heldout_subjects
from fedvisage.datasets.rendered.specification import Synthesis, attacked, medium_of, word
from fedvisage.errors import UserError
from fedvisage.faces.depth import canonical_depth
from fedvisage.faces.synthetic.camera import Camera, decode
from fedvisage.faces.synthetic.capture import CAMERAS, CAPTURE_VERSION, draw_camera, draw_capture
from fedvisage.faces.synthetic.domain import Attack
from fedvisage.faces.synthetic.domains import find_domain
from fedvisage.faces.synthetic.recapture import Photographs, Setting
from fedvisage.faces.synthetic.takes import attack_take, living_take
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
    """Write a set of the folder's photographs, taken again (bona fide), and of the domain's attacks on them.

    `spec.subjects` and `spec.videos` limit how many people, and photographs of each, are used; each photograph is
    attacked as often as the domain attacks a bona fide video, and taken as often as it is attacked. Masks are those
    of paper; others need geometry. Photographs that cannot be used are skipped and reported; more than a share
    `max_bad` of them stops the work.
    """
    attacks = spec.retaken_attacks()
    source = f"photographs with simulated attacks crop={crop} {spec.digest_text} capture={CAPTURE_VERSION}"
    found = crop == "face"
    out = Writer(
        destination, name=spec.domain, size=spec.size, source=source, depth=found, points=found,
        crop=record_of(crop, search=LARGEST), further=("camera", "medium"),
    )  # fmt: skip
    portraits, tally = _read(photos, spec, crop, max_bad, workers, reading)
    heldout = heldout_subjects(spec, list(dict.fromkeys(portrait.photograph.subject for portrait in portraits)))
    with out:
        write_pictures(out, plan_pictures(portraits, attacks, spec), heldout, workers, progress)
        return tally.attach(out, own_subjects=sum(portrait.photograph.own_subject for portrait in portraits))


def write_pictures(
    out: Writer, pictures: Sequence[Picture], heldout: Collection[str], workers: int, progress: Progress | None
) -> None:
    """Take all pictures, and write what becomes of each."""
    with closing(spread(take_picture, pictures, workers)) as films:
        for done, filmed in enumerate(films):
            subject = pictures[done].portrait.photograph.subject
            _write(out, pictures[done], filmed, "heldout" if subject in heldout else "train")
            if progress:
                progress(done + 1, len(pictures))


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
    """Choose the attacks on each portrait, and the camera of each: which attack it is has no say in that."""
    domain, pictures = find_domain(spec.domain), []
    cameras = [camera for camera in CAMERAS if spec.cameras is None or word(camera.name) in spec.cameras]
    for portrait in portraits:
        seed = derive(spec.seed, "photograph", domain.name, portrait.photograph.name)
        behind = portraits[derive(seed, "behind") % len(portraits)]
        first = derive(seed, "first attack")
        planned = tuple(
            (attacks[(first + turn) % len(attacks)], draw_camera(derive(seed, "video", turn), cameras))
            for turn in range(attacked(domain.ratio))
        )
        pictures.append(Picture(portrait, behind, seed, planned, spec.frames))
    return pictures


def take_picture(picture: Picture) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return frames of the portrait, then of its attacks, uint8 N×S×S×3, and their points, float32 N×5×2.

    Each attack has a bona fide video beside it that was taken with the same camera and the same settings.
    """
    portrait, behind = picture.portrait, decode(_as_batch(picture.behind.image))
    count = picture.frames
    depth = torch.from_numpy(_depth(portrait))[None].expand(count, -1, -1)
    rows = (count, -1, -1, -1)
    shown = Photographs(_as_batch(portrait.image).expand(*rows), _points(portrait).expand(count, -1, -1), FRAMING)
    living, attacked = [], []
    for turn, (attack, camera) in enumerate(picture.attacks):
        video = derive(picture.seed, "video", turn)
        frames = [derive(video, "frame", number) for number in range(count)]
        alive = derive(video, "alive")
        face = (behind.expand(*rows), _points(picture.behind).expand(count, -1, -1))
        setting = Setting(face[0], *(face if attack.species in ("cut", "mask") else (None, None)))
        capture = draw_capture([camera] * count, [video] * count)
        living.append(living_take(shown, depth, capture, [alive] * count, [derive(one, "alive") for one in frames]))
        attacked.append(attack_take(shown, [attack] * count, setting, capture, [video] * count, frames))
    images, points = zip(*living, *attacked, strict=True)
    return np.concatenate(images), np.concatenate(points).astype(np.float32)


def _as_batch(image: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255


def _points(portrait: Portrait) -> Tensor:
    """Return the points that were found, or where they usually are in a crop."""
    usual = np.array(USUAL_POINTS, np.float32) * portrait.image.shape[0]
    return torch.from_numpy(usual if portrait.points is None else portrait.points)[None]


def _depth(portrait: Portrait) -> NDArray[np.uint8]:
    """Return the map that was fitted to the points that were found, or to where they usually are."""
    return _usual_depth(portrait.image.shape[0]) if portrait.depth is None else portrait.depth


@cache
def _usual_depth(size: int) -> NDArray[np.uint8]:
    return canonical_depth(np.array(USUAL_POINTS) * size, size)


def _write(out: Writer, picture: Picture, filmed: tuple[NDArray[np.uint8], NDArray[np.float32]], split: str) -> None:
    name, subject = picture.portrait.photograph.name, picture.portrait.photograph.subject
    takes = [(f"{name}/{turn + 1:02d}-bonafide", "bonafide", camera, "")
             for turn, (_, camera) in enumerate(picture.attacks)]  # fmt: skip
    takes += [(f"{name}/{turn + 1:02d}-{attack.species}", attack.species, camera, medium_of(attack))
              for turn, (attack, camera) in enumerate(picture.attacks)]  # fmt: skip
    rows = [(*take, frame) for take in takes for frame in range(picture.frames)]
    images, points = filmed
    fitted = picture.portrait.depth
    out.add(
        images,
        label=[int(species == "bonafide") for _, species, *_ in rows],
        species=[species for _, species, *_ in rows],
        subject=[subject] * len(rows),
        video=[video for video, *_ in rows],
        frame=[frame for *_, frame in rows],
        split=[split] * len(rows),
        item=[f"{video}/{frame:03d}" for video, *_, frame in rows],
        depth=None if fitted is None else np.stack([fitted if s == "bonafide" else flat() for _, s, *_ in rows]),
        points=None if picture.portrait.points is None else points,
        further={"camera": [word(camera.name) for _, _, camera, *_ in rows], "medium": [row[3] for row in rows]},
    )
