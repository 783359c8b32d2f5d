"""RFW: four lists of pairs, one for each group, of photographs in one set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from fedvisage.data.pairs import image_of
from fedvisage.datasets.people.album import Album, Shot
from fedvisage.datasets.people.benchmarks import benchmark_album
from fedvisage.datasets.people.layout import Layout, Pattern, Says, shots_of
from fedvisage.datasets.people.lists import listed_as_lfw, named
from fedvisage.datasets.people.points import points_of
from fedvisage.datasets.scanners.example import Clip, Text
from fedvisage.datasets.scanners.grammar import Grammar
from fedvisage.datasets.scanners.tree import walk, without_ending

RACES = ("African", "Asian", "Caucasian", "Indian")

_RFW = Grammar(
    "{race}/{person}/{again}_{number}", race="|".join(RACES), person="[^/]+", again="[^/]+", number="[0-9]{4}"
)


def _rfw(fields: Mapping[str, str]) -> Says | str:
    if fields["person"] != fields["again"]:
        return "its name and its folder's are of two people"
    whose = f"{fields['race']}-{fields['person']}"
    return Says(whose, fields["race"].lower(), image_of(whose, int(fields["number"])))


def _scan_rfw(layout: Layout, source: Path) -> Album:
    """Read RFW: a list for each race, and one of all with a fold of each race in every fold."""
    tree = walk(source)
    shots, skipped = shots_of(layout, tree, Pattern(_RFW, _rfw))
    lists = {race: name for race in RACES if (name := named(tree, f"{race}_pairs.txt"))}
    pairs = {race.lower(): listed_as_lfw(tree, name, f"{race}-") for race, name in lists.items()}
    if len({len(folds) for folds in pairs.values()}) == 1 and len(pairs) > 1:
        pairs[""] = [[pair for some in fold for pair in some] for fold in zip(*pairs.values(), strict=True)]
    points = {
        (race, key): where
        for race in RACES
        if (name := named(tree, f"{race}_lmk.txt"))
        for key, where in points_of(tree, [name]).items()
    }
    shots = [replace(one, points=points.get(_key(one))) for one in shots]
    return benchmark_album(layout, shots, skipped, pairs)


def _key(shot: Shot) -> tuple[str, str]:
    race, person, file = PurePosixPath(without_ending(shot.original)).parts[-3:]
    return race, f"{person}/{file}"


LAYOUT = Layout(
    kind="rfw",
    title="RFW",
    page="http://www.whdeng.cn/RFW/testing.html",
    expects="""\
test/data/{African,Asian,Caucasian,Indian}/m.0abc/m.0abc_0001.jpg
test/txts/African/African_pairs.txt    four lists of pairs, in one set
test/txts/African/African_lmk.txt      five points: --boxes dataset aligns by them""",
    scan=_scan_rfw,
    sign=r"(?:African|Asian|Caucasian|Indian)/([^/]+)/\1_[0-9]{4}$",
    benchmark=True,
    points=True,
    counts=(11_416, 44_332),
    example=(
        *(
            Clip(f"test/data/{race}/m.0{person}/m.0{person}_{number:04d}.jpg", 2 * at + person)
            for at, race in enumerate(RACES) for person in (0, 1) for number in (1, 2)
        ),
        *(
            Text(f"test/txts/{race}/{race}_pairs.txt", "m.00\t1\t2\nm.00\t1\tm.01\t1\nm.01\t1\t2\nm.00\t2\tm.01\t2\n")
            for race in RACES
        ),
    ),
)  # fmt: skip
