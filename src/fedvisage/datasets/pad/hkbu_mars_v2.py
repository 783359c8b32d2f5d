"""HKBU-MARs V2: 12 people and masks of their faces, recorded by seven cameras in six lights.

Liu et al., "3D mask face anti-spoofing with remote photoplethysmography", ECCV 2016. The name of a video is camera,
light and person; the person has one digit in some names, and must match the folder.
"""

from collections.abc import Mapping

from fedvisage.datasets.dataset import Clip, Entry, Grammar, Name
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.scanner import Scanner

PERSON = "0?[1-9]|1[0-2]"
VIDEO = Grammar(
    "{class}/{folder}/{camera}_{light}_{subject}",
    folder=PERSON,
    camera="0[1-7]",
    light="0[1-6]",
    subject=PERSON,
    **{"class": "real|attack"},
)


def _parse_name(fields: Mapping[str, str], _: ImportOptions) -> Entry | str:
    person = int(fields["subject"])
    if person != int(fields["folder"]):
        return "videos in another person's folder"
    species = "bonafide" if fields["class"] == "real" else "mask_rigid"
    return Entry(species, f"{person:02d}", extra={"camera": fields["camera"], "light": fields["light"]})


SCANNER = Scanner(
    kind="hkbu-mars-v2",
    title="HKBU-MARs V2",
    page="https://rds.comp.hkbu.edu.hk/mars/",
    expects="""\
{real,attack}/01/07_06_01.avi    camera_light_person, in the folder of the person""",
    names=(Name(VIDEO, _parse_name),),
    columns=("camera", "light"),
    counts={"all": (504, 504)},
    example=(
        Clip("real/09/07_06_09.avi", 1),
        Clip("attack/9/07_06_9.avi", 1, "mask_rigid"),
        Clip("real/12/01_02_12.avi", 2),
        Clip("attack/12/03_04_12.avi", 2, "mask_rigid"),
    ),
)
