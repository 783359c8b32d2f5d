"""Finds the images and videos of a dataset in folders, and what the folders say about them.

The layout is ``<root>/{real,live,bonafide}/**`` and ``<root>/{attack,spoof,fake}/<species>/**``. The first folder below
that, where there is one, names the subject, and deeper folders the video. The folder decides the polarity: 1 for the
first three names, 0 for the others. What cannot be used is listed with the reason; what contradicts itself is an error.
"""

import csv
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from fedvisage.data.rows import BONA_FIDE, is_safe_path
from fedvisage.datasets.importers import pictures
from fedvisage.datasets.importers.report import Skipped, printable
from fedvisage.errors import UserError

REAL_FOLDERS = ("real", "live", "bonafide")
ATTACK_FOLDERS = ("attack", "spoof", "fake")
VIDEO_ENDINGS = (".avi", ".mp4", ".mov", ".m4v", ".mkv", ".webm")
LABELS = "labels.csv"

_SPECIES = re.compile(r"[a-z0-9_-]{1,64}")
_SPECIES_OF_ATTACKS = ("print", "replay", "cut", "mask")
_NAME_LIMIT = 200


@dataclass(frozen=True)
class Found:
    """One file of a dataset with what its folders say about it."""

    path: Path
    name: str  # relative to the root, with '/'
    label: int
    species: str
    subject: str
    video: str
    frame: int  # 0, or the place among the images of one folder
    own_subject: bool  # no folder names a subject: the file stands for one of its own

    @property
    def is_video(self) -> bool:
        """Tell videos from images by the ending of the name."""
        return self.path.suffix.lower() in VIDEO_ENDINGS


def list_folder(root: Path, leave_out: Path | None = None) -> tuple[list[Found], list[Skipped]]:
    """List the usable files of a dataset, in order of their names, and those that are not, with the reason.

    What lies in the directory `leave_out` belongs to something else and is not looked at.
    """
    if not root.is_dir():
        raise UserError(str(root), "no such directory; give the folder that holds real/ and attack/")
    if not any(entry.is_dir() and _polarity(entry.name) is not None for entry in root.iterdir()):
        raise UserError(str(root), f"has none of the folders {', '.join(REAL_FOLDERS + ATTACK_FOLDERS)}")
    outside = _folder_below(root, leave_out)
    found: list[Found] = []
    frames: Counter[str] = Counter()
    skipped: list[Skipped] = []
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files_below(root)):
        if name == LABELS or (outside and name.startswith(outside)):
            continue
        entry = _located(path, name, root)
        if isinstance(entry, Found):
            found.append(replace(entry, frame=frames[entry.video]))
            frames[entry.video] += 1
        else:
            skipped.append(Skipped(printable(name), entry))
    _check_species(root, found)
    _check_labels(root / LABELS, found)
    return found, skipped


def _check_species(root: Path, found: list[Found]) -> None:
    """Refuse subjects in the place of species: folders directly below the attacks that bear a subject's name."""
    subjects = {entry.subject for entry in found if entry.label == 1 and not entry.own_subject}
    for entry in found:
        if entry.label == 0 and entry.species in subjects:
            above = PurePosixPath(entry.name).parts[0]
            raise UserError(
                str(root / above / entry.species),
                f"{entry.species!r} is a subject, where the kind of attack is expected; move it to "
                f"{above}/<species>/{entry.species}/, such as {above}/print/{entry.species}/",
            )


def _folder_below(root: Path, folder: Path | None) -> str | None:
    """Return how the names of a folder's files begin, if it lies below the root."""
    if folder is None or not folder.resolve().is_relative_to(root.resolve()):
        return None
    if folder.resolve() == root.resolve():
        raise UserError(str(folder), "is the dataset itself; maps need a directory of their own")
    return f"{folder.resolve().relative_to(root.resolve()).as_posix()}/"


def files_below(root: Path) -> Iterator[Path]:
    """Walk over all files and links, leaving out hidden ones and never following linked directories."""
    for folder, folders, files in os.walk(root, onerror=_refuse, followlinks=False):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        folders[:] = [name for name in folders if name not in links and not name.startswith(".")]
        yield from (Path(folder) / name for name in files + links if not name.startswith("."))


def _refuse(error: OSError) -> None:
    raise UserError(str(error.filename), f"cannot be read: {error.strerror}")


def _located(path: Path, name: str, root: Path) -> Found | str:
    """Return what the folders say about a file, or why it cannot be used."""
    first, *below = PurePosixPath(name).parts
    label = _polarity(first)
    if label is None:
        wanted = ", ".join(REAL_FOLDERS + ATTACK_FOLDERS)
        return f"unknown class folder {printable(first)!r} (one of {wanted})" if below else "not in a class folder"
    if fault := unusable(path, name, root, pictures.ENDINGS + VIDEO_ENDINGS):
        return fault
    species = BONA_FIDE
    if label == 0:
        if len(below) < 2:
            return f"an attack without a species folder; put it into {first}/<species>/"
        species, *below = below
        if not _SPECIES.fullmatch(species) and _polarity(species) is None:
            return f"species folder {species!r}: use lower-case letters, digits, '_' and '-'"
    _check_polarity(name, label, species if label == 0 else below[0], root)
    subject = below[0] if len(below) > 1 else PurePosixPath(below[0]).stem
    single = len(below) < 3 or path.suffix.lower() in VIDEO_ENDINGS
    video = PurePosixPath(name).with_suffix("") if single else PurePosixPath(name).parent
    return Found(path, name, label, species, subject, str(video), 0, own_subject=len(below) == 1)


def _polarity(folder: str) -> int | None:
    """Return the label that a class folder stands for."""
    if folder.casefold() in REAL_FOLDERS:
        return 1
    return 0 if folder.casefold() in ATTACK_FOLDERS else None


def unusable(path: Path, name: str, root: Path, endings: tuple[str, ...]) -> str | None:
    """Return why a directory entry cannot be read as a file of the dataset, if so; its content is not looked at."""
    if not name.isprintable() or len(name) > _NAME_LIMIT or not is_safe_path(name):
        return f"its name is longer than {_NAME_LIMIT} characters or has characters that cannot be kept"
    if path.is_symlink():
        if path.is_dir():
            return "a link to a directory; links to directories are not followed"
        if not path.resolve().is_relative_to(root.resolve()):
            return "a link that leads out of the folder"
    try:
        status = path.stat()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return "not a plain file"
    if path.suffix.lower() not in endings:
        return f"files that end in {printable(path.suffix)!r} are not taken"
    return "an empty file" if status.st_size == 0 else None


def _check_polarity(name: str, label: int, inner: str, root: Path) -> None:
    """Raise a UserError if the folder below the class says the opposite of the class."""
    opposite = REAL_FOLDERS if label == 0 else ATTACK_FOLDERS + _SPECIES_OF_ATTACKS
    if inner.casefold() in opposite:
        outer = PurePosixPath(name).parts[0]
        message = f"{name!r} is in {outer!r} and in {inner!r}, which contradict each other; move or rename the folder"
        raise UserError(str(root), message)


def _check_labels(path: Path, found: list[Found]) -> None:
    """Compare the folders with `labels.csv` (path,label; 1 = bona fide, 0 = attack), where there is one."""
    if not path.is_file():
        return
    labels = {entry.name: entry.label for entry in found}
    wrong = [
        (name, label) for name, label in _read_labels(path) if PurePosixPath(name).as_posix() in labels
        and labels[PurePosixPath(name).as_posix()] != label
    ]  # fmt: skip
    if wrong:
        name, label = wrong[0]
        raise UserError(
            str(path),
            f"{len(wrong)} labels contradict the folders: {name!r} is labelled {label} but lies in "
            f"{PurePosixPath(name).parts[0]!r}; 1 is bona fide and 0 is attack here; turn the labels or move the files",
        )


def _read_labels(path: Path) -> list[tuple[str, int]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            if not {"path", "label"} <= set(reader.fieldnames or ()):
                raise UserError(str(path), "its first line must name the columns path,label")
            rows = [(row["path"] or "", row["label"]) for row in reader]
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(str(path), f"not a readable table: {error}") from None
    for name, label in rows:
        if label not in ("0", "1"):
            raise UserError(str(path), f"label of {name!r} must be 1 (bona fide) or 0 (attack), got {label!r}")
    return [(name, int(label)) for name, label in rows]
