"""Benchmarks in folders with lists of pairs: LFW, CALFW, CPLFW, CFP, AgeDB and RFW."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from fedvisage.base.errors import UserError
from fedvisage.data.lists import Pair, PairList, image_name
from fedvisage.data.rows import BONA_FIDE
from fedvisage.datasets.dataset import DEFAULT_OPTIONS, Clip, Entry, Grammar, Name, Text
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.people.layout import (
    FOLDS,
    Layout,
    Photograph,
    PhotographList,
    cut_into_folds,
    find_list,
    list_by_person,
    photographs_of,
    plain_listing,
    points_of,
    read_lfw_pairs,
    read_two_line_pairs,
)
from fedvisage.datasets.report import SkippedFile
from fedvisage.datasets.tree import Tree, without_ending

_LFW = Grammar("{person}/{again}_{number}", person="[^/]+", again="[^/]+", number="[0-9]{4}")
_FLAT = Grammar("{person}_{number}", person="[^/]+", number="[0-9]{1,4}")
_CFP = Grammar("{person}/{view}/{number}", person="[0-9]{3}", view="frontal|profile", number="[0-9]{2}")
_AGEDB = Grammar("{number}_{person}_{age}_{sex}", number="[0-9]+", person="[^/_]+", age="[0-9]+", sex="[fm]")

_PROFILE = 100
"""Offset of profile numbers in CFP: frontal 1 is 1, profile 1 is 101."""


def benchmark_listing(
    layout: Layout,
    photographs: Sequence[Photograph],
    skipped: tuple[SkippedFile, ...],
    pairs: Mapping[str, PairList],
    *notes: str,
) -> PhotographList:
    """Combine photographs and lists; add a note if there is no list."""
    if not pairs:
        notes = (*notes, "no list of pairs found next to the photographs, so none is written")
    return list_by_person(
        photographs, skipped, pairs=pairs, notes=notes, columns=layout.columns, expected=layout.counts
    )


def _scan_lfw(layout: Layout, source: Path) -> PhotographList:
    tree, photographs, skipped = photographs_of(layout, source)
    name = find_list(tree, "pairs.txt")
    return benchmark_listing(layout, photographs, skipped, {"": read_lfw_pairs(tree, name)} if name else {})


def _parse_lfw(fields: Mapping[str, str], _: ImportOptions) -> Entry | str:
    if fields["person"] != fields["again"]:
        return "its name and its folder give different people"
    return Entry(BONA_FIDE, fields["person"])


def _parse_flat(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    return Entry(BONA_FIDE, fields["person"], name=image_name(fields["person"], int(fields["number"])))


def _number_by_name(photographs: Sequence[Photograph]) -> dict[str, tuple[str, int]]:
    """Return the person and the number of each picture, by its file name in the dataset without ending."""
    people = {}
    for photograph in photographs:
        name, _, number = without_ending(photograph.name).rpartition("/")[2].rpartition("_")
        people[without_ending(photograph.original).rpartition("/")[2]] = name, int(number)
    return people


def _scan_calfw(layout: Layout, source: Path) -> PhotographList:
    """Read CALFW: same-person pairs have the number of their fold, other pairs follow in order without one."""
    tree, photographs, skipped = photographs_of(layout, source)
    if (name := find_list(tree, "pairs_CALFW.txt")) is None:
        return benchmark_listing(layout, photographs, skipped, {})
    folds: dict[int, list[Pair]] = defaultdict(list)
    listed = read_two_line_pairs(tree, name, _number_by_name(photographs))
    for number, pair in listed:
        if number:
            folds[number].append(pair)
    different = cut_into_folds([pair for number, pair in listed if not number], max(1, len(folds)), least=1)
    merged = [
        folds[number] + list(different_pairs) for number, different_pairs in zip(sorted(folds), different, strict=False)
    ]
    note = f"{name} gives no folds for impostor pairs: they are split in list order into folds of equal size"
    return benchmark_listing(layout, photographs, skipped, {"": merged or different}, note)


def _scan_cplfw(layout: Layout, source: Path) -> PhotographList:
    tree, photographs, skipped = photographs_of(layout, source)
    if (name := find_list(tree, "pairs_CPLFW.txt")) is None:
        return benchmark_listing(layout, photographs, skipped, {})
    pairs = [pair for _, pair in read_two_line_pairs(tree, name, _number_by_name(photographs))]
    return benchmark_listing(
        layout, photographs, skipped, {"": cut_into_folds(pairs, FOLDS)}, f"folds of {name} follow its order"
    )


def _parse_cfp(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    number = int(fields["number"]) + (_PROFILE if fields["view"] == "profile" else 0)
    return Entry(BONA_FIDE, fields["person"], name=image_name(fields["person"], number), extra={"view": fields["view"]})


def _scan_cfp(layout: Layout, source: Path) -> PhotographList:
    tree, photographs, skipped = photographs_of(layout, source)
    pairs = {protocol: _read_protocol(tree, protocol) for protocol in ("FF", "FP")}
    return benchmark_listing(layout, photographs, skipped, {name: folds for name, folds in pairs.items() if folds})


def _read_protocol(tree: Tree, protocol: str) -> PairList:
    """Read the folds of a protocol: numbers of two frontal pictures, or in FP of a frontal picture and a profile."""
    lists = [find_list(tree, f"Protocol/Pair_list_{view}.txt") for view in ("F", "P")]
    first, second = (_read_pictures(tree, name) if name else {} for name in (lists[0], lists[protocol == "FP"]))
    folds = []
    for number in range(1, FOLDS + 1):
        pairs: list[Pair] = []
        for kind in ("same", "diff"):
            if (name := find_list(tree, f"Protocol/Split/{protocol}/{number:02d}/{kind}.txt")) is None:
                continue
            for at_line, line in tree.lines(name):
                number_1, _, number_2 = (part.strip() for part in line.partition(","))
                # Names must exist, and the persons must match the file's claim of same or different.
                if number_1 not in first or number_2 not in second:
                    raise UserError(
                        f"{tree.path(name)}, line {at_line}",
                        "does not name two lines of Pair_list_F.txt and Pair_list_P.txt",
                    )
                pair = first[number_1], second[number_2]
                if (pair[0][0] == pair[1][0]) != (kind == "same"):
                    message = (
                        f"is a pair of {'two people' if kind == 'same' else 'one person'}, but the file says {kind}"
                    )
                    raise UserError(f"{tree.path(name)}, line {at_line}", message)
                pairs.append(pair)
        folds += [pairs] if pairs else []
    return folds


def _read_pictures(tree: Tree, name: str) -> dict[str, tuple[str, int]]:
    """Read the picture of each number in a list."""
    by_number = {}
    for line_number, line in tree.lines(name):
        number, _, path = line.replace("\t", " ").partition(" ")
        if (parsed := _CFP.parse(without_ending(path.strip()))) is None:
            raise UserError(
                f"{tree.path(name)}, line {line_number}", "must be a number and a path such as 001/frontal/01.jpg"
            )
        entry = _parse_cfp(parsed.fields, DEFAULT_OPTIONS)
        by_number[number] = entry.subject, int(entry.name.rpartition("_")[2])
    return by_number


def _parse_agedb(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    return Entry(BONA_FIDE, fields["person"], extra={"age": fields["age"], "gender": fields["sex"]})


LFW = Layout(
    kind="lfw",
    title="LFW",
    page="http://vis-www.cs.umass.edu/lfw/",
    expects="""\
lfw/Aaron_Eckhart/Aaron_Eckhart_0001.jpg
pairs.txt""",
    names=(Name(_LFW, _parse_lfw, "image"),),
    scan=_scan_lfw,
    sign=r"(?:^|/)([^/]+)/\1_[0-9]{4}$",
    list_beside="pairs.txt",
    benchmark=True,
    counts=(5_749, 13_233),
    example=(
        *(Clip(f"lfw/Ann_Ay/Ann_Ay_{number:04d}.jpg", 0) for number in (1, 2, 3)),
        *(Clip(f"lfw/Bea/Bea_{number:04d}.jpg", 1) for number in (1, 2)),
        Text("pairs.txt", "2\t1\nAnn_Ay\t1\t2\nAnn_Ay\t1\tBea\t1\nBea\t1\t2\nAnn_Ay\t3\tBea\t2\n"),
    ),
)

CALFW = Layout(
    kind="calfw",
    title="CALFW",
    page="http://whdeng.cn/CALFW/",
    expects="""\
aligned images/Aaron_Eckhart_0001.jpg  or images/
pairs_CALFW.txt                        two lines a pair: a file, and the fold of a pair of one person or 0""",
    names=(Name(_FLAT, _parse_flat, "image"),),
    scan=_scan_calfw,
    sign=r"_[0-9]{1,4}$",
    list_beside="pairs_CALFW.txt",
    benchmark=True,
    example=(
        *(Clip(f"images/Ann_Ay_{number:04d}.jpg", 0) for number in (1, 2, 3)),
        *(Clip(f"images/Bea_{number:04d}.jpg", 1) for number in (1, 2)),
        Text(
            "pairs_CALFW.txt",
            "Ann_Ay_0001.jpg 1\nAnn_Ay_0002.jpg 1\nBea_0001.jpg 2\nBea_0002.jpg 2\n"
            "Ann_Ay_0001.jpg 0\nBea_0001.jpg 0\nAnn_Ay_0003.jpg 0\nBea_0002.jpg 0\n",
        ),
    ),
)

CPLFW = Layout(
    kind="cplfw",
    title="CPLFW",
    page="http://whdeng.cn/CPLFW/",
    expects="""\
aligned images/Aaron_Eckhart_1.jpg     or images/
pairs_CPLFW.txt                        two lines a pair: a file, and 1 for one person or 0""",
    names=(Name(_FLAT, _parse_flat, "image"),),
    scan=_scan_cplfw,
    sign=r"_[0-9]{1,4}$",
    list_beside="pairs_CPLFW.txt",
    benchmark=True,
    example=(
        *(Clip(f"images/Ann_Ay_{number}.jpg", 0) for number in (1, 2, 3)),
        *(Clip(f"images/Bea_{number}.jpg", 1) for number in (1, 2)),
        Text(
            "pairs_CPLFW.txt",
            "Ann_Ay_1.jpg 1\nAnn_Ay_2.jpg 1\nAnn_Ay_1.jpg 0\nBea_1.jpg 0\n"
            "Bea_1.jpg 1\nBea_2.jpg 1\nAnn_Ay_3.jpg 0\nBea_2.jpg 0\n",
        ),
    ),
)

CFP = Layout(
    kind="cfp",
    title="CFP",
    page="http://www.cfpw.io/",
    expects="""\
Data/Images/001/{frontal,profile}/01.jpg
Protocol/Pair_list_{F,P}.txt  Protocol/Split/{FF,FP}/01/{same,diff}.txt""",
    names=(Name(_CFP, _parse_cfp, "image"),),
    scan=_scan_cfp,
    sign=r"[0-9]{3}/(?:frontal|profile)/[0-9]{2}$",
    benchmark=True,
    columns=("view",),
    counts=(500, 7_000),
    example=(
        *(
            Clip(f"Data/Images/{person}/frontal/{number:02d}.jpg", int(person))
            for person in ("001", "002")
            for number in (1, 2)
        ),
        *(Clip(f"Data/Images/{person}/profile/01.jpg", int(person)) for person in ("001", "002")),
        Text(
            "Protocol/Pair_list_F.txt",
            "".join(
                f"{number} ../Data/Images/{name}.jpg\n"
                for number, name in enumerate(
                    ("001/frontal/01", "001/frontal/02", "002/frontal/01", "002/frontal/02"), 1
                )
            ),
        ),
        Text("Protocol/Pair_list_P.txt", "1 ../Data/Images/001/profile/01.jpg\n2 ../Data/Images/002/profile/01.jpg\n"),
        Text("Protocol/Split/FF/01/same.txt", "1,2\n"),
        Text("Protocol/Split/FF/01/diff.txt", "1,3\n"),
        Text("Protocol/Split/FF/02/same.txt", "3,4\n"),
        Text("Protocol/Split/FF/02/diff.txt", "2,4\n"),
        Text("Protocol/Split/FP/01/same.txt", "1,1\n"),
        Text("Protocol/Split/FP/01/diff.txt", "1,2\n"),
        Text("Protocol/Split/FP/02/same.txt", "4,2\n"),
        Text("Protocol/Split/FP/02/diff.txt", "3,1\n"),
    ),
)

AGEDB = Layout(
    kind="agedb",
    title="AgeDB",
    page="https://ibug.doc.ic.ac.uk/resources/agedb/",
    expects="0_MariaCallas_35_f.jpg                 AgeDB-30's pairs are in its .bin file",
    names=(Name(_AGEDB, _parse_agedb, "image"),),
    scan=plain_listing,
    sign=r"(?:^|/)[0-9]+_[^/_]+_[0-9]+_[fm]$",
    benchmark=True,
    columns=("age", "gender"),
    counts=(570, 16_488),
    example=(
        *(Clip(f"{number}_AnnAy_{age}_f.jpg", 0) for number, age in ((0, 20), (1, 61))),
        *(Clip(f"{number}_BobBe_{age}_m.jpg", 1) for number, age in ((2, 33), (3, 34))),
    ),
)


# RFW: photographs in one set, with one list of pairs for each of four groups.

RACES = ("African", "Asian", "Caucasian", "Indian")

_RFW = Grammar(
    "{race}/{person}/{again}_{number}", race="|".join(RACES), person="[^/]+", again="[^/]+", number="[0-9]{4}"
)


def _parse_rfw(fields: Mapping[str, str], _: ImportOptions) -> Entry | str:
    if fields["person"] != fields["again"]:
        return "its name and its folder give different people"
    whose = f"{fields['race']}-{fields['person']}"
    return Entry(BONA_FIDE, whose, group=fields["race"].lower(), name=image_name(whose, int(fields["number"])))


def _scan_rfw(layout: Layout, source: Path) -> PhotographList:
    """Read RFW: one list per race, and a combined list whose folds join one fold of each race."""
    tree, photographs, skipped = photographs_of(layout, source)
    lists = {race: name for race in RACES if (name := find_list(tree, f"{race}_pairs.txt"))}
    pairs = {race.lower(): read_lfw_pairs(tree, name, f"{race}-") for race, name in lists.items()}
    if len({len(folds) for folds in pairs.values()}) == 1 and len(pairs) > 1:
        pairs[""] = [[pair for part in fold for pair in part] for fold in zip(*pairs.values(), strict=True)]
    points = {
        (race, key): five_points
        for race in RACES
        if (name := find_list(tree, f"{race}_lmk.txt"))
        for key, five_points in points_of(tree, [name]).items()
    }
    parts = [PurePosixPath(without_ending(photograph.original)).parts[-3:] for photograph in photographs]
    photographs = [
        replace(photograph, points=points.get((race, f"{person}/{file}")))
        for photograph, (race, person, file) in zip(photographs, parts, strict=True)
    ]
    return benchmark_listing(layout, photographs, skipped, pairs)


LAYOUT = Layout(
    kind="rfw",
    title="RFW",
    page="http://www.whdeng.cn/RFW/testing.html",
    expects="""\
test/data/{African,Asian,Caucasian,Indian}/m.0abc/m.0abc_0001.jpg
test/txts/African/African_pairs.txt    four lists of pairs, in one set
test/txts/African/African_lmk.txt      five points: --boxes dataset aligns by them""",
    names=(Name(_RFW, _parse_rfw, "image"),),
    scan=_scan_rfw,
    sign=r"(?:African|Asian|Caucasian|Indian)/([^/]+)/\1_[0-9]{4}$",
    benchmark=True,
    points=True,
    counts=(11_416, 44_332),
    example=(
        *(
            Clip(f"test/data/{race}/m.0{person}/m.0{person}_{number:04d}.jpg", 2 * at + person)
            for at, race in enumerate(RACES)
            for person in (0, 1)
            for number in (1, 2)
        ),
        *(
            Text(f"test/txts/{race}/{race}_pairs.txt", "m.00\t1\t2\nm.00\t1\tm.01\t1\nm.01\t1\t2\nm.00\t2\tm.01\t2\n")
            for race in RACES
        ),
    ),
)
