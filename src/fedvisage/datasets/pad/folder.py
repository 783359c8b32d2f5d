"""Any folder of images and videos in ``{real,live,bonafide}/`` and ``{attack,spoof,fake}/<species>/``.

The first folder below, if there is one, names the subject, and deeper folders the video. The folder decides the class.
Unusable files are listed with the reason; contradictions are errors. Subjects keep the names of their folders, and
images in one folder below a subject are frames of one video.
"""

import csv
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePosixPath

from fedvisage.base.errors import UserError, printable
from fedvisage.data.rows import BONA_FIDE
from fedvisage.datasets.dataset import Clip, Item, Kind, Listing, Text
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.scanner import Scanner
from fedvisage.datasets.report import SkippedFile
from fedvisage.datasets.tree import VIDEO_ENDINGS, Tree, fault_of_file
from fedvisage.faces import pictures

REAL_FOLDERS = ("real", "live", "bonafide")
ATTACK_FOLDERS = ("attack", "spoof", "fake")
LABELS = "labels.csv"

_SPECIES = re.compile(r"[a-z0-9_-]{1,64}")
_SPECIES_OF_ATTACKS = ("print", "replay", "cut", "mask")


def scan_folder(_: Scanner, tree: Tree, __: ImportOptions) -> Listing:
    """List the usable files of a dataset in order of their names, and the unusable ones with the reason."""
    if not any(entry.is_dir() and _polarity(entry.name) is not None for entry in tree.root.iterdir()):
        folders = ", ".join(REAL_FOLDERS + ATTACK_FOLDERS)
        raise tree.mismatch(f"contains none of the folders {folders}")
    items: list[Item] = []
    frames: Counter[str] = Counter()
    skipped: list[SkippedFile] = []
    for name in tree.files:
        if name == LABELS:
            continue
        item = _item_from(tree.path(name), name, tree.root)
        if isinstance(item, Item):
            items.append(replace(item, frame=frames[item.video]))
            frames[item.video] += 1
        else:
            skipped.append(SkippedFile(printable(name), item))
    subjects = {listed.subject for listed in items if listed.label == 1 and not listed.own_subject}
    for listed in items:
        if listed.label == 0 and listed.species in subjects:
            above = PurePosixPath(listed.name).parts[0]
            raise UserError(
                str(tree.root / above / listed.species),
                f"{listed.species!r} is a subject, but the attack species is expected here; move it to "
                f"{above}/<species>/{listed.species}/, such as {above}/print/{listed.species}/",
            )
    _check_labels(tree.path(LABELS), items)
    return Listing(items, tuple(skipped))


def _item_from(path: Path, name: str, root: Path) -> Item | str:
    """Return the item of a file from its folders, or the reason why it is unusable."""
    first, *below = PurePosixPath(name).parts
    label = _polarity(first)
    if label is None:
        folders = ", ".join(REAL_FOLDERS + ATTACK_FOLDERS)
        return f"unknown class folder {printable(first)!r} (one of {folders})" if below else "not in a class folder"
    if fault := fault_of_file(path, name, root, pictures.ENDINGS + VIDEO_ENDINGS):
        return fault
    species = BONA_FIDE
    if label == 0:
        if len(below) < 2:
            return f"an attack without a species folder; put it into {first}/<species>/"
        species, *below = below
        if not _SPECIES.fullmatch(species) and _polarity(species) is None:
            return f"species folder {species!r}: use lower-case letters, digits, '_' and '-'"
    # Raise a UserError if the folder below the class names the opposite class.
    inner = species if label == 0 else below[0]
    opposite = REAL_FOLDERS if label == 0 else ATTACK_FOLDERS + _SPECIES_OF_ATTACKS
    if inner.casefold() in opposite:
        message = f"{name!r} is in both {first!r} and {inner!r}, which contradict each other; move or rename the folder"
        raise UserError(str(root), message)
    subject = below[0] if len(below) > 1 else PurePosixPath(below[0]).stem
    single = len(below) < 3 or path.suffix.lower() in VIDEO_ENDINGS
    video = PurePosixPath(name).with_suffix("") if single else PurePosixPath(name).parent
    kind: Kind = "video" if path.suffix.lower() in VIDEO_ENDINGS else "image"
    return Item(path, name, kind, species, subject, str(video), own_subject=len(below) == 1)


def _polarity(folder: str) -> int | None:
    """Return the label of a class folder."""
    if folder.casefold() in REAL_FOLDERS:
        return 1
    return 0 if folder.casefold() in ATTACK_FOLDERS else None


def _check_labels(path: Path, items: list[Item]) -> None:
    """Compare the folders with `labels.csv` (path,label; 1 = bona fide, 0 = attack) if it exists."""
    if not path.is_file():
        return
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            if not {"path", "label"} <= set(reader.fieldnames or ()):
                raise UserError(str(path), "its first line must be path,label")
            rows = [(row["path"] or "", row["label"]) for row in reader]
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(str(path), f"not a readable table: {error}") from None
    for name, label in rows:
        if label not in ("0", "1"):
            raise UserError(str(path), f"label of {name!r} must be 1 (bona fide) or 0 (attack), got {label!r}")
    labels = {entry.name: str(entry.label) for entry in items}
    if wrong := [row for row in rows if labels.get(PurePosixPath(row[0]).as_posix(), row[1]) != row[1]]:
        name, label = wrong[0]
        raise UserError(
            str(path),
            f"{len(wrong)} labels contradict the folders: {name!r} is labelled {label} but lies in "
            f"{PurePosixPath(name).parts[0]!r}; 1 is bona fide and 0 is attack here; swap the labels or move the files",
        )


SCANNER = Scanner(
    kind="folder",
    title="a folder of your own",
    page="",
    expects="""\
{real,live,bonafide}/<subject>/…       images and videos; deeper folders hold frames of one video
{attack,spoof,fake}/<species>/<subject>/…
labels.csv (path,label; 1 is bona fide)  compared with the folders where it is there""",
    official=False,
    scan=scan_folder,
    example=(
        Clip("real/ann/1.avi", 1),
        Clip("real/ben/clip.png", 2),
        Clip("attack/print/ann/1.avi", 1, "print"),
        Clip("attack/replay/ben/2.png", 2, "replay"),
        Text("labels.csv", "path,label\nreal/ann/1.avi,1\nattack/print/ann/1.avi,0\n"),
    ),
)
