"""Sets with a tiny image for each video of a whole copy, or of a small one, made from the names of its files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from tests.data.small_sets import write_set
from tests.datasets.pad.test_whole_copies import SPECIES, parse_entry

from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import OFFICIAL
from fedvisage.data.splits import split_subjects
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.dataset import Entry
from fedvisage.datasets.options import RELEASED
from fedvisage.datasets.pad.celeba_spoof import DIVISIONS

SIZE = 8

WMCA_CLIENTS = {"001": "train", "002": "train", "003": "dev", "004": "dev", "005": "test", "006": "test"}
WMCA_FILES = {
    "0_00": "bonafide",
    "0_01": "bonafide",
    "3_04": "print",
    "4_02": "replay",
    "3_05": "replay",
    "1_01": "glasses",
    "1_13": "mask_rigid",
    "2_03": "mask_head",
    "2_12": "mask_rigid",
    "2_83": "mask_flexible",
    "2_08": "mask_paper",
}
"""Type and instrument of each file of a client, with its species."""


def siw() -> Iterator[str]:
    """Nine people train and six test: two live sessions in two poses; two prints and four displays."""
    for subject, sensor in product(range(1, 16), (1, 2)):
        part = "Train" if subject <= 9 else "Test"
        begin = f"{subject:03d}/{subject:03d}-{sensor}"
        for medium, session in product((1, 2), (1, 2)):
            yield f"{part}/live/{begin}-1-{medium}-{session}.mov"
        for kind, medium in [(2, 1), (2, 2), *((3, medium) for medium in (1, 2, 3, 4))]:
            yield f"{part}/spoof/{begin}-{kind}-{medium}-1.mov"


def wmca() -> Iterator[str]:
    for client, file in product(WMCA_CLIENTS, WMCA_FILES):
        yield f"26.01.18/{client}_01_000_{file}.hdf5"


def celeba() -> Iterator[str]:
    for part, people in (("train", range(20)), ("test", range(20, 26))):
        for person, (folder, number) in product(people, (("live", 1), ("spoof", 2), ("spoof", 3))):
            yield f"Data/{part}/{person}/{folder}/{number:06d}.png"


def cefa() -> Iterator[str]:
    """Ten people of each ethnicity: one real clip, two on cloth, one screen; and two masks."""
    for race, folder in ((1, "AF"), (2, "CA"), (3, "EA")):
        for subject in (*range(4), *range(200, 203), *range(300, 303)):
            for code in ("1_1_1", "3_1_2", "3_2_2", "3_1_4"):
                name = f"{race}_{subject:03d}_{code}"
                yield f"Ethnicity/{folder}/{folder}-{subject:03d}/{name}/color/0001.jpg"
    yield "Mask/3D-Mask/001/1_001_1_0_2_1_2/color/0001.jpg"
    yield "Mask/Silicone-Mask/001/2_001_1_1_2_1_3/color/0001.jpg"


def rose() -> Iterator[str]:
    for subject, name in product((2, 13), ("G_NT_5s_g_E", "Pq_T_HS_wg_E")):
        yield f"{subject}/{name}_{subject}_1.mp4"


def hifi() -> Iterator[str]:
    for subject, kind in product(("01", "02"), "01"):
        yield f"Data/1_{subject}_{kind}_1_1_1/0001.png"


REPLAY_CLIENTS = {
    "train": ["001", "002", "004", "006", "007", "008", "012", "016", "018", "025", "027", "103", "105", "108", "110"],
    "test": [
        *("009", "011", "013", "019", "020", "021", "023", "024", "026", "028"),
        *("031", "102", "104", "106", "107", "109", "112", "115", "117", "119"),
    ],
}
"""Clients of Replay-Attack have no consecutive numbers; the lists of videos that are left out name some."""


def replay() -> Iterator[str]:
    """The names of a whole copy, with these clients in the place of 1 to 15 and 31 to 50; those of dev get 2 before."""
    for name in SPECIES["replay-attack"][0]():
        number = int(name.partition("client")[2][:3])
        part = REPLAY_CLIENTS["train"] if number <= 15 else REPLAY_CLIENTS["test"] if number > 30 else ()
        client = part[(number - 1) % 30] if part else f"2{number}"
        yield name.replace(f"client{number:03d}", f"client{client}")


NAMES: dict[str, Callable[[], Iterable[str]]] = {
    **{kind: names for kind, (names, _) in SPECIES.items()},
    "replay-attack": replay,
    "siw": siw,
    "wmca": wmca,
    "celeba-spoof": celeba,
    "cefa": cefa,
    "rose-youtu": rose,
    "hifimask": hifi,
}


def make_set(kind: str, path: Path, frames: int, *, released: bool = False) -> PreparedSet:
    """Write a set with this number of frames of each video; perhaps with the mistake of released lists."""
    entry_of = {name: _read_name(kind, name, released) for name in NAMES[kind]()}
    files = [name for name in entry_of for _ in range(frames)]
    entries = [entry_of[name] for name in files]
    subjects = [f"{kind}/{entry.part}/{entry.subject}" for entry in entries]
    labels = [int(entry.species == "bonafide") for entry in entries]
    split_of = split_subjects(subjects, labels, 0.25, np.random.default_rng(0))
    # In WMCA the authors' split is in a list, not in names.
    official = [WMCA_CLIENTS[entry.subject] if kind == "wmca" else entry.split or "" for entry in entries]
    columns = {column: [entry.extra.get(column, "") for entry in entries] for column in SCANNERS[kind].columns}
    return write_set(
        path,
        np.zeros((len(files), SIZE, SIZE, 3), np.uint8),
        species=[entry.species for entry in entries],
        subject=subjects,
        video=[name.rsplit(".", 1)[0] for name in files],
        frame=[index % frames * 7 for index in range(len(files))],
        split=[split_of[subject] for subject in subjects],
        item=[f"{name}/{index % frames}" for index, name in enumerate(files)],
        further={OFFICIAL: official, **columns},
    )


def _read_name(kind: str, name: str, released: bool) -> Entry:
    entry = parse_entry(kind, name, RELEASED if released else "")
    return replace(entry, extra={**entry.extra, **lists_of_celeba(name)}) if kind == "celeba-spoof" else entry


def lists_of_celeba(name: str) -> dict[str, str]:
    """Return the lists of protocols that name an image: the list of the high sensors lacks the first ten people."""
    part, person = name.split("/")[1], int(name.split("/")[2])
    columns = [column for column in DIVISIONS if not (column == "sensors_high" and person < 10)]
    return dict.fromkeys(columns, part)
