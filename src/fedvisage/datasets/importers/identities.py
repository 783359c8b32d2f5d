"""Imports photographs of people, one folder per person, into an identity set for face recognition.

With ``--crop face`` the largest face of each photograph is found and aligned by its five points (eyes, nose, corners
of the mouth). With ``--crop none`` the photographs are aligned already and are taken as they are, without a look for
faces: a detector does not find each face in a tight crop. A file ``groups.csv`` in the source, with the columns
``person,group``, puts people into groups for tables by group; without it all are in one.

Of each person's photographs a share is kept for testing, by a stream; of the people, a share is held out whole. Who
has one photograph can be trained on but not tested with: such people are counted. Who has fewer than ``least`` is left
out, and counted too.
"""

import csv
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.data.manifest import file_digest
from fedvisage.data.prepared import Writer
from fedvisage.datasets.importers.cropping import Crop, Image, make_cropper, make_detector, record_of
from fedvisage.datasets.importers.folder import Progress
from fedvisage.datasets.importers.pictures import open_picture
from fedvisage.datasets.importers.portraits import Photograph, list_photographs
from fedvisage.datasets.importers.report import BadFile, ImportReport, Tally, printable, shortcomings
from fedvisage.errors import UserError
from fedvisage.faces.align import align
from fedvisage.progress import counted
from fedvisage.streams import numpy_rng

GROUPS = "groups.csv"
EVERYBODY = "all"

Aligned = tuple[Image, NDArray[np.float32] | None]
"""A crop, and the five points in it if faces are sought."""


@dataclass(frozen=True)
class IdentityReport(ImportReport):
    """What was imported, how many people have too few photographs to be tested with, and how many were left out."""

    one_photograph: int = 0
    people_left_out: int = 0
    photographs_left_out: int = 0

    def warnings(self) -> list[str]:
        """Say what no training can use: all images are bona fide here."""
        return shortcomings(self.subjects, None, None)

    def lines(self) -> list[str]:
        """Return the report as lines to print."""
        lines = super().lines()
        if self.people_left_out:
            left_out = counted(self.people_left_out, "person", "people")
            said = f"{left_out} with {counted(self.photographs_left_out, 'photograph')} left out"
            lines.insert(1, f"{said}: fewer than was asked for")
        if self.one_photograph:
            single = counted(self.one_photograph, "person", "people")
            lines.insert(1, f"{single} with one photograph: trained on, not tested with")
        return lines


def import_identities(
    source: Path,
    destination: Path,
    *,
    name: str,
    size: int,
    crop: Crop = "face",
    test: float = 0.4,
    heldout: float = 0.25,
    least: int = 1,
    max_bad: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
    **_: object,
) -> IdentityReport:
    """Import a folder of people into an identity set and return what was imported and what was skipped."""
    aligner = make_aligner(crop, size)
    listed, skipped = list_photographs(source)
    photographs = [one for one in listed if one.name != GROUPS]
    _check_folders(photographs, source)
    groups = read_groups(source / GROUPS)
    tally = Tally(source, len(photographs) + len(skipped), max_bad, [one for one in skipped if one.path != GROUPS])
    tally.stop_if_too_many()
    everybody: dict[str, list[Photograph]] = defaultdict(list)
    for one in photographs:
        everybody[one.subject].append(one)
    albums = {person: album for person, album in everybody.items() if len(album) >= least}
    if not albums:
        raise UserError("least", f"nobody in {source} has {least} photographs; ask for fewer")
    away = _held_out(sorted(albums), heldout, seed)
    origin = f"people {printable(source.resolve().name)} crop={crop} test={test} heldout={heldout} seed={seed}"
    origin += f" least={least}" if least > 1 else ""
    single, done, seen = 0, 0, dict[str, Photograph]()
    people_out, out_of_use = len(everybody) - len(albums), len(photographs) - sum(map(len, albums.values()))
    record = record_of(crop, aligned=True)
    found = crop == "face"
    with Writer(destination, name=name, size=size, source=origin, points=found, identities=True, crop=record) as out:
        for person, album in sorted(albums.items()):
            pictures = [picture for one in album for picture in _read(one, aligner, seen, tally)]
            done += len(album)
            if len(pictures) < least:
                people_out, out_of_use = people_out + bool(pictures), out_of_use + len(pictures)
                continue
            single += len(pictures) == 1
            splits = _splits(len(pictures), test, person in away, numpy_rng(seed, "import", person))
            for (photograph, (image, points)), split in zip(pictures, splits, strict=True):
                out.add(
                    image[None], points=None if points is None else points[None], label=[1], species=["bonafide"],
                    subject=[person], video=[photograph.name], frame=[0], split=[split], item=[photograph.name],
                    group=[groups.get(person, EVERYBODY)],
                )  # fmt: skip
            if progress:
                progress(done, sum(map(len, albums.values())))
        report = IdentityReport(
            **vars(tally.attach(out)),
            one_photograph=single,
            people_left_out=people_out,
            photographs_left_out=out_of_use,
        )
        out.attach_report(report.json())
    return report


def make_aligner(crop: Crop, size: int, threads: int = 1) -> Callable[[Image], Aligned]:
    """Return the function that makes an aligned crop of a photograph, or says why it cannot.

    `threads` are for the detector.
    """
    if crop == "centre":
        raise UserError("crop", "recognition needs faces aligned: use face, or none if they are aligned already")
    if crop == "face":
        detect = make_detector(threads)
        return lambda image: _found_and_aligned(image, detect, size)
    cropper = make_cropper(crop, size)
    return lambda image: (cropper(image).image, None)


def _found_and_aligned(image: Image, detect: Callable[[Image], list], size: int) -> Aligned:  # type: ignore[type-arg]
    faces = detect(image)
    if not faces:
        raise BadFile("no face found")
    face = max(faces, key=lambda one: one.box[2] * one.box[3])
    crop, points = align(image, face.points, size)
    return crop, points.astype(np.float32)


def read_groups(path: Path) -> dict[str, str]:
    """Read who is in which group; an absent file says nothing."""
    if not path.exists():
        return {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return {row["person"]: row["group"] for row in csv.DictReader(file)}
    except (KeyError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(str(path), f"must be a table with the columns person,group ({error})") from None


def _check_folders(photographs: list[Photograph], source: Path) -> None:
    loose = [one.name for one in photographs if one.own_subject]
    if loose:
        raise UserError(str(source), f"{loose[0]} is in no folder; each person's photographs lie in one named for them")


def _held_out(people: list[str], share: float, seed: int) -> set[str]:
    if not 0 <= share < 1:
        raise UserError("heldout", f"must be a share from 0 to below 1, got {share}")
    order = numpy_rng(seed, "import", "heldout").permutation(len(people))
    return {people[index] for index in order[: min(round(share * len(people)), len(people) - 1)]}


def _splits(count: int, test: float, away: bool, rng: np.random.Generator) -> list[str]:
    """Draw which photographs of a person are kept for testing; one at least is trained on."""
    if away:
        return ["heldout"] * count
    tested = min(round(test * count), count - 1) if count else 0
    chosen = set(rng.permutation(count)[:tested].tolist())
    return ["test" if number in chosen else "train" for number in range(count)]


def _read(
    photograph: Photograph, aligner: Callable[[Image], Aligned], seen: dict[str, Photograph], tally: Tally
) -> list[tuple[Photograph, Aligned]]:
    """Return a photograph's crop, or nothing after noting why not."""
    try:
        earlier = seen.setdefault(file_digest(photograph.path), photograph)
        if earlier is not photograph:
            if earlier.subject != photograph.subject:
                both = f"{earlier.name!r} and {photograph.name!r}"
                raise UserError(str(tally.source), f"{both} are the same file under two people; remove one")
            raise BadFile(f"the same content as {earlier.name}")
        return [(photograph, aligner(open_picture(photograph.path)))]
    except BadFile as bad:
        tally.skip(photograph.name, str(bad))
    except OSError as error:
        tally.skip(photograph.name, f"cannot be read: {error.strerror or error}")
    return []
