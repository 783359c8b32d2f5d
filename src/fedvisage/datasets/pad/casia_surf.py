"""CASIA-SURF and CASIA-SURF 3DMask.

CASIA-SURF: 1,000 people, and printed photographs of them with eyes, nose or mouth cut out, flat or bent. Zhang et al.,
"CASIA-SURF: A large-scale multi-modal benchmark for face anti-spoofing", IEEE TBIOM 2020. The layout of 2024 has one
folder per video; its lists have 0 for bona fide. In the older layout only the training part has such folders:
validation and test are numbered images of unknown persons, whose class is only in the private lists (1 is bona fide
there). The public lists have no labels: images that only they name are left out, and so are all depth and infrared
images.

CASIA-SURF 3DMask: 48 people, and each of their faces as a mask with three kinds of decoration. Yu et al., "NAS-FAS:
Static-dynamic central difference network search for face anti-spoofing", IEEE TPAMI 2021. A folder is a person and a
recording day; below ``Fake`` a second folder is the decoration. The dataset's list has 1 for bona fide and -1 for
attacks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from fedvisage.base.errors import UserError
from fedvisage.base.progress import format_count
from fedvisage.datasets.dataset import OTHERS, Clip, Entry, Grammar, Listing, Name, Text
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.lists import LabelLists, label_and_name
from fedvisage.datasets.pad.scanner import Scanner, scan_by_name
from fedvisage.datasets.tree import Tree

SPLITS = {"Training": "train", "Val": "dev", "Testing": "test"}
_VIDEO = {"part": "|".join(SPLITS), "person": "CLKJ_[A-Z]{2}[0-9]{4}", "stream": "color|depth|ir"}
REAL = Grammar("{part}/real_part/{person}/real.rssdk/{stream}", **_VIDEO)
FAKE = Grammar(
    "{part}/fake_part/{person}/{code}_{cut}_{form}.rssdk/{stream}", code="0[1-6]", cut="e|en|enm", form="[sb]", **_VIDEO
)
NUMBERED = Grammar(
    "{part}/{folder}/{number}-{stream}",
    part="Val|Testing",
    folder="[0-9]{4}",
    number="[0-9]{6}",
    stream="color|depth|ir",
)
FORMS = {"s": "flat", "b": "bent"}

OTHER_STREAMS = "depth and infrared images"
WITHOUT_LABEL = "images without a label in the private lists"


@dataclass(frozen=True)
class SurfNameReader:
    """The reading of names in a copy, with the class of numbered images, for each (`live`) or for all (`others`)."""

    live: Mapping[str, bool] = field(default_factory=dict)
    others: bool | None = None

    def real(self, fields: Mapping[str, str], _: ImportOptions) -> Entry | str:
        """Read the name of a bona fide video."""
        if fields["stream"] != "color":
            return OTHER_STREAMS
        return Entry("bonafide", fields["person"], SPLITS[fields["part"]])

    def fake(self, fields: Mapping[str, str], _: ImportOptions) -> Entry | str:
        """Read the name of an attack: the parts of the face that were cut out, and whether the paper was bent."""
        if fields["stream"] != "color":
            return OTHER_STREAMS
        extra = {"cut": fields["cut"], "form": FORMS[fields["form"]]}
        return Entry("cut", fields["person"], SPLITS[fields["part"]], extra)

    def read_image(self, fields: Mapping[str, str], _: ImportOptions) -> Entry | str:
        """Read the name of a numbered image: its class comes from lists, its person is unknown."""
        if fields["stream"] != "color":
            return OTHER_STREAMS
        live = self.live.get(f"{fields['part']}/{fields['folder']}/{fields['number']}", self.others)
        if live is None:
            return WITHOUT_LABEL
        return Entry("bonafide" if live else "cut", fields["folder"], SPLITS[fields["part"]], part=fields["part"])

    @property
    def names(self) -> tuple[Name, ...]:
        """The kinds of names, with their readers."""
        videos = (Name(REAL, self.real, "frames"), Name(FAKE, self.fake, "frames"))
        return (*videos, Name(NUMBERED, self.read_image, "image"))


def _parse_line(line: str) -> tuple[str, str] | None:
    """Read a line of a list with labels: a folder or an image of each stream, and a label.

    The first path with a known name is used. Lists order the streams differently: the name of each identifies it.
    """
    *paths, label = line.split()
    for path in paths:
        for grammar in (REAL, FAKE):
            for place in (path, str(PurePosixPath(path).parent)):
                parsed = grammar.parse(place)
                if parsed:
                    return parsed.name.rpartition("/")[0] + "/color", label
    return None


PROTOCOLS = LabelLists(r"CASIA_SURF@p1_\w+\.txt", _parse_line, lambda label: label == "0", lambda item: item.video)
TRAINING = LabelLists(r"train_list\.txt", _parse_line, lambda label: label == "1", lambda item: item.video)
_NUMBERED_LISTS = re.compile(r"(?:.*/)?(?:val|test)_(?P<what>private|public)_list\.txt", re.IGNORECASE)


def scan(scanner: Scanner, tree: Tree, options: ImportOptions) -> Listing:
    """Scan by names; read the classes of numbered images from lists."""
    live, notes = _read_classes(tree, options.live or "1")
    lists = TRAINING if TRAINING.of(tree) else PROTOCOLS
    listing = scan_by_name(replace(scanner, names=SurfNameReader(live).names, lists=lists), tree, options, notes)
    if numbered := sum(NUMBERED.parse(item.video) is not None for item in listing.items):
        note = f"the people in {format_count(numbered, 'image')} are unknown: each folder counts as one person"
        listing = replace(listing, notes=(*listing.notes, note))
    return listing


def _read_classes(tree: Tree, live: str) -> tuple[dict[str, bool], tuple[str, ...]]:
    """Return the classes of numbered images in the lists, and notes for the report."""
    classes: dict[str, bool] = {}
    notes = []
    for name in tree.files:
        match = _NUMBERED_LISTS.fullmatch(name)
        if not match:
            continue
        place, lines = str(tree.path(name)), tree.lines(name)
        if match["what"].casefold() == "public":
            notes.append(f"{name} has no labels: {format_count(len(lines), 'line')} skipped")
            continue
        for number, line in lines:
            *paths, label = line.split()
            if label not in ("0", "1"):
                fault = "must have a label, 0 or 1; nothing else gives the class of such images"
                raise UserError(place, f"line {number}: {fault}")
            parsed = [NUMBERED.parse(path.rpartition(".")[0]) for path in paths]
            path = next((entry.name.rpartition("-")[0] for entry in parsed if entry), None)
            if path is None:
                raise UserError(place, f"line {number}: {line[:80]!r} is not an image of the dataset")
            if classes.setdefault(path, label == live) != (label == live):
                raise UserError(
                    place, f"line {number}: {path} has a different label on an earlier line or in another list"
                )
    if classes:
        bona_fide = sum(classes.values())
        count = format_count(len(classes), "image")
        notes.append(
            f"classes of {count} with numbers come only from lists, in which {live} is bona fide: {bona_fide} of them"
        )
    return classes, tuple(notes)


def _further(number: int) -> tuple[Clip, ...]:
    person = f"CLKJ_AS{number + 6:04d}"
    return (
        Clip(f"Data/Training/real_part/{person}/real.rssdk/color/0101.png", OTHERS + number),
        Clip(f"Data/Training/fake_part/{person}/02_e_b.rssdk/color/0101.png", OTHERS + number, "cut"),
    )


SCANNER = Scanner(
    kind="casia-surf",
    title="CASIA-SURF",
    page="https://github.com/liuajian/CASIA-FAS-Dataset",
    expects="""\
{Training,Val,Testing}/real_part/CLKJ_AS0005/real.rssdk/{color,depth,ir}/0101.jpg
{Training,Val,Testing}/fake_part/CLKJ_AS0005/04_en_b.rssdk/{color,depth,ir}/0101.jpg
CASIA_SURF@p1_video_train.txt …                      compared with the names where they are there
older: {Val,Testing}/0007/007243-color.jpg           with val_private_list.txt, test_private_list.txt""",
    names=SurfNameReader().names,
    columns=("cut", "form"),
    counts={"train": (300, 900), "dev": (100, 300), "test": (600, 1791)},
    beside=("*casia_surf@p*.txt", "*train_list.txt", "*_private_list.txt", "*_public_list.txt"),
    lists=PROTOCOLS,
    scan=scan,
    further=_further,
    example=(
        Clip("Data/Training/real_part/CLKJ_AS0005/real.rssdk/color/0101.png", 1),
        Clip("Data/Training/fake_part/CLKJ_AS0005/06_enm_b.rssdk/color/0101.png", 1, "cut"),
        Clip("Data/Val/real_part/CLKJ_AS0010/real.rssdk/color/0001.png", 2),
        Clip("Data/Val/fake_part/CLKJ_AS0010/01_e_s.rssdk/color/0001.png", 2, "cut"),
        Clip("Data/Testing/real_part/CLKJ_CS0117/real.rssdk/color/0015.png", 3),
        Clip("Data/Testing/fake_part/CLKJ_CS0117/03_en_s.rssdk/color/0015.png", 3, "cut"),
        Text(
            "protocol/CASIA_SURF@p1_video_train.txt",
            "CASIA_SURF/Data/Training/real_part/CLKJ_AS0005/real.rssdk/color 0\n"
            "CASIA_SURF/Data/Training/fake_part/CLKJ_AS0005/06_enm_b.rssdk/color 1\n",
        ),
        Text(
            "protocol/CASIA_SURF@p1_image_dev.txt",
            "CASIA_SURF/Data/Val/real_part/CLKJ_AS0010/real.rssdk/color/0001.png 0\n"
            "CASIA_SURF/Data/Val/fake_part/CLKJ_AS0010/01_e_s.rssdk/color/0001.png 1\n",
        ),
    ),
)

REAL_3DMASK = Grammar("Real/{person}/{clip}", person="[0-9]{4}_[0-9]{3}", clip="[1-9][0-9]?")
FAKE_3DMASK = Grammar(
    "Fake/{person}/{decoration}/{clip}", person="[0-9]{4}_[0-9]{3}", decoration="[123]", clip="[1-9][0-9]?"
)


def _parse_real(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    return Entry("bonafide", fields["person"], extra={"clip": fields["clip"]})


def _parse_fake(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    extra = {"decoration": fields["decoration"], "clip": fields["clip"]}
    return Entry("mask_rigid", fields["person"], extra=extra)


SCANNER_3DMASK = Scanner(
    kind="casia-surf-3dmask",
    title="CASIA-SURF 3DMask",
    page="https://github.com/liuajian/CASIA-FAS-Dataset",
    expects="""\
Real/0927_013/{1,15,16,17,22,23}.MOV
Fake/0927_013/{1,2,3}/{1,2,3,4,5,6}.MOV
CASIA_SURF_3DMask_list.txt           compared with the names where it is there""",
    names=(Name(REAL_3DMASK, _parse_real), Name(FAKE_3DMASK, _parse_fake)),
    columns=("decoration", "clip"),
    counts={"all": (288, 858)},
    lists=LabelLists(
        r"CASIA_SURF_3DMask_list\.txt",
        label_and_name,
        lambda label: label == "1",
        lambda item: item.video.replace("/", "_"),
    ),
    beside=("*_list.txt",),
    example=(
        Clip("Real/0927_013/15.mov", 1),
        Clip("Fake/0927_013/1/2.mov", 1, "mask_rigid"),
        Clip("Real/0929_031/22.mov", 2),
        Clip("Fake/0929_031/3/6.mov", 2, "mask_rigid"),
        Text(
            "CASIA_SURF_3DMask_list.txt",
            "-1,Fake_0927_013_1_2\n-1,Fake_0929_031_3_6\n1,Real_0927_013_15\n1,Real_0929_031_22\n",
        ),
    ),
)
