"""Imports any folder of images and videos that lie in ``{real,live,bonafide}/`` and ``{attack,spoof,fake}/<species>/``.

Polarity: the class folder decides; 1 is bona fide, 0 is attack. Bad files are skipped, counted and listed; when there
are too many of them the import stops, and nothing is left behind.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedvisage.data.importers.cropping import Crop, Cropped, Cropper, make_cropper
from fedvisage.data.importers.listing import Found, list_folder
from fedvisage.data.importers.pictures import read_picture
from fedvisage.data.importers.report import BadFile, ImportReport, Skipped, printable, reasons
from fedvisage.data.importers.videos import sample_video
from fedvisage.data.prepared import Writer
from fedvisage.data.splits import split_subjects
from fedvisage.errors import UserError
from fedvisage.streams import numpy_rng

IMAGE_BYTES_LIMIT = 256 << 20
_BLOCK = 1 << 20

Progress = Callable[[int, int], None]


def import_folder(
    source: Path,
    destination: Path,
    *,
    name: str,
    size: int,
    frames: int = 4,
    heldout: float = 0.25,
    seed: int = 0,
    crop: Crop = "centre",
    max_bad: float = 0.05,
    progress: Progress | None = None,
) -> ImportReport:
    """Import a folder into a prepared set and return what was imported and what was skipped.

    Of each video, `frames` equidistant frames are taken. About a share `heldout` of the subjects is held out. If more
    than a share `max_bad` of the files is bad, the import stops with a UserError.
    """
    _check_options(frames, heldout, max_bad)
    cropper = make_cropper(crop, size)
    found, skipped = list_folder(source)
    splits = split_subjects(
        [entry.subject for entry in found],
        [entry.label for entry in found],
        heldout,
        numpy_rng(seed, "import", "heldout"),
    )
    tally = _Tally(source, len(found) + len(skipped), max_bad, skipped)
    tally.stop_if_too_many()
    origin = f"folder {printable(source.resolve().name)} crop={crop} frames={frames} heldout={heldout} seed={seed}"
    with Writer(destination, name=name, size=size, source=origin, points=crop == "face") as out:
        for done, entry in enumerate(found):
            for picture in _pictures_or_nothing(entry, frames, cropper, tally):
                _add(out, entry, picture, splits[entry.subject])
                tally.count(entry, picture, splits[entry.subject])
            if progress:
                progress(done + 1, len(found))
        if out.count == 0:
            raise UserError(str(source), f"holds no image that can be used: {reasons(tally.skipped)}")
        report = tally.report()
        out.attach_report(report.json())
    return report


def _check_options(frames: int, heldout: float, max_bad: float) -> None:
    for name, value, low, high in (("heldout", heldout, 0.0, 0.99), ("max_bad", max_bad, 0.0, 1.0)):
        if not low <= value <= high:
            raise UserError(name, f"must be a share from {low:g} to {high:g}, got {value}")
    if frames < 1:
        raise UserError("frames", f"must be at least 1, got {frames}")


@dataclass(frozen=True)
class _Picture:
    item: str
    frame: int
    cropped: Cropped


@dataclass
class _Tally:
    """What has been imported and skipped so far."""

    source: Path
    files: int
    max_bad: float
    skipped: list[Skipped]
    seen: dict[str, Found] = field(default_factory=dict)
    species: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)
    subjects: set[str] = field(default_factory=set)
    upscaled: int = 0
    lost_frames: int = 0
    own_subjects: set[str] = field(default_factory=set)

    def count(self, entry: Found, picture: _Picture, split: str) -> None:
        self.species[entry.species] += 1
        self.splits[split] += 1
        self.subjects.add(entry.subject)
        self.upscaled += picture.cropped.upscaled
        if entry.own_subject:
            self.own_subjects.add(entry.name)

    def skip(self, entry: Found, reason: str) -> None:
        self.skipped.append(Skipped(entry.name, reason))
        self.stop_if_too_many()

    def stop_if_too_many(self) -> None:
        if len(self.skipped) > self.max_bad * self.files:
            raise UserError(
                str(self.source),
                f"at least {len(self.skipped)} of {self.files} files cannot be used, more than max_bad={self.max_bad:g}"
                f" allows; nothing was written. {reasons(self.skipped)}",
            )

    def report(self) -> ImportReport:
        return ImportReport(
            files=self.files,
            images=sum(self.species.values()),
            subjects=len(self.subjects),
            bona_fide=self.species["bonafide"],
            species=dict(sorted(self.species.items())),
            splits=dict(sorted(self.splits.items())),
            upscaled=self.upscaled,
            own_subjects=len(self.own_subjects),
            lost_frames=self.lost_frames,
            skipped=tuple(sorted(self.skipped, key=lambda entry: entry.path)),
        )


def _pictures_or_nothing(entry: Found, frames: int, cropper: Cropper, tally: _Tally) -> list[_Picture]:
    """Return the pictures of a file, or none after noting why not."""
    try:
        _check_new(entry, tally)
        return _film(entry, frames, cropper, tally) if entry.is_video else [_photograph(entry, cropper)]
    except BadFile as bad:
        tally.skip(entry, str(bad))
    except OSError as error:
        tally.skip(entry, f"cannot be read: {error.strerror or error}")
    return []


def _check_new(entry: Found, tally: _Tally) -> None:
    """Refuse a file whose content was imported already; under the other class it is a contradiction."""
    digest = hashlib.sha256()
    with entry.path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    earlier = tally.seen.setdefault(digest.hexdigest(), entry)
    if earlier is entry:
        return
    if earlier.label != entry.label:
        message = f"{earlier.name!r} and {entry.name!r} are the same file in contradicting classes; remove one"
        raise UserError(str(tally.source), message)
    raise BadFile(f"the same content as {earlier.name}")


def _photograph(entry: Found, cropper: Cropper) -> _Picture:
    if entry.path.stat().st_size > IMAGE_BYTES_LIMIT:
        raise BadFile(f"larger than {IMAGE_BYTES_LIMIT >> 20} MiB")
    return _Picture(entry.name, entry.frame, cropper(read_picture(entry.path.read_bytes())))


def _film(entry: Found, frames: int, cropper: Cropper, tally: _Tally) -> list[_Picture]:
    """Return the sampled frames of a video; some may fail to show a face, but not all."""
    pictures, lost = [], 0
    for number, image in sample_video(entry.path, frames):
        try:
            pictures.append(_Picture(f"{entry.name}/{number:06d}", number, cropper(image)))
        except BadFile:
            lost += 1
    if not pictures:
        raise BadFile("none of its frames shows what the crop asks for")
    tally.lost_frames += lost
    return pictures


def _add(out: Writer, entry: Found, picture: _Picture, split: str) -> None:
    points = picture.cropped.points
    out.add(
        picture.cropped.image[np.newaxis],
        label=[entry.label],
        species=[entry.species],
        subject=[entry.subject],
        video=[entry.video],
        frame=[picture.frame],
        split=[split],
        item=[picture.item],
        points=None if points is None else points[np.newaxis],
    )
