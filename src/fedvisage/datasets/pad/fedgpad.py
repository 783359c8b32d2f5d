"""The lists of FedGPAD: cropped frames of a dataset, with depth maps that may have shorter paths than the frames.

Shao et al., "Federated generalized face presentation attack detection", IEEE TNNLS 2022. Each list is of one class,
given by its name: ``image_list_real.txt`` of bona fide frames, ``image_list_print.txt`` and ``image_list_video.txt`` of
attacks, ``image_list_fake.txt`` of all attacks. A line is a frame's path and a number, which must differ between bona
fide lists and lists of attacks. If a path contains the name of a video in its dataset, this name provides species,
person and more. The map of ``a/b/c/d/1.jpg`` is at the same path below ``depth``, or at the first folders of this path
followed by the file name.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from fedvisage.base.errors import UserError, printable
from fedvisage.datasets.dataset import Clip, Entry, Item, Listing, Text
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad import casia_fasd, masks, msu_mfsd, oulu_npu, replay_attack, siw
from fedvisage.datasets.pad.lists import WORDS
from fedvisage.datasets.pad.scanner import Scanner
from fedvisage.datasets.report import SkippedFile
from fedvisage.datasets.tree import Tree, fault_of_file
from fedvisage.faces import pictures

SPECIES = {"real": "bonafide", "print": "print", "video": "replay", "fake": "attack"}
LIST = re.compile(r"(?:(?P<folder>.*)/)?image_list_(?P<what>real|print|video|fake)\.txt", re.IGNORECASE)


@dataclass(frozen=True)
class SourceDataset:
    """A dataset: its folder in FedGPAD, the number of leading folders in the path of a depth map, and its scanner."""

    folder: str
    depth: int
    scanner: Scanner


SOURCES = (
    SourceDataset("CASIA", 3, casia_fasd.SCANNER),
    SourceDataset("HKBUMARsV2", 2, masks.HKBU_MARS_V2),
    SourceDataset("idiap", 3, replay_attack.SCANNER),
    SourceDataset("MSU", 2, msu_mfsd.SCANNER),
    SourceDataset("OULU", 1, oulu_npu.SCANNER),
    SourceDataset("SiW", 4, siw.SCANNER),
)


def scan(_: Scanner, tree: Tree, options: ImportOptions) -> Listing:
    """List the frames of the lists, each once; lists of one species have precedence over the list of all attacks."""
    matches = filter(None, map(LIST.fullmatch, tree.files))
    lists = sorted(matches, key=lambda match: (list(SPECIES).index(match["what"].casefold()), match.string))
    if not lists:
        raise tree.mismatch("has no image_list_real.txt and image_list_fake.txt")
    folders = sorted({match["folder"] or "" for match in lists})
    if len(folders) > 1:
        raise UserError(str(tree.root), f"has lists in {' and '.join(folders)}; give the folder of one dataset")
    folder = folders[0]
    listed = _read_species(tree, lists)
    source = _find_source(folder or tree.root.resolve().name, options)
    files = {name.casefold(): name for name in tree.files}
    items, skipped = [], []
    numbers = Counter[str]()
    for path in sorted(listed):
        name = files.get(f"{folder}/{path}".strip("/").casefold(), f"{folder}/{path}".strip("/"))
        fault = fault_of_file(tree.path(name), name, tree.root, pictures.ENDINGS)
        if fault:
            skipped.append(SkippedFile(printable(name), fault))
            continue
        frame_path = name[len(folder) + 1 :] if folder else name
        items.append(_make_item(tree, name, frame_path, listed[path], source, numbers, options))
    return Listing(items, tuple(skipped))


def _find_source(folder: str, options: ImportOptions) -> SourceDataset:
    name = PurePosixPath(folder).name.casefold()
    for source in SOURCES:
        if options.of == source.scanner.kind or (not options.of and source.folder.casefold() == name):
            return source
    folders = ", ".join(source.folder for source in SOURCES)
    message = f"its folder has none of the names {folders}; name the dataset of these frames with --of"
    raise UserError(printable(folder), message)


def _read_species(tree: Tree, lists: list[re.Match[str]]) -> dict[str, str]:
    """Return the species of each path from the names of the lists; raise UserError if a number labels both classes."""
    listed: dict[str, str] = {}
    labels: dict[str, bool] = {}
    for match in lists:
        species = SPECIES[match["what"].casefold()]
        place, bona_fide = str(tree.path(match.string)), species == "bonafide"
        for number, line in tree.lines(match.string):
            path, _, label = line.rpartition(" ")
            if not path or not label.lstrip("-").isdecimal():
                raise UserError(place, f"line {number}: {line[:80]!r} must be a path and a whole number")
            path = PurePosixPath(path.strip()).as_posix()
            if labels.setdefault(label, bona_fide) != bona_fide:
                message = (
                    f"line {number}: {label} is the label for {WORDS[not bona_fide]} on another line or in another list"
                )
                raise UserError(place, message)
            if (listed.setdefault(path, species) == "bonafide") != bona_fide:
                raise UserError(place, f"line {number}: {path} is also in a list of {WORDS[not bona_fide]} frames")
    return listed


def _make_item(
    tree: Tree, name: str, path: str, species: str, source: SourceDataset, numbers: Counter[str], options: ImportOptions
) -> Item:
    """Return a frame; the class of its video in the dataset must match the class of its list."""
    video, sighting = _parse_frame(source, path, options)
    folders = PurePosixPath(path).parent
    frame = numbers[video]
    numbers[video] += 1
    depth = PurePosixPath(*folders.parts[: source.depth], PurePosixPath(path).name)
    kind = source.scanner.kind
    item = Item(
        tree.path(name), path, "image", species, f"{kind}/{video}", video, frame=frame, own_subject=True,
        depth_name=str(depth),
    )  # fmt: skip
    if sighting is None:
        return item
    if (sighting.species == "bonafide") != (species == "bonafide"):
        message = f"{path} is by its name {WORDS[sighting.species == 'bonafide']}, but is in a list of the other class"
        raise UserError(str(tree.root), message)
    subject = "/".join(part for part in (kind, sighting.part, sighting.subject) if part)
    species, split, extra = sighting.species, sighting.split, sighting.extra
    return replace(item, species=species, subject=subject, split=split, extra=extra, own_subject=False)


def _parse_frame(source: SourceDataset, path: str, options: ImportOptions) -> tuple[str, Entry | None]:
    """Return a frame's video and the sighting of its name: the deepest part of the path that the dataset recognises."""
    for part in (str(PurePosixPath(path).with_suffix("")), *map(str, PurePosixPath(path).parents)):
        for name in source.scanner.names:
            if parsed := name.grammar.parse(part):
                sighting = name.read(parsed.fields, options)
                return parsed.name, sighting if isinstance(sighting, Entry) else None
    return str(PurePosixPath(path).parent), None


SCANNER = Scanner(
    kind="fedgpad",
    title="frames in the lists of FedGPAD",
    page="https://github.com/rshaojimmy/FedGPAD",
    expects="""\
{CASIA,HKBUMARsV2,idiap,MSU,OULU,SiW}/image_list_{real,print,video,fake}.txt     lines: <path of a frame> <number>
<the same>/<path of a frame>
<the same>/depth/…/<frame>_depth.jpg                     read with --depth …/depth""",
    official=False,
    columns=tuple(dict.fromkeys(column for source in SOURCES for column in source.scanner.columns)),
    of=tuple(source.scanner.kind for source in SOURCES),
    scan=scan,
    example=(
        Clip("CASIA/train_release/1/1/crop/100.png", 1, cropped=True),
        Clip("CASIA/train_release/1/1/crop/101.png", 1, take="101", cropped=True),
        Clip("CASIA/train_release/1/3/crop/100.png", 1, "warp", cropped=True),
        Clip("CASIA/test_release/1/HR_4/crop/103.png", 2, "replay", cropped=True),
        Clip("CASIA/test_release/1/2/crop/103.png", 2, cropped=True),
        Clip("CASIA/depth/train_release/1/1/100_depth.jpg", 1, cropped=True),
        Clip("CASIA/depth/train_release/1/1/101_depth.jpg", 1, take="101", cropped=True),
        Clip("CASIA/depth/test_release/1/2/103_depth.jpg", 2, cropped=True),
        Text("CASIA/image_list_real.txt",
             "train_release/1/1/crop/100.png 1\ntrain_release/1/1/crop/101.png 1\ntest_release/1/2/crop/103.png 1\n"),
        Text("CASIA/image_list_fake.txt", "train_release/1/3/crop/100.png 0\ntest_release/1/HR_4/crop/103.png 0\n"),
        Text("CASIA/image_list_video.txt", "test_release/1/HR_4/crop/103.png 0\n"),
    ),
)  # fmt: skip
