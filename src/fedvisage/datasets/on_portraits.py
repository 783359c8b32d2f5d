"""Re-captured faces and simulated attacks, from photographs of faces or from rendered portraits.

An owner of bona fide images alone can take part: the attacks of a domain are simulated on the owner's own pictures.
Both classes pass through the same simulated cameras, so that camera artefacts do not reveal the class.
"""

from __future__ import annotations

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

from fedvisage.base.errors import UserError
from fedvisage.base.parallel import Progress, map_in_order
from fedvisage.base.streams import derive, numpy_rng
from fedvisage.data.writer import Writer
from fedvisage.datasets.depth_maps import flat_map
from fedvisage.datasets.portraits import PhotographFile, Portrait, list_photographs, read_portrait
from fedvisage.datasets.report import ImportReport, SkippedFile, Tally, reasons
from fedvisage.faces.cropping import LARGEST, Crop, record_of
from fedvisage.render.camera import Camera, decode
from fedvisage.render.capture import CAMERAS, CAPTURE_VERSION, draw_camera, draw_capture
from fedvisage.render.depth import canonical_depth
from fedvisage.render.domains import GOOD_PHOTOGRAPHER, Attack, find_domain
from fedvisage.render.filming import (
    AttackerPhotographs,
    PresentationSetting,
    Video,
    camera_soft,
    photograph_attack,
    photograph_living,
)
from fedvisage.render.sets import (
    SECOND_GENERATION,
    Synthesis,
    attacks_per_photograph,
    film_subject,
    heldout_subjects,
    medium_of,
    synthesise,
    word,
)

FRAMING = 0.9  # shows photographs slightly enlarged to hide their edges: crops have no wider framing
# Eyes, nose, corners of the mouth in a face crop, as shares of its side: the mean of usual alignments.
USUAL_POINTS = ((0.34, 0.42), (0.66, 0.42), (0.50, 0.60), (0.37, 0.78), (0.63, 0.78))


@dataclass(frozen=True, eq=False)
class CapturePlan:
    """One portrait and its planned attacks; `behind` is the holder of a cut print, and sets the light of the room."""

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
    """Write a set of re-captured photographs (bona fide) and of the domain's attacks on them.

    `spec.subjects` and `spec.videos` limit the people, and the photographs of each. The domain's ratio of attacks to
    bona fide videos sets the number of attacks on each photograph; it is re-captured equally often. Only paper masks
    are simulated; others need geometry. Unusable photographs are skipped and reported; more than a share `max_bad` of
    them stops the work.
    """
    attacks = spec.retaken_attacks()
    source = f"photographs with simulated attacks crop={crop} {spec.digest_text} capture={CAPTURE_VERSION}"
    detected = crop == "face"
    out = Writer(
        destination,
        name=spec.domain,
        size=spec.size,
        source=source,
        depth=detected,
        points=detected,
        crop=record_of(crop, search=LARGEST),
        further=("camera", "medium"),
    )
    portraits, tally = _read_portraits(photos, spec, crop, max_bad, workers, reading)
    heldout = heldout_subjects(spec, list(dict.fromkeys(portrait.photograph.subject for portrait in portraits)))
    with out:
        write_pictures(out, plan_pictures(portraits, attacks, spec), heldout, workers, progress)
        return tally.attach(out, own_subjects=sum(portrait.photograph.own_subject for portrait in portraits))


def write_pictures(
    out: Writer, pictures: Sequence[CapturePlan], heldout: Collection[str], workers: int, progress: Progress | None
) -> None:
    """Capture all pictures, and write the frames of each."""
    with closing(map_in_order(take_picture, pictures, workers)) as films:
        for done, filmed in enumerate(films):
            subject = pictures[done].portrait.photograph.subject
            _write_frames(out, pictures[done], filmed, "heldout" if subject in heldout else "train")
            if progress:
                progress(done + 1, len(pictures))


def limit_photographs(photographs: Sequence[PhotographFile], spec: Synthesis) -> list[PhotographFile]:
    """Return at most the numbers of people and of photographs per person in the specification, in order of names."""
    people: dict[str, list[PhotographFile]] = defaultdict(list)
    for photograph in photographs:
        people[photograph.subject].append(photograph)
    names = sorted(people)
    if spec.subjects is not None and spec.subjects < len(names):
        kept = numpy_rng(spec.seed, "people", spec.domain).choice(len(names), spec.subjects, replace=False)
        names = [names[index] for index in sorted(kept)]
    return [photograph for name in names for photograph in people[name][: spec.videos]]


def _read_portraits(
    photos: Path, spec: Synthesis, crop: Crop, max_bad: float, workers: int, reading: Progress | None
) -> tuple[list[Portrait], Tally]:
    """Return the portraits with different content, and the tally of skipped files."""
    photographs, skipped = list_photographs(photos)
    chosen = limit_photographs(photographs, spec)
    tally = Tally(photos, len(chosen) + len(skipped), max_bad, skipped)
    tally.stop_if_too_many()
    portraits: dict[str, Portrait] = {}
    with closing(map_in_order(partial(read_portrait, crop=crop, size=spec.size), chosen, workers)) as results:
        for done, result in enumerate(results, start=1):
            if isinstance(result, SkippedFile):
                tally.skip(result.path, result.reason)
            elif result.digest in portraits:
                tally.skip(result.photograph.name, f"the same content as {portraits[result.digest].photograph.name}")
            else:
                portraits[result.digest] = result
            if reading:
                reading(done, len(chosen))
    if not portraits:
        raise UserError(str(photos), f"contains no usable photographs: {reasons(tally.skipped)}")
    return list(portraits.values()), tally


def plan_pictures(portraits: Sequence[Portrait], attacks: Sequence[Attack], spec: Synthesis) -> list[CapturePlan]:
    """Choose the attacks on each portrait, and their cameras independently of the attack."""
    domain, pictures = find_domain(spec.domain), []
    cameras = [camera for camera in CAMERAS if spec.cameras is None or word(camera.name) in spec.cameras]
    for portrait in portraits:
        seed = derive(spec.seed, "photograph", domain.name, portrait.photograph.name)
        behind = portraits[derive(seed, "behind") % len(portraits)]
        first = derive(seed, "first attack")
        planned = tuple(
            (attacks[(first + turn) % len(attacks)], draw_camera(derive(seed, "video", turn), cameras))
            for turn in range(attacks_per_photograph(domain.ratio))
        )
        pictures.append(CapturePlan(portrait, behind, seed, planned, spec.frames))
    return pictures


def take_picture(picture: CapturePlan) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return frames of the portrait, then of its attacks, uint8 N×S×S×3, and their points, float32 N×5×2.

    Each attack has a matching bona fide video, captured with the same camera and the same settings.
    """
    portrait, behind = picture.portrait, decode(_as_batch(picture.behind.image))
    count = picture.frames
    depth = torch.from_numpy(_depth(portrait))[None].expand(count, -1, -1)
    rows = (count, -1, -1, -1)
    shown = AttackerPhotographs(
        _as_batch(portrait.image).expand(*rows), _points(portrait).expand(count, -1, -1), FRAMING
    )
    bona_fide, attacked = [], []
    for turn, (attack, camera) in enumerate(picture.attacks):
        video = derive(picture.seed, "video", turn)
        frames = [derive(video, "frame", number) for number in range(count)]
        alive = derive(video, "alive")
        face = (behind.expand(*rows), _points(picture.behind).expand(count, -1, -1))
        setting = PresentationSetting(face[0], *(face if attack.species in ("cut", "mask") else (None, None)))
        capture = draw_capture([camera] * count, [video] * count)
        bona_fide.append(
            photograph_living(
                shown, depth, capture, [alive] * count, [derive(frame_seed, "alive") for frame_seed in frames]
            )
        )
        attacked.append(photograph_attack(shown, [attack] * count, setting, capture, [video] * count, frames))
    images, points = zip(*bona_fide, *attacked, strict=True)
    return np.concatenate(images), np.concatenate(points).astype(np.float32)


def _as_batch(image: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255


def _points(portrait: Portrait) -> Tensor:
    """Return the detected points, or their usual positions in a crop."""
    usual = np.array(USUAL_POINTS, np.float32) * portrait.image.shape[0]
    return torch.from_numpy(usual if portrait.points is None else portrait.points)[None]


def _depth(portrait: Portrait) -> NDArray[np.uint8]:
    """Return the depth map fitted to the detected points, or to their usual positions."""
    return _usual_depth(portrait.image.shape[0]) if portrait.depth is None else portrait.depth


@cache
def _usual_depth(size: int) -> NDArray[np.uint8]:
    return canonical_depth(np.array(USUAL_POINTS) * size, size)


def _write_frames(
    out: Writer, picture: CapturePlan, filmed: tuple[NDArray[np.uint8], NDArray[np.float32]], split: str
) -> None:
    name, subject = picture.portrait.photograph.name, picture.portrait.photograph.subject
    takes = [
        (f"{name}/{turn + 1:02d}-bonafide", "bonafide", camera, "") for turn, (_, camera) in enumerate(picture.attacks)
    ]
    takes += [
        (f"{name}/{turn + 1:02d}-{attack.species}", attack.species, camera, medium_of(attack))
        for turn, (attack, camera) in enumerate(picture.attacks)
    ]
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
        depth=None
        if fitted is None
        else np.stack([fitted if kind == "bonafide" else flat_map() for _, kind, *_ in rows]),
        points=None if picture.portrait.points is None else points,
        further={"camera": [word(camera.name) for _, _, camera, *_ in rows], "medium": [row[3] for row in rows]},
    )


# The second generation of rendered sets.


def render_set(spec: Synthesis, destination: Path, *, workers: int = 1, progress: Progress | None = None) -> None:
    """Render the set of a specification, of either generation.

    The second generation (``generation=2``) re-captures portraits of rendered people like photographs: it has the
    people, light and media of a domain, and the capture of ``data synth --from``. Both classes pass through the same
    simulated cameras, so that camera artefacts do not reveal the class. ``media=`` and ``cameras=`` restrict a set to
    some of them, so that the others can evaluate a model. The first generation is unchanged.
    """
    (recapture_portraits if spec.generation == SECOND_GENERATION else synthesise)(
        spec, destination, workers=workers, progress=progress
    )


def recapture_portraits(
    spec: Synthesis, destination: Path, *, workers: int = 1, progress: Progress | None = None
) -> None:
    """Render portraits of a domain's people, and write re-captures of them and of attacks on them."""
    attacks, sittings = spec.retaken_attacks(), plan_portraits(spec)
    work = partial(portraits_of, domain=spec.domain, size=spec.size)
    with closing(map_in_order(work, sittings, workers)) as rendered:
        portraits = [portrait for person_portraits in rendered for portrait in person_portraits]
    subjects = [videos[0].subject for videos in sittings]
    with Writer(
        destination,
        name=spec.domain,
        size=spec.size,
        source=f"synthetic {spec.digest_text}",
        depth=True,
        points=True,
        further=("camera", "medium"),
    ) as out:
        pictures = plan_pictures(portraits, attacks, spec)
        write_pictures(out, pictures, heldout_subjects(spec, subjects), workers, progress)


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


def portraits_of(videos: Sequence[Video], domain: str, size: int) -> list[Portrait]:
    """Render the portraits of one subject, with exact points and depth, as soft as photographs of faces."""
    filmed = film_subject(videos, find_domain(domain), size)
    rendered = torch.from_numpy(filmed.images).permute(0, 3, 1, 2).float()
    soft = camera_soft(rendered / 255, [video.seed for video in videos]) * 255
    images = np.ascontiguousarray(soft.round().byte().permute(0, 2, 3, 1).numpy())
    rows = zip(videos, images, filmed.points, filmed.depth, strict=True)
    return [
        Portrait(PhotographFile(Path(video.name), video.name), video.name, image, points, depth)
        for video, image, points, depth in rows
    ]
