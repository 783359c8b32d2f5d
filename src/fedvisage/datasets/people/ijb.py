"""IJB-B and IJB-C as InsightFace repacks them: loose crops with five points each, and lists of templates to compare.

One list has the template and the medium (a photograph or a video) of each crop, another the five points and the
detector's confidence. The persons of templates are in the lists of galleries and probes. ``nist.py`` reads the
photographs, frames and boxes of the original distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedvisage.base.errors import UserError, printable
from fedvisage.base.progress import format_count
from fedvisage.data.lists import COLUMNS, TemplateLists, read_table
from fedvisage.datasets.people.layout import Layout, Photograph, PhotographList, WholeFile, find_list
from fedvisage.datasets.report import SkippedFile
from fedvisage.datasets.tree import Tree, ending_of, fault_of_file, walk
from fedvisage.faces import pictures

CROPS = "loose_crop"

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _CropLists:
    """The contents of the lists for each crop, row by row."""

    names: Sequence[str]
    template: Numbers
    media: Numbers
    points: NDArray[np.float64]
    confidence: Sequence[str]


def scan(layout: Layout, source: Path) -> PhotographList:
    """List the crops of the templates, and the lists of templates to compare."""
    tree, short = walk(source), layout.kind.replace("-", "")
    crops = _crops(tree, layout, short)
    files, skipped = _files(tree, crops, layout)
    # Read the available lists of pairs, galleries and probes.
    pairs = find_list(tree, f"{short}_template_pair_label.txt")
    galleries = {
        which.lower(): _persons(tree, name)
        for which in ("G1", "G2", "S1", "S2")
        if (name := find_list(tree, f"{short}_1N_gallery_{which}.csv"))
    }
    probes = find_list(tree, f"{short}_1N_probe_mixed.csv")
    listed = None if pairs is None else read_table(tree.path(pairs), 3)
    lists = TemplateLists(listed, galleries, None if probes is None else _persons(tree, probes))
    whose = persons_of_templates(lists, tree)
    _check_pairs(lists, whose, tree, short)
    # Rows of the lists are grouped by person, without a copy of each row: there are several hundred thousand.
    present = np.array([place for place, name in enumerate(crops.names) if name in files], np.int64)
    # A template without a person in the lists counts as its own person.
    people = {
        number: (f"{layout.kind}/{whose[number]}" if number in whose else f"{layout.kind}/template-{number}")
        for number in np.unique(crops.template[present]).tolist()
    }
    names = np.array([people[number] for number in crops.template[present].tolist()])
    order = np.argsort(names, kind="stable")
    distinct, first = np.unique(names[order], return_index=True)
    rows = dict(zip(distinct.tolist(), np.split(present[order], first[1:]), strict=True))

    def photographs(person: str) -> Sequence[Photograph]:
        listed = []
        for place in rows[person].tolist():
            name, ids = crops.names[place], (str(crops.template[place]), str(crops.media[place]))
            extra = dict(zip(COLUMNS, (*ids, crops.confidence[place]), strict=True))
            content, points = WholeFile(tree.path(files[name])), crops.points[place]
            listed.append(Photograph(f"{CROPS}/{name}", person, content, extra=extra, points=points))
        return listed

    counts = {person: len(places) for person, places in rows.items()}
    notes = notes_of(lists, len(people))
    return PhotographList(
        counts, photographs, skipped, templates=lists, notes=notes, columns=COLUMNS, expected=layout.counts
    )


def _crops(tree: Tree, layout: Layout, short: str) -> _CropLists:
    """Read template and medium of each crop, and its points and the detector's confidence."""
    lists = {what: find_list(tree, f"{short}_{what}.txt") for what in ("face_tid_mid", "name_5pts_score")}
    if missing := [f"{short}_{what}.txt" for what, name in lists.items() if name is None]:
        names = f"{CROPS}/1.jpg and {', '.join(missing)}"
        raise tree.mismatch(f"does not match {layout.title}: searched for {names}")
    media, faces = (_fields(tree, str(name), count) for name, count in zip(lists.values(), (3, 12), strict=True))
    if media.keys() != faces.keys():
        crop = min(media.keys() ^ faces.keys())
        raise UserError(
            str(tree.root),
            f"{crop} is in only one of {' and '.join(map(str, lists.values()))}; take all lists from one copy",
        )
    numbers = _as_numbers([media[name] for name in media], tree.path(str(lists["face_tid_mid"])))
    places = _as_numbers([faces[name] for name in media], tree.path(str(lists["name_5pts_score"])))
    ids, confidence = numbers.astype(np.int64), places[:, 10]
    if (ids != numbers).any() or (ids < 0).any() or (confidence < 0).any():
        raise UserError(
            str(tree.root), "templates and media must have whole numbers, and a detector's score cannot be below 0"
        )
    scores = [faces[name][10] for name in media]
    return _CropLists(list(media), ids[:, 0], ids[:, 1], places[:, :10].reshape(-1, 5, 2), scores)


def _fields(tree: Tree, name: str, count: int) -> dict[str, list[str]]:
    """Read a list of crops: the fields after the name of each."""
    fields_of: dict[str, list[str]] = {}
    for number, line in tree.lines(name):
        crop, *values = line.split()
        if len(values) != count - 1 or crop in fields_of:
            fault = f"names {printable(crop)} again" if crop in fields_of else f"must have {count} fields"
            raise UserError(f"{tree.path(name)}, line {number}", fault)
        fields_of[crop] = values
    if not fields_of:
        raise UserError(str(tree.path(name)), "is empty")
    return fields_of


def _as_numbers(rows: list[list[str]], path: Path) -> NDArray[np.float64]:
    try:
        values = np.array(rows, np.float64)
    except ValueError as error:
        raise UserError(str(path), f"has non-numbers after a name: {error}") from None
    if not np.isfinite(values).all():
        raise UserError(str(path), "has numbers that are not finite")
    return values


def _files(tree: Tree, crops: _CropLists, layout: Layout) -> tuple[dict[str, str], tuple[SkippedFile, ...]]:
    """Return the files of the crops by their names in the lists, and the crops without a file or a list entry."""
    paths = {file.rpartition("/")[2]: file for file in tree.files if f"/{file}".split("/")[-2] == CROPS}
    listed, files, skipped = set(crops.names), {}, []
    for name, file in paths.items():
        if ending_of(file) not in pictures.ENDINGS:
            continue
        fault = fault_of_file(tree.path(file), file, tree.root, pictures.ENDINGS)
        if name not in listed or fault is not None:
            skipped.append(SkippedFile(printable(file), fault or "it is in no list"))
        else:
            files[name] = file
    skipped += [
        SkippedFile(printable(name), "it is in a list, but missing") for name in crops.names if name not in paths
    ]
    if not files:
        crop = f"{CROPS}/{printable(crops.names[0])}"
        raise tree.mismatch(f"contains none of the crops in the lists of {layout.title}: searched for {crop}")
    return files, tuple(skipped)


def _persons(tree: Tree, name: str) -> NDArray[np.int32]:
    """Read templates and persons from the first two columns of a table; a template may have several lines."""
    rows = []
    for index, (number, line) in enumerate(tree.lines(name)):
        fields = [cell.strip(' "') for cell in line.split(",")[:2]]
        if index == 0 and not fields[0].isdecimal():
            continue  # header of the table
        if len(fields) < 2 or not all(cell.isdecimal() and len(cell) < 10 for cell in fields):
            raise UserError(f"{tree.path(name)}, line {number}", "must start with a template and a person, as numbers")
        rows.append((int(fields[0]), int(fields[1])))
    if not rows:
        raise UserError(str(tree.path(name)), "does not name a template")
    return np.array(list(dict.fromkeys(rows)), np.int32)


def persons_of_templates(lists: TemplateLists, tree: Tree) -> dict[int, int]:
    """Return the person of each template, as far as lists contain it."""
    whose: dict[int, int] = {}
    tables = [*lists.galleries.values(), *(() if lists.probes is None else (lists.probes,))]
    for template, person in (row for table in tables for row in table.tolist()):
        if whose.setdefault(template, person) != person:
            raise UserError(
                str(tree.root),
                f"has lists in which template {template} is of {whose[template]} and of"
                f" {person}; take all lists from one copy",
            )
    return whose


def _check_pairs(lists: TemplateLists, whose: Mapping[int, int], tree: Tree, short: str) -> None:
    """Refuse a list of pairs that contradicts the identities of the templates."""
    if lists.pairs is None or not whose:
        return
    most = int(max(lists.pairs[:, :2].max(), max(whose)))
    if most >= 1 << 26:
        raise UserError(str(tree.root), f"has a template with the number {most}, above the largest allowed")
    person = np.full(most + 1, -1, np.int32)
    person[list(whose)] = list(whose.values())
    first_person, second_person = person[lists.pairs[:, 0]], person[lists.pairs[:, 1]]
    wrong = np.flatnonzero(
        (first_person >= 0) & (second_person >= 0) & ((first_person == second_person) != (lists.pairs[:, 2] == 1))
    )
    if len(wrong):
        first, second, same = lists.pairs[wrong[0]].tolist()
        contradiction = (
            "one person, and the lists of galleries and probes two" if same else "two people, and these lists one"
        )
        place = f"{tree.path(str(find_list(tree, f'{short}_template_pair_label.txt')))}, line {wrong[0] + 1}"
        raise UserError(place, f"says that templates {first} and {second} are {contradiction}")


def notes_of(lists: TemplateLists, templates: int) -> tuple[str, ...]:
    """Return a note with the numbers of templates, of pairs, and of lines in the other lists."""
    parts = [format_count(templates, "template")]
    if lists.pairs is not None:
        parts.append(f"{len(lists.pairs):,} pairs of them, {int(lists.pairs[:, 2].sum()):,} of one person")
    for name, table in lists.tables.items():
        if table is not lists.pairs:
            parts.append(f"{len(table):,} in {name.replace('-', ' ')}")
    if not lists.tables:
        return (
            parts[0],
            "no list of pairs, galleries or probes found next to the crops, so they cannot be evaluated",
        )
    return (", ".join(parts),)


def _pack(short: str, galleries: tuple[str, str], root: Path) -> None:
    """Write a small copy of three people with two templates each: two crops of one medium, and one of another."""
    from fedvisage.datasets.small_copies import render_person  # needs the renderer

    media, faces, crops = [], [], root / CROPS
    crops.mkdir(parents=True)
    (root / "meta").mkdir()
    for number in range(9):
        person, turn = divmod(number, 3)
        images, points = render_person(person, "bonafide")
        Image.fromarray(images[turn]).save(crops / f"{number + 1}.jpg", quality=92)
        media.append(f"{number + 1}.jpg {2 * person + 1 + (turn == 2)} {10 * person + (turn == 2)}\n")
        numbers = " ".join(f"{value:.3f}" for value in points[turn].ravel().tolist())
        faces.append(f"{number + 1}.jpg {numbers} 0.9{number}\n")
    pairs = ((1, 2, 1), (1, 4, 0), (3, 4, 1), (3, 6, 0), (5, 6, 1), (5, 2, 0))
    head = "TEMPLATE_ID,SUBJECT_ID\r\n"
    texts = {
        "face_tid_mid.txt": "".join(media),
        "name_5pts_score.txt": "".join(faces),
        "template_pair_label.txt": "".join(f"{first} {second} {same}\n" for first, second, same in pairs),
        f"1N_gallery_{galleries[0]}.csv": f"{head}1,100\r\n3,101\r\n",
        f"1N_gallery_{galleries[1]}.csv": f"{head}5,102\r\n",
        "1N_probe_mixed.csv": f"{head}2,100\r\n4,101\r\n6,102\r\n",
    }
    for name, text in texts.items():
        (root / "meta" / f"{short}_{name}").write_bytes(text.encode())


def _layout(letter: str, galleries: tuple[str, str], counts: tuple[int, int], page: str) -> Layout:
    short = f"ijb{letter}"
    return Layout(
        kind=f"ijb-{letter}",
        title=f"IJB-{letter.upper()}",
        page=page,
        expects=f"""\
loose_crop/1.jpg                       crops, which are aligned by the five points that came with them
meta/{short}_face_tid_mid.txt           1.jpg 1 69544: a crop, its template, its medium
meta/{short}_name_5pts_score.txt        1.jpg, ten numbers, how sure a detector was
meta/{short}_template_pair_label.txt    1 2 0: two templates, and whether they are of one person
meta/{short}_1N_gallery_{{{",".join(galleries)}}}.csv, {short}_1N_probe_mixed.csv""",
        scan=scan,
        sign=r"(?:^|/)[0-9]+$",
        list_beside=f"meta/{short}_face_tid_mid.txt",
        benchmark=True,
        points=True,
        by_points=True,
        counts=counts,
        columns=COLUMNS,
        pack=partial(_pack, short, galleries),
    )


NIST = "https://www.nist.gov/programs-projects/face-challenges"
B = _layout("b", ("S1", "S2"), (1_845, 227_630), NIST)
C = _layout("c", ("G1", "G2"), (3_531, 469_375), NIST)
