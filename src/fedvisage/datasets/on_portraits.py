"""Attacks on real photographs: from a folder of faces to a prepared set of re-captured faces and attacks.

An owner of bona fide images alone can take part: the attacks of a domain are simulated on the owner's own pictures.
Both classes pass the same simulated cameras, so that what a camera does says nothing about the class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.base.errors import BadFile, UserError, printable
from fedvisage.base.parallel import Progress, spread
from fedvisage.base.streams import derive, numpy_rng
from fedvisage.data.prepared import file_digest
from fedvisage.data.writer import Writer
from fedvisage.datasets.depth_maps import DepthMaker, Map, flat, make_depth
from fedvisage.datasets.pad.tree import files_below, unusable
from fedvisage.datasets.report import ImportReport, Skipped, Tally, reasons
from fedvisage.faces.cropping import LARGEST, Crop, Cropper, make_cropper, record_of
from fedvisage.faces.pictures import ENDINGS, open_picture
from fedvisage.render.camera import Camera, decode
from fedvisage.render.capture import CAMERAS, CAPTURE_VERSION, draw_camera, draw_capture
from fedvisage.render.depth import canonical_depth
from fedvisage.render.domains import GOOD_PHOTOGRAPHER, Attack, find_domain
from fedvisage.render.filming import Photographs, Setting, Video, as_photographed, attack_take, living_take
from fedvisage.render.sets import (
    RETAKEN,
    Synthesis,
    attacked,
    film_subject,
    heldout_subjects,
    medium_of,
    synthesise,
    word,
)

# Reads a folder of photographs of faces, all bona fide: who is on each, and its crop, or why it cannot be used.
#
# A subject is the first folder below the root, or each photograph where there is none.


@dataclass(frozen=True)
class Photograph:
    """A file that may hold a photograph; without a folder of its own the file stands for a subject."""

    path: Path
    name: str  # relative to the root, with '/'

    @property
    def own_subject(self) -> bool:
        """Tell whether no folder names the subject."""
        return "/" not in self.name

    @property
    def subject(self) -> str:
        """Return who is on it."""
        return PurePosixPath(self.name).parts[0]


@dataclass(frozen=True, eq=False)
class Portrait:
    """The crop of a photograph, with five points and a fitted depth map if a face was sought."""

    photograph: Photograph
    digest: str
    image: npt.NDArray[np.uint8]
    points: npt.NDArray[np.float32] | None
    depth: Map | None


def list_photographs(root: Path) -> tuple[list[Photograph], list[Skipped]]:
    """List the files that may be photographs, in order of their names, and those that cannot be, with the reason."""
    if not root.is_dir():
        raise UserError(str(root), "is no directory; give a folder of face photographs")
    found, skipped = [], []
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files_below(root)):
        fault = unusable(path, name, root, ENDINGS)
        if fault:
            skipped.append(Skipped(printable(name), fault))
        else:
            found.append(Photograph(path, name))
    if not found:
        raise UserError(str(root), f"holds no photographs ({', '.join(ENDINGS)})")
    return found, skipped


def read_portrait(photograph: Photograph, crop: Crop, size: int) -> Portrait | Skipped:
    """Read and crop one photograph. A crop is never enlarged: that would blur what tells attacks apart."""
    try:
        cropper, depth = _cropper_and_depth(crop, size)
        cropped = cropper(open_picture(photograph.path))
        if cropped.upscaled:
            raise BadFile(f"its crop is smaller than {size}×{size} pixels, and enlarging it would blur it")
        fitted = depth and depth(1, (photograph.name,), cropped)
        return Portrait(photograph, file_digest(photograph.path), cropped.image, cropped.points, fitted)
    except BadFile as bad:
        return Skipped(photograph.name, str(bad))
    except OSError as error:
        return Skipped(photograph.name, f"cannot be read: {error.strerror or error}")


@cache
def _cropper_and_depth(crop: Crop, size: int) -> tuple[Cropper, DepthMaker | None]:
    """Make these once in each process: the weights of the detector take a second to load."""
    return make_cropper(crop, size), make_depth("auto", crop, size)


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


# The second generation of rendered sets: portraits of rendered people, taken again as photographs are.
#
# A line ``synth: O generation=2`` has the people, light and media of a domain, and the capture of ``data synth
# --from``:
# both classes pass the same simulated cameras, so that what a camera does says nothing about the class. The first
# generation stays as it is. ``media=`` and ``cameras=`` make a set with some of them alone, to be judged by the
# others.


def render_set(spec: Synthesis, destination: Path, *, workers: int = 1, progress: Progress | None = None) -> None:
    """Render the set that a specification names, of either generation."""
    (retake if spec.generation == RETAKEN else synthesise)(spec, destination, workers=workers, progress=progress)


def retake(spec: Synthesis, destination: Path, *, workers: int = 1, progress: Progress | None = None) -> None:
    """Render portraits of a domain's people, and write what one capture makes of them and of attacks on them."""
    attacks, sittings = spec.retaken_attacks(), plan_portraits(spec)
    work = partial(portraits_of, domain=spec.domain, size=spec.size)
    with closing(spread(work, sittings, workers)) as taken:
        portraits = [portrait for one in taken for portrait in one]
    subjects = [videos[0].subject for videos in sittings]
    with Writer(
        destination, name=spec.domain, size=spec.size, source=f"synthetic {spec.digest_text}", depth=True, points=True,
        further=("camera", "medium"),
    ) as out:  # fmt: skip
        pictures = plan_pictures(portraits, attacks, spec)
        write_pictures(out, pictures, heldout_subjects(spec, subjects), workers, progress)


def plan_portraits(spec: Synthesis) -> list[list[Video]]:
    """Return the sittings of each subject, a frame each, before a good camera; people are the first generation's."""
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


def portraits_of(videos: Sequence[Video], domain: str, size: int) -> list[Portrait]:
    """Render the sittings of one subject, with points and depth as they are, as soft as photographs of faces are."""
    filmed = film_subject(videos, find_domain(domain), size)
    rendered = torch.from_numpy(filmed.images).permute(0, 3, 1, 2).float()
    soft = as_photographed(rendered / 255, [video.seed for video in videos]) * 255
    images = np.ascontiguousarray(soft.round().byte().permute(0, 2, 3, 1).numpy())
    rows = zip(videos, images, filmed.points, filmed.depth, strict=True)
    return [
        Portrait(Photograph(Path(video.name), video.name), video.name, image, points, depth)
        for video, image, points, depth in rows
    ]
