"""Cropped frames of datasets, in two layouts: those of FLIP and FedSIS, and that of GD-FAS.

Srivatsan et al., "FLIP: Cross-domain face anti-spoofing with language guidance", ICCV 2023; Jung et al., "Group-wise
scaling and orthogonal decomposition for domain-invariant feature extraction in face anti-spoofing", ICCV 2025. A
frame's name contains the name of its video or image in the dataset, which provides species, person and further columns;
persons are the same as in the dataset itself. The folder must name the same class.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedvisage.base.errors import UserError, printable
from fedvisage.datasets.dataset import UNKNOWN_SHARE, Clip, Entry, Grammar, Item, Listing, Name, match_name
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad import (
    casia_fasd,
    casia_surf,
    cefa,
    celeba_spoof,
    masks,
    msu_mfsd,
    oulu_npu,
    replay_attack,
    rose_youtu,
    siw,
    wmca,
)
from fedvisage.datasets.pad.lists import WORDS
from fedvisage.datasets.pad.scanner import Scanner, scan_by_name
from fedvisage.datasets.tree import Tree

REAL = ("real", "live")
_FOLDERS = {"part": "train|dev|devel|test", "class": "real|live|fake|attack|spoof", "stem": "[A-Za-z0-9_.-]+"}
FRAME = Grammar("{part}/{class}/{stem}_frame{number}", number="[0-9]{1,6}", **_FOLDERS)
NUMBERED = Grammar("{part}/{class}/{stem}_{number}", number="[0-9]{1,6}", **_FOLDERS)
WHOLE = FOLDER = Grammar("{part}/{class}/{stem}", **_FOLDERS)
"""An image, or a folder of them."""

_SURF_VIDEO = re.compile(r"(Training|Val|Testing)_(real_part|fake_part)_(CLKJ_[A-Z]{2}[0-9]{4})_(.*[.]rssdk)_(color)")

UNREAD = "images with names that the dataset does not use"


@dataclass(frozen=True)
class FrameDataset:
    """A dataset with readable frames: `path` maps part, class and name of a frame to its video's path in the dataset.

    Datasets of images have no frames: the number at the end of a name is part of the image's name. If names do not
    contain the class, `of_class` returns the kinds of names in the folders of one class.
    """

    scanner: Scanner
    path: Callable[[str, bool, str], str]
    images: bool = False
    of_class: Callable[[bool], tuple[Name, ...]] | None = None

    def read(self, fields: Mapping[str, str], options: ImportOptions) -> Entry | None:
        """Return the dataset's sighting of a name, or None if the name is not of the dataset."""
        stem, number = fields["stem"], fields.get("number")
        if self.images and number is not None:
            stem, number = f"{stem}_{number}", "0"
        live = fields["class"] in REAL
        path = self.path(fields["part"], live, stem)
        for name in self.of_class(live) if self.of_class else self.scanner.names:
            if parsed := name.grammar.parse(path):
                sighting = name.read(parsed.fields, options)
                if isinstance(sighting, Entry):
                    return sighting if number is None else replace(sighting, video=stem, frame=int(number))
        return None


def _replay(part: str, live: bool, stem: str) -> str:
    """Return the path of a video of Replay-Attack: the folder is the prefix of the name."""
    folder, _, name = stem.partition("_")
    part = "devel" if part == "dev" else part
    return f"{part}/{folder}/{name}" if live else f"{part}/attack/{folder}/{name}"


def _cefa(_: str, __: bool, stem: str) -> str:
    first, number, *more = (*stem.split("_"), "", "")
    if len(more) > 5:  # two are the empty strings added above
        return f"{'3D-Mask' if first == '1' else 'Silicone-Mask'}/{number}/{stem}/color"
    ethnicity = dict(zip("123", cefa.ETHNICITIES, strict=True)).get(first, "")
    return f"{ethnicity}-{number}/{stem}/color"


def _surf(_: str, __: bool, stem: str) -> str:
    """Return the path of a frame of CASIA-SURF; the separator of its folders also occurs within their names."""
    if match := _SURF_VIDEO.fullmatch(stem):
        return "/".join(match.groups())
    return stem.replace("_", "/")


SOURCES = {
    source.scanner.kind: source
    for source in (
        FrameDataset(oulu_npu.SCANNER, lambda part, _, stem: f"{part.title()}_files/{stem}"),
        FrameDataset(casia_fasd.SCANNER, lambda part, _, stem: f"{part}_release/{stem.replace('_', '/', 1)}"),
        FrameDataset(replay_attack.SCANNER, _replay),
        FrameDataset(msu_mfsd.SCANNER, lambda _, live, stem: f"{'real' if live else 'attack'}/{stem}"),
        FrameDataset(
            siw.SCANNER, lambda part, live, stem: f"{part.title()}/{'live' if live else 'spoof'}/{stem[:3]}/{stem}"
        ),
        FrameDataset(rose_youtu.SCANNER, lambda _, __, stem: stem),
        FrameDataset(
            masks.HKBU_MARS_V2, lambda _, live, stem: f"{'real' if live else 'attack'}/{stem.rpartition('_')[2]}/{stem}"
        ),
        FrameDataset(cefa.SCANNER, _cefa),
        FrameDataset(casia_surf.SCANNER, _surf, of_class=lambda live: casia_surf.SurfNameReader(others=live).names),
        # The date is the prefix of a name.
        FrameDataset(wmca.SCANNER, lambda _, __, stem: stem.replace("_", "/", 1)),
        FrameDataset(celeba_spoof.SCANNER, lambda part, _, stem: f"Data/{part}/{stem.replace('_', '/')}", images=True),
    )
}


def _names(among: Sequence[FrameDataset]) -> tuple[Name, ...]:
    def read_name(fields: Mapping[str, str], options: ImportOptions) -> Entry | str:
        return next((sighting for source in among if (sighting := source.read(fields, options))), UNREAD)

    images = (Name(grammar, read_name, "image") for grammar in (FRAME, NUMBERED, WHOLE))
    return (*images, Name(FOLDER, read_name, "frames"))


def scan(scanner: Scanner, tree: Tree, options: ImportOptions) -> Listing:
    """Scan with the names of the chosen dataset, or of the dataset that most names match."""
    kinds = [options.of] if options.of else list(SOURCES)
    scanners = {kind: replace(scanner, kind=kind, names=_names([SOURCES[kind]])) for kind in kinds}
    matched: Counter[str] = Counter()
    unread: dict[str, list[str]] = {kind: [] for kind in scanners}
    # Every candidate reads every file, because one name can match several datasets.
    for file in tree.files:
        if match_name(scanner, file, options) is None:
            continue
        for kind, candidate in scanners.items():
            match = match_name(candidate, file, options)
            if match is not None and isinstance(match[2], Entry):
                matched[kind] += 1
            else:
                unread[kind].append(printable(file))
    if not matched:
        templates = f"searched for {FRAME.template}.png and {FOLDER.template}/000.png"
        raise tree.mismatch(f"contains no frames of {' or '.join(scanners)}: {templates}")
    (kind, count), *others = matched.most_common(2)
    if others and others[0][1] == count:
        raise UserError(str(tree.root), f"the names fit both {kind} and {others[0][0]}; choose one with --of")
    if len(unread[kind]) > UNKNOWN_SHARE * (len(unread[kind]) + matched[kind]):
        message = f"{len(unread[kind])} images have names that {kind} does not use: {', '.join(unread[kind][:3])}"
        raise UserError(str(tree.root), f"{message}; give the folder of one dataset, or choose it with --of")
    listing = scan_by_name(scanners[kind], tree, options)
    return replace(listing, notes=(*listing.notes, f"frames of {kind}, by their names"))


def check_folders(tree: Tree, items: Sequence[Item]) -> None:
    """Raise a UserError if a frame is in the folder of the other class."""
    for item in items:
        folder = item.name.split("/")[1]
        if (folder in REAL) != bool(item.label):
            message = f"{item.name} is in {folder!r}, but by its name it is {WORDS[item.label]}; move it, or remove it"
            raise UserError(str(tree.root), message)


COLUMNS = dict.fromkeys(column for source in SOURCES.values() for column in source.scanner.columns)

SCANNER = Scanner(
    kind="frames",
    title="frames that were cut out before",
    page="https://github.com/koushiksrivats/FLIP",
    expects="""\
{train,test}/{real,fake}/<name of the video>_frame0.png      as FLIP and FedSIS have them
{train,test}/{live,attack}/<name of the video>/000.png       as GD-FAS has them
of one dataset; its name is read from theirs, or given with --of""",
    names=_names(list(SOURCES.values())),
    columns=tuple(column for column in COLUMNS if column not in celeba_spoof.DIVISIONS),
    of=tuple(SOURCES),
    check=check_folders,
    scan=scan,
    example=(
        Clip("train/real/1_1_frame0.png", 1, cropped=True),
        Clip("train/fake/1_HR_4_frame6.png", 1, "replay", cropped=True),
        Clip("train/fake/2_3_frame0.png", 2, "warp", cropped=True),
        Clip("test/real/1_HR_1_frame0.png", 3, cropped=True),
        Clip("test/fake/1_6_frame0.png", 3, "cut", cropped=True),
        Clip("test/fake/1_7_frame0.png", 3, "replay", cropped=True),
    ),
)
