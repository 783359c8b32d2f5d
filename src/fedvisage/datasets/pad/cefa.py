"""CASIA-CeFA: people of three ethnicities; prints on cloth, replays, and rigid and silicone masks, as frames.

Liu et al., "CASIA-SURF CeFA: A benchmark for multi-modal cross-ethnicity face anti-spoofing", WACV 2021. The name of a
folder is ethnicity, subject, device, session and attack, or for masks mask, subject, clothes, glasses, device, session
and light. Person numbers restart for each ethnicity and each kind of mask. Its protocols' lists have 0 for bona fide.

The layout of the challenge of 2020 is supported as well: its training part has such names, its other parts have
numbered folders of unknown persons, whose class is only in lists (1 is bona fide there). Folders that are only in lists
without labels are left out. Colour is in ``color``, and cut out on black in ``profile``, which is used if there is no
``color``; depth and infrared images are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedvisage.base.errors import UserError
from fedvisage.base.progress import format_count
from fedvisage.datasets.dataset import OTHERS, Clip, Entry, Grammar, Item, Listing, Name, Text
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.lists import LabelLists
from fedvisage.datasets.pad.scanner import Scanner, scan_by_name
from fedvisage.datasets.tree import Tree

ETHNICITIES = ("AF", "CA", "EA")
SPECIES = {"1": "bonafide", "2": "print", "3": "print", "4": "replay"}
INSTRUMENTS = {"1": "", "2": "cloth", "3": "photo", "4": "screen"}
SESSIONS = {"1": "indoor", "2": "outdoor", "3": "random"}
MASKS = {"1": "mask_rigid", "2": "mask_flexible"}
FIRST_OF_DEV, FIRST_OF_TEST, LAST_OF_TEST = 200, 300, 499
_STREAMS = "color|profile|depth|ir"

PERSON = Grammar(
    "{folder}/{race}_{subject}_{device}_{session}_{attack}/{stream}",
    folder="(?:AF|CA|EA)-[0-9]{3}(?:-IdCard)?", race="[1-3]", subject="[0-9]{3}", device="[1-4]", session="[1-3]",
    attack="[1-4]", stream=_STREAMS,
)  # fmt: skip
MASK = Grammar(
    "{folder}/{person}/{mask}_{subject}_{dress}_{glasses}_{device}_{session}_{light}/{stream}",
    folder="3D-Mask|Silicone-Mask", person="[0-9]{3}", mask="[12]", subject="[0-9]{3}", dress="[01]", glasses="[01]",
    device="[12]", session="[12]", light="[1-6]", stream=_STREAMS,
)  # fmt: skip
NUMBERED = Grammar("{part}/{number}/{stream}", part="dev|test", number="[0-9]{6}", stream=_STREAMS)

OTHER_STREAMS = "depth, infrared or re-cropped images"
WITHOUT_LABEL = "frames of folders without a label in the lists 4@…"


@dataclass(frozen=True)
class CefaNameReader:
    """The reading of names in a copy: the stream to use, and the classes of numbered folders."""

    stream: str = "color"
    live: Mapping[str, bool] = field(default_factory=dict)

    def person(self, fields: Mapping[str, str], _: ImportOptions) -> Entry | str:
        """Read the name of a folder of a person."""
        ethnicity, number = ETHNICITIES[int(fields["race"]) - 1], int(fields["subject"])
        if fields["stream"] != self.stream:
            return OTHER_STREAMS
        if not fields["folder"].startswith(f"{ethnicity}-{fields['subject']}"):
            return "images whose name and folder give different people"
        split = "train" if number < FIRST_OF_DEV else "dev" if number < FIRST_OF_TEST else "test"
        extra = {
            "ethnicity": ethnicity, "device": fields["device"], "session": SESSIONS[fields["session"]],
            "instrument": INSTRUMENTS[fields["attack"]],
        }  # fmt: skip
        official_split = split if number <= LAST_OF_TEST else None
        return Entry(
            SPECIES[fields["attack"]],
            fields["subject"],
            official_split,
            {name: value for name, value in extra.items() if value},
            ethnicity,
        )

    def mask(self, fields: Mapping[str, str], _: ImportOptions) -> Entry | str:
        """Read the name of a folder of a mask: all masks are in the test part."""
        if fields["stream"] != self.stream:
            return OTHER_STREAMS
        extra = {name: fields[name] for name in ("dress", "glasses", "device", "light")}
        extra |= {"session": SESSIONS[fields["session"]], "instrument": fields["folder"]}
        return Entry(MASKS[fields["mask"]], fields["person"], "test", extra, fields["folder"])

    def read_folder(self, fields: Mapping[str, str], _: ImportOptions) -> Entry | str:
        """Read the name of a numbered folder: its class comes from lists, its person is unknown."""
        if fields["stream"] != self.stream:
            return OTHER_STREAMS
        live = self.live.get(f"{fields['part']}/{fields['number']}")
        if live is None:
            return WITHOUT_LABEL
        return Entry("bonafide" if live else "attack", fields["number"], fields["part"], part=fields["part"])

    @property
    def names(self) -> tuple[Name, ...]:
        """The kinds of names, with their readers."""
        readers = ((PERSON, self.person), (MASK, self.mask), (NUMBERED, self.read_folder))
        return tuple(Name(grammar, read, "frames") for grammar, read in readers)


def _key(item: Item) -> str:
    """Return the name of an item in lists: the last two folders above its stream."""
    return "/".join(item.video.split("/")[-3:-1])


def _parse_line(line: str) -> tuple[str, str] | None:
    """Read a line of a list: a folder, one of its streams or frames, and the label."""
    path, *more = line.split()
    parts = path.split("/")
    if "." in parts[-1]:
        parts.pop()
    if parts and parts[-1] in _STREAMS.split("|"):
        parts.pop()
    return ("/".join(parts[-2:]), more[-1]) if more and len(parts) > 1 else None


PROTOCOLS = LabelLists(r"CASIA_CeFA@p[0-9.]+_\w+\.txt", _parse_line, lambda label: label == "0", _key)
CHALLENGE = LabelLists(r"4@[1-3]_train\.txt", _parse_line, lambda label: label == "1", _key)
_NUMBERED_LISTS = re.compile(r"(?:.*/)?4@[1-3]_(?:dev|test)_(?P<what>ref|res)\.txt", re.IGNORECASE)


def scan_cefa(scanner: Scanner, tree: Tree, options: ImportOptions) -> Listing:
    """Scan by names; read the classes of numbered folders from lists."""
    streams = {name.rsplit("/", 2)[-2] for name in tree.files if "/" in name}
    live, notes = _read_classes(tree, options.live or "1")
    reading = CefaNameReader("color" if "color" in streams or "profile" not in streams else "profile", live)
    lists = CHALLENGE if CHALLENGE.of(tree) else PROTOCOLS
    listing = scan_by_name(replace(scanner, names=reading.names, lists=lists), tree, options, notes)
    items = [replace(item, own_subject=NUMBERED.parse(item.video) is not None) for item in listing.items]
    return replace(listing, items=items)


def _read_classes(tree: Tree, live: str) -> tuple[dict[str, bool], tuple[str, ...]]:
    """Return the classes of numbered folders in the lists, and notes for the report."""
    classes: dict[str, bool] = {}
    unlabelled_counts: dict[str, int] = {}
    for name in filter(_NUMBERED_LISTS.fullmatch, tree.files):
        rows: list[tuple[int | str, ...]] = [(number, *line.split()) for number, line in tree.lines(name)]
        bare = [row for row in rows if len(row) == 2]
        if bare and (len(bare) < len(rows) or "_ref" in name.casefold()):
            raise UserError(
                str(tree.path(name)),
                f"line {bare[0][0]}: {bare[0][1]} has no label; nothing else gives the class of such folders",
            )
        if bare:
            unlabelled_counts[name] = len(bare)
            continue
        for number, *words in rows:
            if len(words) != 2 or words[1] not in ("0", "1", "-1"):
                raise UserError(str(tree.path(name)), f"line {number}: must be a folder and a label of 0 or 1")
            path, label = "/".join(str(words[0]).strip("/").split("/")[-2:]), words[1]
            if classes.setdefault(path, label == live) != (label == live):
                raise UserError(str(tree.path(name)), f"line {number}: {path} has a different label in another list")
    notes = [
        f"{name} has no labels: {format_count(count, 'folder')} left out" for name, count in unlabelled_counts.items()
    ]
    if classes:
        bona_fide = sum(classes.values())
        count = format_count(len(classes), "folder")
        notes.append(
            f"classes of {count} with numbers come only from lists, in which {live}"
            f" is bona fide: {bona_fide} of them; their people are unknown"
        )
    return classes, tuple(notes)


def _further(number: int) -> tuple[Clip, ...]:
    place = f"Ethnicity/AF/AF-{number + 2:03d}/1_{number + 2:03d}_1_1"
    return tuple(
        Clip(f"{place}_{attack}/color/0001.png", OTHERS + number, species)
        for attack, species in SPECIES.items()
        if attack != "3"
    )


SCANNER = Scanner(
    kind="cefa",
    title="CASIA-CeFA",
    page="https://sites.google.com/view/face-anti-spoofing-challenge/dataset-download/casia-surf-cefacvpr2020",
    expects="""\
Ethnicity/{AF,CA,EA}/AF-223/1_223_3_1_2/{color,profile,depth,ir}/0001.jpg
Mask/{3D-Mask,Silicone-Mask}/073/1_073_1_0_2_1_2/{color,…}/0001.jpg
CASIA_CeFA@p1.1_video_train.txt …                        compared with the names where they are there
phase{1,2}/{train,dev,test}/…  4@1_train.txt  4@1_dev_ref.txt …  the layout of the challenge of 2020""",
    names=CefaNameReader().names,
    columns=("ethnicity", "device", "session", "instrument", "dress", "glasses", "light"),
    counts={"train": (600, 1800), "dev": (300, 900), "test": (600, 2923)},
    beside=("*casia_cefa@p*.txt", "*4@*.txt", "*_age_gender.txt"),
    lists=PROTOCOLS,
    scan=scan_cefa,
    further=_further,
    example=(
        Clip("Ethnicity/AF/AF-001/1_001_1_1_1/color/0001.png", 1),
        Clip("Ethnicity/AF/AF-001/1_001_3_1_4/color/0001.png", 1, "replay"),
        Clip("Ethnicity/CA/CA-001/2_001_1_1_1/color/0001.png", 2),
        Clip("Ethnicity/CA/CA-001/2_001_3_2_2/color/0001.png", 2, "print"),
        Clip("Ethnicity/EA/EA-223/3_223_1_1_1/color/0001.png", 3),
        Clip("Ethnicity/EA/EA-301/3_301_1_1_1/color/0001.png", 4),
        Clip("Mask/3D-Mask/001/1_001_1_0_2_1_2/color/0001.png", 5, "mask_rigid"),
        Clip("Mask/Silicone-Mask/001/2_001_1_1_2_1_3/color/0001.png", 6, "mask_flexible"),
        Text("CASIA_CeFA@p1.1_video_train.txt",
             "CASIA_CeFA/Ethnicity/AF/AF-001/1_001_1_1_1/color 0\n"
             "CASIA_CeFA/Ethnicity/AF/AF-001/1_001_3_1_4/color 1\n"),
    ),
)  # fmt: skip
