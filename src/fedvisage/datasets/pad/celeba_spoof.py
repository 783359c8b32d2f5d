"""CelebA-Spoof: photographs of 10,177 celebrities; prints, paper masks, screens and 3-D masks in many lights.

Zhang et al., "CelebA-Spoof: Large-scale face anti-spoofing dataset with rich annotations", ECCV 2020. Folders name the
class; the kind of attack, the light and the place are in ``metas/intra_test/*_label.json``: 44 numbers per image, of
which the last four are type, light, environment and 1 for an attack. Both are compared with the folders. The metadata
do not distinguish photographs from videos on screens, so their species is ``screen``. Without these files the species
of attacks is ``attack``. Lists of the same form, ``metas/protocol1`` and ``metas/protocol2``, assign images to the
training and test parts of the authors' protocols across mediums and across sensors.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_json
from fedvisage.datasets.dataset import OTHERS, Clip, Entry, Grammar, Item, Listing, Name, Text
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.lists import WORDS, BoxFiles, LabelLists
from fedvisage.datasets.pad.scanner import Scanner, scan_by_name
from fedvisage.datasets.tree import Tree, without_ending

IMAGE = Grammar(
    "Data/{part}/{person}/{folder}/{number}",
    part="train|test",
    person="[0-9]{1,5}",
    folder="live|spoof",
    number="[0-9]{1,6}",
)
TYPES = (
    *("live", "photo", "poster", "a4", "face_mask", "upper_body_mask", "region_mask"),
    *("pc", "pad", "phone", "mask_3d"),
)
SPECIES = ("bonafide", *["print"] * 3, *["mask_paper"] * 3, *["screen"] * 3, "mask_rigid")
LIGHTS = ("", "normal", "strong", "back", "dark")
ENVIRONMENTS = ("", "indoor", "outdoor")
NUMBERS = 44
LISTED = {"train": 494_405, "test": 67_170}
"""Images in the lists; the paper announces more."""

DIVISIONS = {
    "mediums": "protocol1",
    "sensors_high": "protocol2/test_on_high_quality_device",
    "sensors_middle": "protocol2/test_on_middle_quality_device",
    "sensors_low": "protocol2/test_on_low_quality_device",
}
"""Columns, and the folders of the lists that assign images to ``train`` or ``test``."""

_METAS = re.compile(r"(?:.*/)?metas/intra_test/(?:train|test)_label\.json", re.IGNORECASE)


@dataclass(frozen=True)
class ImageMeta:
    """The decoded last four of an image's 44 numbers."""

    type: int
    light: int
    environment: int
    attack: int


def _parse_name(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    species = "bonafide" if fields["folder"] == "live" else "attack"
    return Entry(species, fields["person"], fields["part"])


def scan_metas(scanner: Scanner, tree: Tree, options: ImportOptions) -> Listing:
    """Scan by names, and add the metadata; raise UserError if it contradicts a folder."""
    listing = scan_by_name(scanner, tree, options)
    files = [name for name in tree.files if _METAS.fullmatch(name)]
    metas = dict(chain.from_iterable(_read_metas(tree, name) for name in files))
    items = [
        _apply_meta(item, metas[item.video], files, tree) if item.video in metas else item for item in listing.items
    ]
    divided = _read_divisions(tree, {item.video: item for item in items})
    items = [replace(item, extra={**item.extra, **divided.get(item.video, {})}) for item in items]
    return replace(listing, items=items, notes=(*listing.notes, *_notes(items, files)))


def _read_divisions(tree: Tree, items: Mapping[str, Item]) -> dict[str, dict[str, str]]:
    """Return the part of each image in each of the authors' protocols; raise UserError if both lists name an image."""
    parts_of: dict[str, dict[str, str]] = defaultdict(dict)
    for (column, folder), part in product(DIVISIONS.items(), ("train", "test")):
        ending = f"/metas/{folder}/{part}_label.json"
        lists = [name for name in tree.files if f"/{name}".endswith(ending)]
        for name in lists:
            for key, meta in _read_metas(tree, name):
                if key not in items:
                    continue
                _apply_meta(items[key], meta, [name], tree)
                if parts_of[key].setdefault(column, part) != part:
                    message = f"contains {key[:80]}, but the list of the other part contains it, too"
                    raise UserError(str(tree.path(name)), message)
    return parts_of


def _read_metas(tree: Tree, name: str) -> Iterator[tuple[str, ImageMeta]]:
    place = str(tree.path(name))
    for path, values in read_json(tree.path(name), "unpack the archive again").items():
        numbers = _parse_meta(values)
        if numbers is None:
            raise UserError(place, f"{path[:80]!r} does not have {NUMBERS} whole numbers expected in such files")
        yield without_ending(path), numbers


def _parse_meta(values: Any) -> ImageMeta | None:
    if not isinstance(values, list) or len(values) != NUMBERS or not all(type(value) is int for value in values[40:]):
        return None
    kind, light, environment, attack = values[40:]
    limits = ((kind, len(TYPES)), (light, len(LIGHTS)), (environment, len(ENVIRONMENTS)), (attack, 2))
    return ImageMeta(kind, light, environment, attack) if all(0 <= value < limit for value, limit in limits) else None


def _apply_meta(item: Item, meta: ImageMeta, files: Iterable[str], tree: Tree) -> Item:
    """Return an item with the species and the columns of its metadata."""
    bona_fide_by_meta = (meta.type == 0, meta.attack == 0)
    if bona_fide_by_meta != (bool(item.label), bool(item.label)):
        values = f"type {meta.type} and {meta.attack} (1 is an attack)"
        message = f"{item.name} has {values}, but by its folder it is {WORDS[item.label]}"
        raise UserError(", ".join(str(tree.path(name)) for name in files), message)
    words = {"type": TYPES[meta.type], "light": LIGHTS[meta.light], "environment": ENVIRONMENTS[meta.environment]}
    extra = {name: word for name, word in words.items() if word}
    return replace(item, species=SPECIES[meta.type], extra=extra)


def _notes(items: Iterable[Item], files: Iterable[str]) -> Iterator[str]:
    counts = Counter(item.split or "" for item in items)
    yield "; ".join(f"{part}: {counts[part]:,} of {count:,} images" for part, count in LISTED.items())
    if without_species := sum(item.species == "attack" for item in items):
        source = "metas/intra_test/*_label.json" if files else "metas/intra_test/*_label.json, which are missing"
        yield f"{without_species:,} attacks have the species attack: their species are in {source}"


def _parse_line(line: str) -> tuple[str, str] | None:
    name, _, label = line.rpartition(" ")
    return (without_ending(name.strip()), label) if name and label.isdecimal() else None


def _example(part: str, types: Mapping[str, int], folder: str = "intra_test") -> Text:
    """Return a file of the example: numbers for the appearance, then type, light, environment and class."""
    looks = ", ".join(["0"] * (NUMBERS - 4))
    lines = []
    for name, kind in types.items():
        part_folder = "test" if name.startswith("4930") else "train"
        numbers = f"{looks}, {kind}, {min(kind, 3)}, {min(kind, 2)}, {min(kind, 1)}"
        lines.append(f'"Data/{part_folder}/{name.replace("_", "/")}.png": [{numbers}]')
    return Text(f"metas/{folder}/{part}_label.json", "{" + ", ".join(lines) + "}\n")


_TEN, _ELEVEN = {"10_live_000184": 0, "10_spoof_000185": 3}, {"11_live_000021": 0, "11_spoof_000022": 9}
_TESTED = {"4930_live_000300": 0, "4930_spoof_000301": 10}


def _further(number: int) -> tuple[Clip, ...]:
    return (
        Clip(f"Data/train/{number + 12}/live/{number + 500:06d}.png", OTHERS + number),
        Clip(f"Data/train/{number + 12}/spoof/{number + 600:06d}.png", OTHERS + number, "print"),
    )


SCANNER = Scanner(
    kind="celeba-spoof",
    title="CelebA-Spoof",
    page="https://github.com/ZhangYuanhan-AI/CelebA-Spoof",
    expects="""\
Data/{train,test}/1/{live,spoof}/000184.jpg  000184_BB.txt   of an archive in parts (.001, .002, …) all are needed
metas/intra_test/{train,test}_label.json                     44 numbers an image: what the attack is, light, place
metas/{protocol1,protocol2/test_on_*}/*_label.json           the protocols across mediums and across sensors
metas/…/*_label.txt                                          compared with the folders where they are there""",
    names=(Name(IMAGE, _parse_name, "image"),),
    columns=("type", "light", "environment", *DIVISIONS),
    beside=("*_bb.txt", "*metas/*"),
    lists=LabelLists(r"metas/.*_label\.txt", _parse_line, lambda label: label == "0", lambda item: item.video),
    boxes=BoxFiles(("{name}_BB.txt",), "scaled"),
    scan=scan_metas,
    further=_further,
    example=(
        Clip("Data/train/10/live/000184.png", 1),
        Clip("Data/train/10/spoof/000185.png", 1, "print"),
        Clip("Data/train/11/live/000021.png", 2),
        Clip("Data/train/11/spoof/000022.png", 2, "screen"),
        Clip("Data/test/4930/live/000300.png", 3),
        Clip("Data/test/4930/spoof/000301.png", 3, "mask_rigid"),
        _example("train", _TEN | _ELEVEN),
        _example("test", _TESTED),
        _example("train", _TEN, DIVISIONS["mediums"]),
        _example("test", _TESTED, DIVISIONS["mediums"]),
        _example("train", _ELEVEN, DIVISIONS["sensors_high"]),
        _example("test", _TESTED, DIVISIONS["sensors_high"]),
        _example("train", _TEN | _ELEVEN, DIVISIONS["sensors_low"]),
        _example("test", _TESTED, DIVISIONS["sensors_low"]),
        Text(
            "metas/intra_test/train_label.txt",
            "Data/train/10/live/000184.png 0\nData/train/10/spoof/000185.png 1\n"
            "Data/train/11/live/000021.png 0\nData/train/11/spoof/000022.png 1\n",
        ),
        Text(
            "metas/intra_test/test_label.txt", "Data/test/4930/live/000300.png 0\nData/test/4930/spoof/000301.png 1\n"
        ),
    ),
)
