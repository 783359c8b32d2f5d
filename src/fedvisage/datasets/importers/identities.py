"""Imports photographs of people, one folder per person, into an identity set for face recognition.

With ``--crop face`` the largest face of each photograph is found and aligned by its five points (eyes, nose, corners
of the mouth). With ``--aligned`` (or ``--crop none``) the photographs are aligned already and are taken as they are,
without a look for faces: a detector does not find each face in a tight crop. A file ``groups.csv`` in the source, with
the columns ``person,group``, puts people into groups for tables by group; without it all are in one.

Who has one photograph can be trained on but not tested with: such people are counted. Who has fewer than ``least`` is
left out, and counted too.
"""

import csv
from pathlib import Path

from fedvisage.data.journal import EVERY
from fedvisage.datasets.importers.albums import Division, IdentityReport, write_people
from fedvisage.datasets.importers.cropping import LARGEST, Crop, record_of
from fedvisage.datasets.importers.folder import Progress
from fedvisage.datasets.importers.portraits import Photograph, list_photographs
from fedvisage.datasets.importers.report import printable
from fedvisage.datasets.importers.shots import alignment_of
from fedvisage.datasets.people.album import EVERYBODY, Album, Shot, WholeFile, grouped
from fedvisage.errors import UserError

GROUPS = "groups.csv"


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
    workers: int = 1,
    every: float = EVERY,
    progress: Progress | None = None,
    **_: object,
) -> IdentityReport:
    """Import a folder of people into an identity set and return what was imported and what was skipped."""
    alignment, division = alignment_of(crop, size), Division(test, heldout, least, seed)
    return write_people(
        _album(source),
        source,
        destination,
        name=name,
        size=size,
        origin=f"people {printable(source.resolve().name)} crop={crop} {division.text}",
        alignment=alignment,
        record=record_of(crop, aligned=True, search=LARGEST),
        points=crop == "face",
        division=division,
        max_bad=max_bad,
        distinct=True,
        workers=workers,
        every=every,
        progress=progress,
    )


def _album(source: Path) -> Album:
    listed, skipped = list_photographs(source)
    photographs = [one for one in listed if one.name != GROUPS]
    _check_folders(photographs, source)
    groups = read_groups(source / GROUPS)
    counts, of = grouped(
        Shot(one.name, one.subject, WholeFile(one.path), groups.get(one.subject, EVERYBODY)) for one in photographs
    )
    return Album(counts, of, tuple(one for one in skipped if one.path != GROUPS))


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
