"""Training sets in folders: VGGFace2, BUPT-BalancedFace, DigiFace-1M, and folders of your own with one per person."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedvisage.base.errors import UserError, printable
from fedvisage.base.files import open_regular
from fedvisage.data.rows import BONA_FIDE, OFFICIAL
from fedvisage.datasets.dataset import NO_GROUPS, Clip, Entry, Grammar, Name, Text
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.folder import ATTACK_FOLDERS, REAL_FOLDERS
from fedvisage.datasets.people.layout import (
    Layout,
    Photograph,
    PhotographList,
    WholeFile,
    find_list,
    list_by_person,
    photographs_of,
    plain_listing,
    points_of,
)
from fedvisage.datasets.report import SkippedFile
from fedvisage.datasets.tree import Tree, fault_of_file, files_below, without_ending
from fedvisage.faces.pictures import ENDINGS

GENDER = "gender"

_VGGFACE2 = Grammar("{split}/{person}/{image}", split="train|test", person="n[0-9]{6}", image="[0-9]{4}_[0-9]{2}")
_BUPT = Grammar("{race}/{person}/{image}", race="African|Asian|Caucasian|Indian", person="[^/]+", image="[^/]+")
_DIGIFACE = Grammar("{person}/{image}", person="[0-9]{1,6}", image="[0-9]{1,3}")


def _scan_vggface2(layout: Layout, source: Path) -> PhotographList:
    tree, photographs, skipped = photographs_of(layout, source)
    people = _read_people(tree)
    notes = () if people else ("no identity_meta.csv: genders are unknown",)
    # A folder and the table must agree on the split of a person.
    for photograph in photographs:
        person = photograph.person.rpartition("/")[2]
        if people and (person not in people or people[person][0] != photograph.extra[OFFICIAL]):
            fault = "does not name it" if person not in people else f"says {people[person][0]}"
            raise UserError(str(source), f"{person} is in {photograph.extra[OFFICIAL]}, but identity_meta.csv {fault}")
    lists = [name for part in ("train", "test") if (name := find_list(tree, f"loose_landmark_{part}.csv"))]
    points = points_of(tree, lists) if lists else {}
    photographs = [
        replace(
            photograph,
            extra={**photograph.extra, **({GENDER: people[photograph.person.rpartition("/")[2]][1]} if people else {})},
            points=points.get(without_ending(photograph.name).partition("/")[2]),
        )
        for photograph in photographs
    ]
    return list_by_person(photographs, skipped, notes=notes, columns=layout.columns, expected=layout.counts)


def _parse_vggface2(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    return Entry(BONA_FIDE, fields["person"], extra={OFFICIAL: fields["split"]})


def _read_people(tree: Tree) -> dict[str, tuple[str, str]]:
    """Read the split and the gender of each person; names with commas are quoted."""
    if (name := find_list(tree, "identity_meta.csv")) is None:
        return {}
    lines = tree.lines(name)
    people = {}
    for (number, _), row in zip(lines, csv.reader([line for _, line in lines], skipinitialspace=True), strict=True):
        fields = [cell.strip() for cell in row]
        if number == lines[0][0] and fields[0] == "Class_ID":
            continue
        if len(fields) < 5 or fields[-2] not in ("0", "1") or fields[-1] not in ("f", "m"):
            raise UserError(
                f"{tree.path(name)}, line {number}",
                "must be Class_ID, Name, Sample_Num, Flag, Gender with a flag of 0 or 1 and f or m",
            )
        people[fields[0]] = ("train" if fields[-2] == "1" else "test", fields[-1])
    return people


def _parse_bupt(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    return Entry(BONA_FIDE, f"{fields['race']}/{fields['person']}", group=fields["race"].lower())


def _parse_digiface(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    number = int(fields["person"])
    return Entry(BONA_FIDE, f"{number:06d}", name=f"{number:06d}/{int(fields['image'])}")


VGGFACE2 = Layout(
    kind="vggface2",
    title="VGGFace2",
    page="https://github.com/ox-vgg/vgg_face2",
    expects="""\
{train,test}/n000001/0001_01.jpg
identity_meta.csv                      who is female or male, and in which split
loose_landmark_{train,test}.csv        five points: --boxes dataset aligns by them""",
    names=(Name(_VGGFACE2, _parse_vggface2, "image"),),
    scan=_scan_vggface2,
    sign=r"(?:train|test)/n[0-9]{6}/[0-9]{4}_[0-9]{2}$",
    points=True,
    columns=(OFFICIAL, GENDER),
    counts=(9_131, 3_311_286),
    example=(
        *(Clip(f"data/train/n000002/{number:04d}_01.jpg", 0) for number in (1, 2, 3)),
        *(Clip(f"data/test/n000001/{number:04d}_01.jpg", 1) for number in (1, 2)),
        Text(
            "meta/identity_meta.csv",
            "\ufeffClass_ID, Name, Sample_Num, Flag, Gender\r\n"
            'n000001, "Aa, Bb", 2, 0, m\r\nn000002, "Cc", 3, 1, f\r\n',
        ),
    ),
)

BUPT = Layout(
    kind="bupt-balancedface",
    title="BUPT-BalancedFace",
    page="http://www.whdeng.cn/RFW/Trainingdataste.html",
    expects="race_per_7000/{African,Asian,Caucasian,Indian}/<person>/<image>.jpg",
    names=(Name(_BUPT, _parse_bupt, "image"),),
    scan=plain_listing,
    sign=r"(?:African|Asian|Caucasian|Indian)/([^/]+)/(?!\1_[0-9]{4}$)[^/]+$",
    counts=(28_000, 0),
    example=(
        *(Clip(f"race_per_7000/African/m.01/{number}.jpg", 1) for number in (0, 1)),
        *(Clip(f"race_per_7000/Indian/m.01/{number}.jpg", 3) for number in (0, 1)),
    ),
)

DIGIFACE = Layout(
    kind="digiface",
    title="DigiFace-1M",
    page="https://github.com/microsoft/DigiFace1M",
    expects="subjects_0-1999_72_imgs/0/0.png        rendered faces: 72 of each person, or 5",
    names=(Name(_DIGIFACE, _parse_digiface, "image"),),
    scan=plain_listing,
    sign=r"subjects_[^/]*/[0-9]{1,6}/[0-9]{1,3}$",
    counts=(110_000, 1_220_000),
    example=(
        *(Clip(f"subjects_0-1999_72_imgs/7/{number}.png", 0) for number in (0, 11)),
        *(Clip(f"subjects_100000-133332_5_imgs/100003/{number}.png", 2) for number in (0, 1)),
    ),
)


# Folders of photographs in no published layout, one per person.

GROUPS = "groups.csv"


def _scan_identities(_: Layout, source: Path) -> PhotographList:
    """List the photographs below a folder per person; the first folder below the root names the person."""
    if not source.is_dir():
        raise UserError(str(source), "is not a directory; give a folder of face photographs")
    files: dict[str, Path] = {}
    skipped = []
    for name, path in sorted((path.relative_to(source).as_posix(), path) for path in files_below(source)):
        if name == GROUPS:
            continue
        if fault := fault_of_file(path, name, source, ENDINGS):
            skipped.append(SkippedFile(printable(name), fault))
        else:
            files[name] = path
    if not files:
        raise UserError(str(source), f"contains no photographs ({', '.join(ENDINGS)})")
    if loose := [name for name in files if "/" not in name]:
        raise UserError(
            str(source),
            f"{loose[0]} is not in a folder; put each person's photographs into a folder with the person's name",
        )
    # Folders named real and fake would become two people.
    if {name.partition("/")[0].casefold() for name in files} <= {*REAL_FOLDERS, *ATTACK_FOLDERS}:
        raise UserError(
            str(source),
            "has folders of bona fide images and attacks instead of one folder per person; use `fedvisage data import"
            " folder`",
        )
    groups = _read_groups(source / GROUPS)
    photographs = []
    for name, path in files.items():
        person = name.partition("/")[0]
        photographs.append(Photograph(name, person, WholeFile(path), groups.get(person, NO_GROUPS)))
    return list_by_person(photographs, tuple(skipped))


def _read_groups(path: Path) -> dict[str, str]:
    """Read the group of each person; return no groups if the file is absent."""
    if not path.exists():
        return {}
    try:
        with open(path, newline="", encoding="utf-8", opener=open_regular) as file:
            return {row["person"]: row["group"] for row in csv.DictReader(file)}
    except (KeyError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(str(path), f"must be a table with the columns person,group ({error})") from None


IDENTITIES = Layout(
    kind="identities",
    title="photographs of people, one folder per person",
    page="",
    expects="""\
<person>/<image>.jpg                    any number of photographs of each person
groups.csv                              optional: the columns person,group""",
    scan=_scan_identities,
    distinct=True,
    example=tuple(
        Clip(f"person-{person}/{number}.jpg", person, take=str(number))
        for person in range(1, 5)
        for number in range(1, 4)
    ),
)
