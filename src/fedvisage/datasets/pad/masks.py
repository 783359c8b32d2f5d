"""Masks: HiFiMask, HKBU-MARs V2 and 3DMAD.

CASIA-SURF HiFiMask: 75 people of three skin tones and masks of their faces in three materials; folders of frames. Liu
et al., "Contrastive context-aware learning for 3D high-fidelity mask face presentation attack detection", IEEE TIFS
2022. A folder's name is skin, subject, type, scene, light and sensor; type 0 is bona fide. Only the lists of protocol 1
name the training people; lists have 0 for bona fide.

HKBU-MARs V2: 12 people and masks of their faces, recorded by seven cameras in six lights. Liu et al., "3D mask face
anti-spoofing with remote photoplethysmography", ECCV 2016. The name of a video is camera, light and person; the person
has one digit in some names, and must match the folder.

3DMAD: 17 people, recorded by a Kinect in three sessions; in the third, masks of their faces are worn. Erdogmus and
Marcel, "Spoofing in 2D face recognition with 3D masks and anti-spoofing with Kinect", BTAS 2013. The name of a file is
subject, session and recording. Only the colour frames of a file are read, not its depth and eye positions.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from fedvisage.datasets.dataset import Clip, Entry, Grammar, Listing, Name, Text
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.lists import LabelLists, stem_of
from fedvisage.datasets.pad.scanner import Scanner, scan_by_name
from fedvisage.datasets.tree import Tree

FOLDER = Grammar(
    "{skin}_{subject}_{type}_{scene}_{light}_{sensor}",
    skin="[123]",
    subject="[0-9]{2}",
    type="[0-3]",
    scene="[1-6]",
    light="[0-6]",
    sensor="[0-8]",
)
MATERIALS = {"1": "transparent", "2": "plaster", "3": "resin"}
LISTS = r"CASIA_HiFiMask@p[0-9.]+_(?:image|video)_(?:train|dev|test)\.txt"
_LINE = re.compile(r"(?:.*/)?([1-3]_[0-9]{2}(?:_[0-9]){4})(?:/[^/\s]+)?\s+(\S+)", re.ASCII)
_FIRST_PROTOCOL = re.compile(r"CASIA_HiFiMask@p1_(?:image|video)_(train|dev|test)\.txt", re.IGNORECASE)


def _parse_hifimask(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    extra = {name: fields[name] for name in ("skin", "scene", "light", "sensor")}
    person = f"{fields['skin']}-{fields['subject']}"
    if fields["type"] == "0":
        return Entry("bonafide", person, extra=extra)
    return Entry("mask_rigid", person, extra=extra | {"material": MATERIALS[fields["type"]]})


def _parse_hifimask_line(line: str) -> tuple[str, str] | None:
    match = _LINE.fullmatch(line)
    return (match[1], match[2]) if match else None


def scan_hifimask(scanner: Scanner, tree: Tree, options: ImportOptions) -> Listing:
    """Scan by names, and read the part of each folder from the lists of protocol 1."""
    listing = scan_by_name(scanner, tree, options)
    parts = {}
    for file in tree.files:
        match = _FIRST_PROTOCOL.fullmatch(PurePosixPath(file).name)
        for _, line in tree.lines(file) if match else ():
            if match and (entry := _parse_hifimask_line(line)):
                parts[entry[0]] = match[1].lower()
    return replace(listing, items=[replace(item, split=parts.get(stem_of(item))) for item in listing.items])


HIFIMASK = Scanner(
    kind="hifimask",
    title="CASIA-SURF HiFiMask",
    page="https://github.com/liuajian/CASIA-FAS-Dataset",
    expects="""\
Data/1_01_0_1_0_0/0001.png …                    skin_subject_type_scene_light_sensor; type 0 live
protocol/CASIA_HiFiMask@p1_video_train.txt …    compared with the names where they are there; p1 has the parts""",
    names=(Name(FOLDER, _parse_hifimask, "frames"),),
    columns=("skin", "scene", "light", "sensor", "material"),
    counts={"all": (13_527, 40_696)},
    lists=LabelLists(LISTS, _parse_hifimask_line, lambda label: label == "0"),
    beside=("*protocol*/*",),
    scan=scan_hifimask,
    example=(
        Clip("Data/1_01_0_1_0_0/0001.png", 1),
        Clip("Data/1_01_0_1_0_0/0002.png", 1),
        Clip("Data/1_01_1_1_3_2/0001.png", 1, "mask_rigid"),
        Clip("Data/1_01_2_4_0_5/0001.png", 1, "mask_rigid"),
        Clip("Data/2_07_0_2_5_8/0001.png", 2),
        Clip("Data/2_07_3_2_5_8/0001.png", 2, "mask_rigid"),
        Clip("Data/3_01_0_6_1_1/0001.png", 3),
        Clip("Data/3_01_3_6_1_1/0001.png", 3, "mask_rigid"),
        Text(
            "protocol/CASIA_HiFiMask@p1_video_train.txt",
            "CASIA_HiFiMask/Data/1_01_0_1_0_0 0\n"
            "CASIA_HiFiMask/Data/1_01_1_1_3_2 1\n"
            "CASIA_HiFiMask/Data/1_01_2_4_0_5 1\n",
        ),
        Text(
            "protocol/CASIA_HiFiMask@p1_video_dev.txt",
            "CASIA_HiFiMask/Data/2_07_0_2_5_8 0\nCASIA_HiFiMask/Data/2_07_3_2_5_8 1\n",
        ),
        Text(
            "protocol/CASIA_HiFiMask@p1_image_test.txt",
            "CASIA_HiFiMask/Data/3_01_0_6_1_1/0001.png 0\nCASIA_HiFiMask/Data/3_01_3_6_1_1/0001.png 1\n",
        ),
    ),
)

PERSON = "0?[1-9]|1[0-2]"
VIDEO = Grammar(
    "{class}/{folder}/{camera}_{light}_{subject}",
    folder=PERSON,
    camera="0[1-7]",
    light="0[1-6]",
    subject=PERSON,
    **{"class": "real|attack"},
)


def _parse_hkbu(fields: Mapping[str, str], _: ImportOptions) -> Entry | str:
    person = int(fields["subject"])
    if person != int(fields["folder"]):
        return "videos in another person's folder"
    species = "bonafide" if fields["class"] == "real" else "mask_rigid"
    return Entry(species, f"{person:02d}", extra={"camera": fields["camera"], "light": fields["light"]})


HKBU_MARS_V2 = Scanner(
    kind="hkbu-mars-v2",
    title="HKBU-MARs V2",
    page="https://rds.comp.hkbu.edu.hk/mars/",
    expects="""\
{real,attack}/01/07_06_01.avi    camera_light_person, in the folder of the person""",
    names=(Name(VIDEO, _parse_hkbu),),
    columns=("camera", "light"),
    counts={"all": (504, 504)},
    example=(
        Clip("real/09/07_06_09.avi", 1),
        Clip("attack/9/07_06_9.avi", 1, "mask_rigid"),
        Clip("real/12/01_02_12.avi", 2),
        Clip("attack/12/03_04_12.avi", 2, "mask_rigid"),
    ),
)

FILE = Grammar("{subject}_{session}_{recording}", subject="0[1-9]|1[0-7]", session="0[1-3]", recording="0[1-5]")
WITH_MASKS = "03"


def _parse_3dmad(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    species = "mask_rigid" if fields["session"] == WITH_MASKS else "bonafide"
    return Entry(species, fields["subject"], extra={"session": fields["session"]})


THREE_DMAD = Scanner(
    kind="3dmad",
    title="3DMAD",
    page="https://www.idiap.ch/en/scientific-research/data/3dmad",
    expects="""\
01_01_01.hdf5 … 17_03_05.hdf5    subject_session_recording; Color_Data in each; session 03 has the masks""",
    names=(Name(FILE, _parse_3dmad, "arrays"),),
    columns=("session",),
    counts={"all": (170, 85)},
    example=(
        Clip("Data/01_01_01.hdf5", 1),
        Clip("Data/01_03_01.hdf5", 1, "mask_rigid"),
        Clip("Data/12_02_05.hdf5", 2),
        Clip("Data/12_03_02.hdf5", 2, "mask_rigid"),
    ),
)
