"""Small copies of datasets, with rendered faces in the original layouts, for tests and as examples of the layouts."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from fedvisage.base.errors import NoRoom, UserError
from fedvisage.base.files import AGAIN, disk_full_is_failure, replaced_when_complete
from fedvisage.base.streams import derive, numpy_rng
from fedvisage.datasets.dataset import Clip, Dataset, Text
from fedvisage.datasets.frame_sources import open_arrays
from fedvisage.datasets.frames import turn_around
from fedvisage.datasets.pad.lists import SCALED_SIDE, Box, BoxFiles, write_row
from fedvisage.datasets.pad.scanner import Scanner
from fedvisage.datasets.people.layout import Layout
from fedvisage.datasets.tree import ARRAY_ENDINGS, VIDEO_ENDINGS, ending_of, without_ending
from fedvisage.faces.align import SIDE, align

FRAMES = 3
WIDER, HIGHER = 1.5, 1.25
"""Width and height of a frame, relative to a rendered face with its surroundings."""

_SHOWN_AS = {"photo": "replay", "screen": "replay", "warp": "print", "glasses": "mask", "makeup": "mask"}
APART = (
    "oulu-npu",
    "casia-fasd",
    "replay-attack",
    "msu-mfsd",
    "siw",
    "3dmad",
    "hkbu-mars-v2",
    "celeba-spoof",
    "wmca",
    "cefa",
    "casia-surf",
)
"""Datasets that studies combine: their copies show different people, because no picture may occur in two of them."""

MOST = 12
"""Maximum number of additional people in a copy."""

DEPTH_NAME = re.compile(r"_depth\.jpg$")
"""Files that are depth maps, which are grey."""

_DRAW = "3"
"""Chosen so that the detector finds a face in every clip."""

SPREAD = 2.2
"""A face's side over the extent of its points."""

Pixels = npt.NDArray[np.uint8]


def write_copy(dataset: Dataset, root: Path, subjects: int = 0, people: int = 0) -> int:
    """Write a small copy of a dataset and return the number of its files.

    `subjects` adds people to the example; `people` replaces the example by one in which people recur.
    """
    scanner, example = dataset if isinstance(dataset, Scanner) else None, [*dataset.example]
    if not 0 <= subjects <= MOST:
        raise UserError("--subjects", f"must be in [0, {MOST}], got {subjects}")
    if subjects and (scanner is None or scanner.further is None):
        raise UserError("--subjects", f"no more people of {dataset.title} can be generated; leave it out")
    if people and (scanner is None or scanner.crowd is None):
        raise UserError("--people", f"small copies of {dataset.title} have a fixed number of people; leave it out")
    if scanner and scanner.further:
        example += [clip for number in range(subjects) for clip in scanner.further(number)]
    if people and scanner and scanner.crowd:
        example = [*scanner.crowd(people)]
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        raise UserError(str(root), "already exists; choose another directory or remove it first")
    boxes = scanner.boxes if scanner else None
    with disk_full_is_failure(root), replaced_when_complete(root) as directory:
        if isinstance(dataset, Layout) and dataset.pack is not None:
            dataset.pack(directory)
        for file in example:
            path = directory / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, Text):
                path.write_bytes(file.content.encode())
            else:
                _write_clip(boxes, directory, file, dataset.kind)
    return sum(path.is_file() for path in root.rglob("*"))


def _write_clip(files: BoxFiles | None, root: Path, clip: Clip, kind: str) -> None:
    frames, boxes = zip(*_frames(clip, kind), strict=True)
    if ending_of(clip.path) in VIDEO_ENDINGS:
        write_video(root / clip.path, frames)
    elif ending_of(clip.path) in ARRAY_ENDINGS:
        write_arrays(root / clip.path, clip.layout, frames)
    else:
        picture = Image.fromarray(frames[0])
        (picture.convert("L") if DEPTH_NAME.search(clip.path) else picture).save(root / clip.path)
    if files and not clip.turned:
        place = files.places[0].format(name=without_ending(clip.path), file=clip.path)
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        if files.form == "scaled":
            height, width = frames[0].shape[:2]
            rows = [write_row(0, boxes[0] * SCALED_SIDE / np.array([width, height, width, height]), files.form)]
        else:
            # The last frame has an empty box, as in real files.
            listed = [*boxes[:-1], np.zeros(4)]
            rows = [write_row(number, box, files.form) for number, box in enumerate(listed)]
        (root / place).write_text("".join(f"{row}\n" for row in rows))


def write_video(path: Path, frames: tuple[Pixels, ...]) -> None:
    """Write RGB frames as a video, with the codec for the file's ending."""
    codec = cv2.VideoWriter.fourcc(*("MJPG" if path.suffix.lower() == ".avi" else "mp4v"))
    height, width = frames[0].shape[:2]
    writer = cv2.VideoWriter(str(path), codec, 10, (width, height))
    if not writer.isOpened():
        raise UserError(str(path), "cannot be written as a video by this installation of OpenCV")
    for frame in frames:
        writer.write(np.ascontiguousarray(frame[..., ::-1]))
    writer.release()
    written = cv2.VideoCapture(str(path))
    if int(written.get(cv2.CAP_PROP_FRAME_COUNT)) != len(frames):  # OpenCV ignores a full disk
        raise NoRoom(str(path), "the video could not be written completely; free some space", AGAIN)
    written.release()


def write_arrays(path: Path, layout: str, frames: tuple[Pixels, ...]) -> None:
    """Write RGB frames into an HDF5 file, channels first: as one array, or as one array per frame."""
    stacked = np.stack(frames).transpose(0, 3, 1, 2)
    with open_arrays(path, "w") as file:
        for number, frame in enumerate(stacked if "{}" in layout else stacked[np.newaxis]):
            file[layout.format(number)] = frame


def _frames(clip: Clip, kind: str) -> Iterator[tuple[Pixels, Box]]:
    """Yield a clip's frames with the box of the face; light and position differ between clips."""
    side = clip.side
    width, height = int(WIDER * side), int(HIGHER * side)
    images, points = render_person(clip.person, clip.species, kind, clip.take, side)
    if clip.cropped:
        yield from ((image, np.array([0.0, 0.0, side, side])) for image in images)
        return
    rng = numpy_rng(0, "pretend", clip.path)
    left, top = int(rng.integers(8, width - side - 8)), int(rng.integers(8, height - side - 8))
    light, wall = rng.uniform(0.85, 1.1), int(rng.integers(90, 160))
    for image, face_points in zip(images, points, strict=True):
        frame = np.full((height, width, 3), wall, np.uint8)
        frame[top : top + side, left : left + side] = np.clip(image * light, 0, 255)
        middle, extent = face_points.mean(axis=0) + np.array([left, top]), SPREAD * np.ptp(face_points, axis=0).max()
        yield (turn_around(frame) if clip.turned else frame), np.array([*(middle - extent / 2), extent, extent])


@cache
def render_person(
    person: int, species: str, kind: str = "", take: str = "", side: int = 128
) -> tuple[Pixels, npt.NDArray[np.float32]]:
    """Render a person's face, or an attack with it: frames, and five points in each."""
    # Imported here because reading datasets needs no renderer.
    from fedvisage.render.domains import find_domain
    from fedvisage.render.filming import Video, render_videos

    domain = find_domain("A")
    medium = "mask" if species.startswith("mask") else _SHOWN_AS.get(species, species)
    attack = next((candidate for candidate in domain.attacks if candidate.species == medium), None)
    seed = derive(0, "pretend", *([_DRAW, kind] if kind in APART else []), person)
    clip_seed = derive(seed, species, *([take] if take else []))
    filmed = render_videos([Video(species, "", seed, clip_seed, FRAMES, domain.cameras[0], attack)], domain, side)
    return filmed.images, filmed.points


# Encoded aligned crops of rendered people, for small copies of datasets that store all pictures in one file.


@cache
def encode_portrait(person: int, turn: int) -> bytes:
    """Return a JPEG with the aligned face of a rendered person; `turn` is 0, 1 or 2."""
    images, points = render_person(person, "bonafide")
    crop, _ = align(images[turn], points[turn].astype(np.float64), SIDE)
    file = io.BytesIO()
    Image.fromarray(crop).save(file, "JPEG", quality=92)
    return file.getvalue()
