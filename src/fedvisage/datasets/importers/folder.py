"""Imports any folder of images and videos that lie in ``{real,live,bonafide}/`` and ``{attack,spoof,fake}/<species>/``.

Polarity: the class folder decides; 1 is bona fide, 0 is attack. Bad files are skipped, counted and listed; when there
are too many of them the import stops, and nothing is left behind.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedvisage.data.manifest import file_digest
from fedvisage.data.prepared import Writer
from fedvisage.data.splits import split_subjects
from fedvisage.datasets.importers.cropping import Crop, Cropped, Cropper, Image, make_cropper, record_of
from fedvisage.datasets.importers.depth import DepthMaker, Map, directory_of_maps, make_depth
from fedvisage.datasets.importers.listing import Found, list_folder
from fedvisage.datasets.importers.pictures import open_picture
from fedvisage.datasets.importers.report import BadFile, ImportReport, Tally, printable
from fedvisage.datasets.importers.videos import sample_video
from fedvisage.errors import UserError
from fedvisage.streams import numpy_rng

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
    depth: str = "auto",
    max_bad: float = 0.05,
    progress: Progress | None = None,
    **_: object,
) -> ImportReport:
    """Import a folder into a prepared set and return what was imported and what was skipped.

    Of each video, `frames` equidistant frames are taken. About a share `heldout` of the subjects is held out. `depth`
    says where depth maps come from (see ``importers.depth``). If more than a share `max_bad` of the files is bad, the
    import stops with a UserError.
    """
    _check_options(frames, heldout)
    reader = _Reader(frames, make_cropper(crop, size), make_depth(depth, crop, size))
    found, skipped = list_folder(source, leave_out=directory_of_maps(depth))
    splits = split_subjects(
        [entry.subject for entry in found],
        [entry.label for entry in found],
        heldout,
        numpy_rng(seed, "import", "heldout"),
    )
    tally = Tally(source, len(found) + len(skipped), max_bad, skipped)
    tally.stop_if_too_many()
    seen = _Seen(tally)
    maps = printable(Path(depth).resolve().name)
    origin = f"folder {printable(source.resolve().name)} crop={crop} depth={maps} frames={frames}"
    origin += f" heldout={heldout} seed={seed}"
    has_depth, record = reader.depth is not None, record_of(crop)
    with Writer(
        destination, name=name, size=size, source=origin, depth=has_depth, points=crop == "face", crop=record
    ) as out:
        for done, entry in enumerate(found):
            for picture in _pictures_or_nothing(entry, reader, seen):
                _add(out, entry, picture, splits[entry.subject])
                seen.count(entry, picture)
            if progress:
                progress(done + 1, len(found))
        return tally.attach(
            out, upscaled=seen.upscaled, own_subjects=len(seen.own_subjects), lost_frames=seen.lost_frames
        )


def _check_options(frames: int, heldout: float) -> None:
    if not 0 <= heldout <= 0.99:
        raise UserError("heldout", f"must be a share from 0 to 0.99, got {heldout}")
    if frames < 1:
        raise UserError("frames", f"must be at least 1, got {frames}")


@dataclass(frozen=True)
class _Picture:
    item: str
    frame: int
    cropped: Cropped
    depth: Map | None


@dataclass(frozen=True)
class _Reader:
    """How files become pictures: how many frames of a video, which crop, which depth."""

    frames: int
    cropper: Cropper
    depth: DepthMaker | None

    def picture(self, entry: Found, item: str, frame: int, image: Image) -> _Picture:
        cropped = self.cropper(image)
        return _Picture(item, frame, cropped, self.depth and self.depth(entry.label, item, cropped))


@dataclass
class _Seen:
    """What the files have shown so far."""

    tally: Tally
    contents: dict[str, Found] = field(default_factory=dict)
    upscaled: int = 0
    lost_frames: int = 0
    own_subjects: set[str] = field(default_factory=set)

    def count(self, entry: Found, picture: _Picture) -> None:
        self.upscaled += picture.cropped.upscaled
        if entry.own_subject:
            self.own_subjects.add(entry.name)


def _pictures_or_nothing(entry: Found, reader: _Reader, seen: _Seen) -> list[_Picture]:
    """Return the pictures of a file, or none after noting why not."""
    try:
        _check_new(entry, seen)
        return _film(entry, reader, seen) if entry.is_video else [_photograph(entry, reader)]
    except BadFile as bad:
        seen.tally.skip(entry.name, str(bad))
    except OSError as error:
        seen.tally.skip(entry.name, f"cannot be read: {error.strerror or error}")
    return []


def _check_new(entry: Found, seen: _Seen) -> None:
    """Refuse a file whose content was imported already; under the other class it is a contradiction."""
    earlier = seen.contents.setdefault(file_digest(entry.path), entry)
    if earlier is entry:
        return
    if earlier.label != entry.label:
        message = f"{earlier.name!r} and {entry.name!r} are the same file in contradicting classes; remove one"
        raise UserError(str(seen.tally.source), message)
    raise BadFile(f"the same content as {earlier.name}")


def _photograph(entry: Found, reader: _Reader) -> _Picture:
    return reader.picture(entry, entry.name, entry.frame, open_picture(entry.path))


def _film(entry: Found, reader: _Reader, seen: _Seen) -> list[_Picture]:
    """Return the sampled frames of a video; some may lack a face or a depth map, but not all."""
    pictures, lost = [], []
    for number, image in sample_video(entry.path, reader.frames):
        try:
            pictures.append(reader.picture(entry, f"{entry.name}/{number:06d}", number, image))
        except BadFile as bad:
            lost.append(str(bad))
    if not pictures:
        raise BadFile(f"none of its frames can be used: {lost[0]}")
    seen.lost_frames += len(lost)
    return pictures


def _add(out: Writer, entry: Found, picture: _Picture, split: str) -> None:
    points, depth = picture.cropped.points, picture.depth
    out.add(
        picture.cropped.image[np.newaxis],
        label=[entry.label],
        species=[entry.species],
        subject=[entry.subject],
        video=[entry.video],
        frame=[picture.frame],
        split=[split],
        item=[picture.item],
        depth=None if depth is None else depth[np.newaxis],
        points=None if points is None else points[np.newaxis],
    )
