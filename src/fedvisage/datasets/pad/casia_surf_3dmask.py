"""CASIA-SURF 3DMask: 48 people, and each of their faces as a mask with three kinds of decoration.

Yu et al., "NAS-FAS: Static-dynamic central difference network search for face anti-spoofing", IEEE TPAMI 2021. A folder
is a person and a recording day; below ``Fake`` a second folder is the decoration. The dataset's list has 1 for bona
fide and -1 for attacks.
"""

from collections.abc import Mapping

from fedvisage.datasets.dataset import Clip, Entry, Grammar, Name, Text
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.item import Item
from fedvisage.datasets.pad.lists import LabelLists
from fedvisage.datasets.pad.scanner import Scanner

REAL = Grammar("Real/{person}/{clip}", person="[0-9]{4}_[0-9]{3}", clip="[1-9][0-9]?")
FAKE = Grammar("Fake/{person}/{decoration}/{clip}", person="[0-9]{4}_[0-9]{3}", decoration="[123]", clip="[1-9][0-9]?")


def _parse_real(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    return Entry("bonafide", fields["person"], extra={"clip": fields["clip"]})


def _parse_fake(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    extra = {"decoration": fields["decoration"], "clip": fields["clip"]}
    return Entry("mask_rigid", fields["person"], extra=extra)


def _parse_line(line: str) -> tuple[str, str] | None:
    label, comma, name = line.partition(",")
    return (name.strip(), label.strip()) if comma else None


def _listed_name(item: Item) -> str:
    return item.video.replace("/", "_")


SCANNER = Scanner(
    kind="casia-surf-3dmask",
    title="CASIA-SURF 3DMask",
    page="https://github.com/liuajian/CASIA-FAS-Dataset",
    expects="""\
Real/0927_013/{1,15,16,17,22,23}.MOV
Fake/0927_013/{1,2,3}/{1,2,3,4,5,6}.MOV
CASIA_SURF_3DMask_list.txt           compared with the names where it is there""",
    names=(Name(REAL, _parse_real), Name(FAKE, _parse_fake)),
    columns=("decoration", "clip"),
    counts={"all": (288, 858)},
    lists=LabelLists(r"CASIA_SURF_3DMask_list\.txt", _parse_line, lambda label: label == "1", _listed_name),
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
