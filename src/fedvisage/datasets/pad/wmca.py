"""WMCA and HQ-WMCA.

WMCA: 72 people, recorded by several cameras; prints, replays, glasses, and paper, silicone and rigid masks. George et
al., "Biometric face presentation attack detection with multi-channel convolutional neural network", IEEE TIFS 2020. The
name of a file is client, session, presenter, type and instrument; the type alone decides the class. The subject is the
client, even if another person wears the client's mask, so that a mask and its original stay together. Protocol lists
come in three forms; the list grandtest assigns files to parts. Colour is read from the cropped frames if they exist,
else from the recordings of the station.

HQ-WMCA: 51 people, recorded by many cameras; ten kinds of attacks, from prints to tattoos and make-up. Mostaani et al.,
"The high-quality wide multi-channel attack (HQ-WMCA) database", 2020. The name of a file is site, session, client,
presenter, type, its kind, instrument and trial; the type decides the class. Only the colour stream is read. Lists of
protocols, and with them the parts of the files, are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from fedvisage.datasets.dataset import OTHERS, Clip, Entry, Grammar, Listing, Name, Text
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.lists import LabelLists, stem_of
from fedvisage.datasets.pad.scanner import Scanner, scan_by_name
from fedvisage.datasets.tree import Tree, without_ending

_ARRAYS = "Frame_{}/array"
_DATE = "[0-9]{2}[.][0-9]{2}[.][0-9]{2}"
_NAME = "{date}/{client}_{session}_{presenter}_{type}_{instrument}"
_FIELDS = {
    "date": _DATE,
    "client": "[0-9]{3}",
    "session": "[0-9]{2}",
    "presenter": "[0-9]{3}",
    "type": "[0-4]",
    "instrument": "[0-9]{2}",
}
MANY = Grammar(f"preprocessed-face-station_CDIT/{_NAME}", **_FIELDS)
CUT = Grammar(f"preprocessed-face-station_RGB/{_NAME}", **_FIELDS)
STATION = Grammar(f"face-station/{_NAME}", **_FIELDS)
BARE = Grammar(_NAME, **_FIELDS)

TYPES = {"0": "bonafide", "1": "glasses", "2": "mask", "3": "print", "4": "replay"}
RIGID_OF_GLASSES = (2, 13, 14)
REPLAYS_OF_PRINTS = (5, 10, 15)
MASKS = {
    **dict.fromkeys(range(1, 8), "mask_head"),
    **dict.fromkeys(range(8, 12), "mask_paper"),
    **dict.fromkeys(range(12, 18), "mask_rigid"),
    **dict.fromkeys((18, *range(75, 100)), "mask_flexible"),
}
SPLITS = {"train": "train", "dev": "dev", "eval": "test"}
_GRANDTEST = re.compile(r"(?:.*/)?PROTOCOL-grandtest\.csv", re.IGNORECASE)


def species_of(kind: str, instrument: int) -> str | None:
    """Return the species of a type and an instrument, or None if the dataset does not have it."""
    if kind == "1" and instrument in RIGID_OF_GLASSES:
        return "mask_rigid"
    if kind == "2":
        return MASKS.get(instrument)
    if kind == "3" and instrument in REPLAYS_OF_PRINTS:
        return "replay"
    return TYPES[kind]


def _parse_name(fields: Mapping[str, str], _: ImportOptions) -> Entry | str:
    species = species_of(fields["type"], int(fields["instrument"]))
    if species is None:
        return "masks with a number unknown in the dataset"
    extra = {name: fields[name] for name in ("session", "presenter", "type", "instrument")}
    return Entry(species, fields["client"], extra=extra)


def _parse_line(line: str) -> tuple[str, str] | None:
    """Read a line of one of three forms; the header of a table has an empty name."""
    words = [word.strip() for word in line.split(",")]
    if "filepath" in words:
        return "", ""
    if len(words) == 5:  # row number, client, path, part and label
        return _stem(words[2]), words[4]
    if len(words) == 4:  # path, label, description and part
        return _stem(words[0]), words[1]
    path, _, label = line.rpartition(" ")
    return (_stem(path), label) if path and len(words) == 1 else None


def _stem(path: str) -> str:
    name = PurePosixPath(path.strip()).name
    return without_ending(name) if name.endswith((".hdf5", ".h5")) else name


def scan(scanner: Scanner, tree: Tree, options: ImportOptions) -> Listing:
    """Scan by names, and read the part of each file from the list grandtest."""
    if any(CUT.parse(without_ending(file)) for file in tree.files):
        skipped = Name(STATION, lambda _, __: "recordings whose cropped frames are present", "arrays")
        names = tuple(skipped if name.grammar is STATION else name for name in scanner.names)
        scanner = replace(scanner, names=names)
    listing = scan_by_name(scanner, tree, options)
    parts = {}
    for name in tree.files:
        for _, line in tree.lines(name) if _GRANDTEST.fullmatch(name) else ():
            words = [word.strip() for word in line.split(",")]
            part = next((SPLITS[word] for word in reversed(words) if word in SPLITS), None)
            if part and (entry := _parse_line(line)):
                parts[entry[0]] = part
    return replace(listing, items=[replace(item, split=parts.get(stem_of(item))) for item in listing.items])


def _further(number: int) -> tuple[Clip, ...]:
    kinds = (("01_000_0_01", "bonafide"), ("01_000_3_04", "print"), ("01_000_4_02", "replay"))
    place = f"preprocessed-face-station_RGB/26.01.18/{number + 201}"
    return tuple(Clip(f"{place}_{stem}.hdf5", OTHERS + number, species, layout=_ARRAYS) for stem, species in kinds)


SCANNER = Scanner(
    kind="wmca",
    title="WMCA",
    page="https://www.idiap.ch/en/scientific-research/data/wmca",
    expects="""\
[preprocessed-face-station_RGB/]26.01.18/012_01_017_2_83.hdf5     client_session_presenter_type_instrument; type 0 real
[face-station/]26.01.18/012_01_017_2_83.hdf5                      the recordings, where there are no cut-out frames
PROTOCOL-grandtest.csv …                                          compared with the names; grandtest has the parts""",
    names=(
        Name(MANY, lambda _, __: "grey, depth, infrared and thermal arrays", "arrays"),
        Name(CUT, _parse_name, "arrays"),
        Name(STATION, _parse_name, "arrays"),
        Name(BARE, _parse_name, "arrays"),
    ),
    columns=("session", "presenter", "type", "instrument"),
    counts={"all": (347, 1332)},
    lists=LabelLists(r"PROTOCOL-\w+\.csv|WMCA_Grandtest\.txt", _parse_line, lambda label: label in ("0", "bonafide")),
    beside=("*.csv", "*.txt"),
    scan=scan,
    further=_further,
    example=(
        Clip("preprocessed-face-station_RGB/26.01.18/012_01_000_0_00.hdf5", 1, layout=_ARRAYS),
        Clip("preprocessed-face-station_RGB/26.01.18/012_01_017_2_83.hdf5", 1, "mask_flexible", layout=_ARRAYS),
        Clip("preprocessed-face-station_RGB/14.02.18/019_03_033_4_02.hdf5", 2, "replay", layout=_ARRAYS),
        Clip("preprocessed-face-station_RGB/14.02.18/019_01_000_0_01.hdf5", 2, layout=_ARRAYS),
        Clip("preprocessed-face-station_RGB/28.02.18/098_01_000_3_15.hdf5", 3, "replay", layout=_ARRAYS),
        Clip("preprocessed-face-station_RGB/28.02.18/098_01_000_3_04.hdf5", 3, "print", layout=_ARRAYS),
        Clip("preprocessed-face-station_RGB/28.02.18/098_02_000_1_13.hdf5", 3, "mask_rigid", layout=_ARRAYS),
        Text(
            "documentation/PROTOCOL-grandtest.csv",
            "26.01.18/012_01_000_0_00,0,bonafide,train\n26.01.18/012_01_017_2_83,1,attack/3D/flexiblemask,train\n"
            "14.02.18/019_03_033_4_02,1,attack/2D/replay,dev\n14.02.18/019_01_000_0_01,0,bonafide,dev\n"
            "28.02.18/098_01_000_3_15,1,attack/2D/replay,eval\n28.02.18/098_01_000_3_04,1,attack/2D/prints,eval\n"
            "28.02.18/098_02_000_1_13,1,attack/3D/rigidmask,eval\n",
        ),
    ),
)

HQ_SPECIES = {
    "00": "bonafide",
    "01": "glasses",
    "02": "mask_head",
    "03": "print",
    "04": "replay",
    "05": "mask_rigid",
    "06": "mask_flexible",
    "07": "mask_paper",
    "09": "tattoo",
    "10": "makeup",
}
HQ_FILE = Grammar(
    "{date}/{site}_{session}_{client}_{presenter}_{type}_{sub}_{instrument}-{trial}",
    date=_DATE,
    site="[0-9]",
    session="[0-9]{2}",
    client="[0-9]{4}",
    presenter="[0-9]{4}",
    type="|".join(HQ_SPECIES),
    sub="[0-9]{2}",
    instrument="[0-9]{3}",
    trial="[0-9a-f]+",
)


def _parse_hq_name(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    extra = {name: fields[name] for name in ("site", "session", "presenter", "instrument")}
    return Entry(HQ_SPECIES[fields["type"]], fields["client"], extra=extra)


HQ_SCANNER = Scanner(
    kind="hq-wmca",
    title="HQ-WMCA",
    page="https://www.idiap.ch/en/scientific-research/data/hq-wmca",
    expects="""\
19.09.19/1_01_0001_0000_00_00_000-5d63a1f2.h5
         site_session_client_presenter_type_kind_instrument-trial; type 00 is bona fide""",
    names=(Name(HQ_FILE, _parse_hq_name, "arrays"),),
    columns=("site", "session", "presenter", "instrument"),
    counts={"all": (555, 2017)},
    beside=("*.csv",),
    example=(
        Clip("face/19.09.19/1_01_0001_0000_00_00_000-5d63a1f2.h5", 1, layout="stream/color"),
        Clip("face/19.09.19/1_01_0001_0005_06_01_033-5d63a2b0.h5", 1, "mask_flexible", layout="stream/color"),
        Clip("face/20.09.19/1_02_0014_0000_00_00_000-5d64a111.h5", 2, layout="stream/color"),
        Clip("face/20.09.19/1_02_0014_0014_09_00_101-5d64a2c3.h5", 2, "tattoo", layout="stream/color"),
    ),
)
