"""IJB-B and IJB-C as NIST distributes them: whole photographs and frames, and tables of the faces in them.

A table of a gallery or of the probes has a line for each face of a template: the person, the file, the sighting (a
photograph, or all frames of a video), and a box. The face is detected around its box; if none is detected, the box
itself locates the face, so that no template lacks an image. A list contains the pairs of templates to compare; the
tables show whether they are of one person.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedvisage.base.errors import UserError, printable
from fedvisage.base.files import open_regular
from fedvisage.data.lists import COLUMNS, Table, TemplateLists
from fedvisage.datasets.people.ijb import NIST, notes_of, persons_of_templates
from fedvisage.datasets.people.layout import Layout, Photograph, PhotographList, WholeFile, find_list, list_by_person
from fedvisage.datasets.report import SkippedFile
from fedvisage.datasets.tree import Tree, ending_of, fault_of_file, walk
from fedvisage.faces import pictures

_SIDE = 128
"""Size in pixels of a rendered face with its surroundings."""

HEAD = ("TEMPLATE_ID", "SUBJECT_ID", "FILENAME", "SIGHTING_ID", "FACE_X", "FACE_Y", "FACE_WIDTH", "FACE_HEIGHT")
"""The columns that are read, in any order."""

WITHOUT_SCORE = "NIST gives no detector scores: all images of a template have equal weight, also as published"


@dataclass(frozen=True)
class FaceLine:
    """One face of a template, from a line of a table."""

    template: int
    person: int
    file: str
    sighting: str
    box: tuple[float, ...]


def scan(layout: Layout, source: Path, galleries: tuple[str, str]) -> PhotographList:
    """List the faces of the templates, and the lists of templates to compare."""
    tree, short = walk(source), layout.kind.removesuffix("-nist").replace("-", "")
    tables = {which: _read_table(tree, f"{short}_1N_gallery_{which}.csv", layout) for which in galleries}
    probes = _read_table(tree, f"{short}_1N_probe_mixed.csv", layout)
    lists = TemplateLists(None, {which.lower(): _people(lines) for which, lines in tables.items()}, _people(probes))
    whose = persons_of_templates(lists, tree)
    if (name := find_list(tree, f"{short}_11_{'_'.join(galleries)}_matches.csv")) is not None:
        lists = replace(lists, pairs=_pairs(tree.path(name), whose))
    photographs, skipped = _photographs(layout, tree, [line for lines in (*tables.values(), probes) for line in lines])
    if not photographs:
        raise tree.mismatch(f"contains none of the images in its tables: searched for {probes[0].file}")
    notes = (*notes_of(lists, len(whose)), WITHOUT_SCORE)
    return list_by_person(photographs, skipped, templates=lists, notes=notes, columns=COLUMNS, expected=layout.counts)


def _read_table(tree: Tree, name: str, layout: Layout) -> list[FaceLine]:
    """Read a table of faces."""
    if (place := find_list(tree, name)) is None:
        raise tree.mismatch(f"does not match {layout.title}: searched for img/1.jpg and {name}")
    lines, table = tree.lines(place), tree.path(place)
    rows = csv.reader(line for _, line in lines)
    head = [column.strip().upper() for column in next(rows, [])]
    if missing := [column for column in HEAD if column not in head]:
        raise UserError(str(table), f"has no column {missing[0]}: its first line must name the columns")
    positions = [head.index(column) for column in HEAD]
    faces = []
    for (number, _), row in zip(lines[1:], rows, strict=True):
        fields, at_line = [row[column].strip() for column in positions if column < len(row)], f"{table}, line {number}"
        try:
            template, person, file, sighting, *box = fields
            sides = tuple(float(side) for side in box) if all(box) else ()  # a face may lack its box
            face = FaceLine(int(template), int(person), file, sighting, sides)
        except ValueError:
            face = None
        if face is None or len(fields) < len(HEAD) or min(face.template, face.person) < 0 or not file or not sighting:
            message = "must have a template and a person as numbers, a file, a sighting and a box's numbers"
            raise UserError(at_line, message)
        if face.box and not (np.isfinite(face.box).all() and min(face.box[2:]) > 0):
            raise UserError(at_line, f"has an invalid box: {', '.join(map(str, face.box))}")
        faces.append(face)
    return faces


def _people(lines: Iterable[FaceLine]) -> Table:
    """Return each template once, with its person."""
    return np.array(list(dict.fromkeys((line.template, line.person) for line in lines)), np.int32)


def _pairs(path: Path, whose: Mapping[int, int]) -> Table:
    """Read the pairs of templates to compare, and add whether each is of one person."""
    try:
        with open(path, encoding="utf-8-sig", opener=open_regular) as file:
            pairs = np.loadtxt(file, np.int32, comments=None, delimiter=",", ndmin=2)
    except (ValueError, OverflowError) as error:
        raise UserError(str(path), f"is not a list of template pairs: {error}") from None
    if pairs.shape[1:] != (2,) or not len(pairs):
        raise UserError(str(path), "must have two templates per line")
    templates = np.array(sorted(whose), np.int32)
    person = np.array([whose[template] for template in templates.tolist()], np.int32)
    place = np.searchsorted(templates, pairs).clip(max=len(templates) - 1)
    if (wrong := np.flatnonzero((templates[place] != pairs).any(axis=1))).size:
        raise UserError(f"{path}, line {wrong[0] + 1}", "names a template that is in no gallery or probe")
    same = person[place[:, 0]] == person[place[:, 1]]
    return np.column_stack([pairs, same]).astype(np.int32)


def _photographs(
    layout: Layout, tree: Tree, lines: Iterable[FaceLine]
) -> tuple[list[Photograph], tuple[SkippedFile, ...]]:
    """Return a photograph for each face of a template, and the skipped ones."""
    files, faults = dict[str, str](), dict[str, str]()  # pictures by their folder and name
    for file in tree.files:
        if ending_of(file) in pictures.ENDINGS and (other := files.setdefault(_tail(file), file)) != file:
            message = f"contains two copies of one image, {other} and {file}; give the folder of one copy"
            raise UserError(str(tree.root), message)
    seen: Counter[str] = Counter()
    photographs, skipped = [], []
    for line in lines:
        item = f"{line.file}/{line.template}"
        seen[item] += 1
        name = item if seen[item] == 1 else f"{item}-{seen[item]}"
        path = files.get(_tail(line.file))
        if path is not None and path not in faults:
            faults[path] = fault_of_file(tree.path(path), path, tree.root, pictures.ENDINGS) or ""
        fault = "its table has no box" if not line.box else "it is in a table, but missing"
        if path is None or faults[path] or not line.box:
            skipped.append(SkippedFile(printable(name), faults.get(path or "") or fault))
            continue
        extra = dict(zip(COLUMNS, (str(line.template), line.sighting, "1"), strict=True))
        person, content = f"{layout.kind}/{line.person}", WholeFile(tree.path(path))
        photographs.append(Photograph(name, person, content, extra=extra, box=np.array(line.box)))
    return photographs, tuple(skipped)


def _tail(file: str) -> str:
    return "/".join(PurePosixPath(file).parts[-2:])


_COPY = (
    ("img/1.jpg", 10, ((0, 1), (1, 3))),
    ("frames/2.png", 20, ((0, 2),)),
    ("frames/3.png", 20, ((0, 2),)),
    ("img/4.jpg", 40, ((1, 4),)),
    ("img/5.jpg", 50, ((2, 5),)),
    ("img/6.jpg", 60, ((2, 6),)),
)
"""A small copy: pictures with their sightings, and the person and the template of each face."""


def _pack(short: str, galleries: tuple[str, str], folder: str, root: Path) -> None:
    """Write a small copy of three people with two templates each, two in one photograph, and with two frames."""
    tables = {1: f"gallery_{galleries[0]}", 3: f"gallery_{galleries[0]}", 5: f"gallery_{galleries[1]}"}
    lines: dict[str, list[str]] = defaultdict(list)
    for turn, (file, sighting, faces) in enumerate(_COPY):
        boxes = _write_picture(root / "images" / file, turn % 3, [person for person, _ in faces])
        for (person, template), box in zip(faces, boxes, strict=True):
            numbers = ",".join(f"{side:.0f}" for side in box)
            row = f"{template},{100 + person},{file},{sighting},{numbers},0"
            lines[tables.get(template, "probe_mixed")].append(row)
    texts = {f"1N_{table}": [",".join([*HEAD, "FRAME_NUM"]), *rows] for table, rows in lines.items()}
    texts[f"11_{'_'.join(galleries)}_matches"] = ["1,2", "1,4", "3,4", "3,6", "5,6", "5,2"]
    (root / folder).mkdir()
    for name, rows in texts.items():
        (root / folder / f"{short}_{name}.csv").write_bytes("".join(f"{line}\r\n" for line in rows).encode())


def _write_picture(path: Path, turn: int, people: Sequence[int]) -> list[NDArray[np.float64]]:
    """Write a picture with adjacent faces; return their boxes."""
    from fedvisage.datasets.small_copies import SPREAD, render_person  # needs the renderer

    picture, boxes = np.full((_SIDE + 24, 12 + (_SIDE + 12) * 2, 3), 118, np.uint8), []
    for place, person in enumerate(people):
        images, points = render_person(person, "bonafide", side=_SIDE)
        corner = np.array([12 + place * (_SIDE + 12), 12])
        picture[corner[1] : corner[1] + _SIDE, corner[0] : corner[0] + _SIDE] = images[turn]
        side = SPREAD * float(np.ptp(points[turn], axis=0).max())
        boxes.append(np.concatenate([points[turn].mean(axis=0) - side / 2 + corner, [side, side]]))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path)
    return boxes


def _layout(letter: str, galleries: tuple[str, str], folder: str, people: int) -> Layout:
    short = f"ijb{letter}"
    return Layout(
        kind=f"ijb-{letter}-nist",
        title=f"IJB-{letter.upper()} as NIST distributes it",
        page=NIST,
        expects=f"""\
images/img/1.jpg, images/frames/2.png   photographs and frames; faces are sought around the boxes of the tables
{folder}/{short}_1N_gallery_{{{",".join(galleries)}}}.csv, {short}_1N_probe_mixed.csv
{folder}/{short}_11_{"_".join(galleries)}_matches.csv   1,2: templates that are compared""",
        scan=partial(scan, galleries=galleries),
        sign=r"(?:^|/)(?:img|frames)/[0-9]+$",
        list_beside=f"{folder}/{short}_1N_probe_mixed.csv",
        benchmark=True,
        boxed=True,
        counts=(people, 0),
        columns=COLUMNS,
        pack=partial(_pack, short, galleries, folder),
    )


B = _layout("b", ("S1", "S2"), "protocol", 1_845)
C = _layout("c", ("G1", "G2"), "protocols", 3_531)
