"""Names of whole copies of datasets, written from their documentation, and special names of single datasets."""

from collections import Counter
from collections.abc import Iterator
from itertools import product

import pytest

from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.dataset import Entry, match_name
from fedvisage.datasets.options import ImportOptions

MSU_CLIENTS = [
    *(1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 14, 21, 22, 23, 24, 26, 28, 29, 30),
    *(32, 33, 34, 35, 36, 37, 39, 42, 48, 49, 50, 51, 53, 54, 55),
]


def oulu() -> Iterator[str]:
    for phone, session, subject, file in product(range(1, 7), range(1, 4), range(1, 56), range(1, 6)):
        part = "Train" if subject <= 20 else "Dev" if subject <= 35 else "Test"
        yield f"{part}_files/{phone}_{session}_{subject:02d}_{file}.avi"


def casia() -> Iterator[str]:
    clips = [*map(str, range(1, 9)), *(f"HR_{n}" for n in range(1, 5))]
    for part, people in (("train", 20), ("test", 30)):
        for subject, clip in product(range(1, people + 1), clips):
            yield f"{part}_release/{subject}/{clip}.avi"


def replay() -> Iterator[str]:
    clients = {"train": range(1, 16), "devel": range(16, 31), "test": range(31, 51)}
    for part, people in clients.items():
        for client, light in product(people, ("adverse", "controlled")):
            begin = f"client{client:03d}_session01"
            for take in (1, 2):
                yield f"{part}/real/{begin}_webcam_authenticate_{light}_{take}.mov"
            yield f"enroll/{part}/{begin}_webcam_enroll_{light}_1.mov"
            shows = [("print", "highdef", "photo"), *product(("mobile", "highdef"), ("mobile",), ("photo", "video"))]
            for support, (device, camera, medium) in product(("fixed", "hand"), shows):
                yield f"{part}/attack/{support}/attack_{device}_{begin}_{camera}_{medium}_{light}.mov"


def msu() -> Iterator[str]:
    for client, (camera, ending) in product(MSU_CLIENTS, (("android", "mp4"), ("laptop", "mov"))):
        yield f"scene01/real/real_client{client:03d}_{camera}_SD_scene01.{ending}"
        for medium in ("ipad_video", "iphone_video", "printed_photo"):
            yield f"scene01/attack/attack_client{client:03d}_{camera}_SD_{medium}_scene01.{ending}"


def hkbu() -> Iterator[str]:
    for folder, person, camera, light in product(("real", "attack"), range(1, 13), range(1, 8), range(1, 7)):
        yield f"{folder}/{person:02d}/{camera:02d}_{light:02d}_{person:02d}.avi"


def mask_3d() -> Iterator[str]:
    people = [f"{number:04d}_{n:03d}" for number in range(927, 930) for n in range(16)]
    for person in people:
        for clip in (1, 15, 16, 17, 22, 23):
            yield f"Real/{person}/{clip}.MOV"
        short = person == people[8]  # one person has four clips of each decoration
        for decoration, clip in product((1, 2, 3), range(1, 5 if short else 7)):
            yield f"Fake/{person}/{decoration}/{clip}.MOV"


def surf() -> Iterator[str]:
    """Yield a frame of each video; nine attacks of the test part are missing from the dataset itself."""
    parts = {"Training": range(300), "Val": range(300, 400), "Testing": range(400, 1000)}
    for part, people in parts.items():
        codes = ("04_en_b", "05_enm_s", "06_enm_b") if part == "Training" else ("01_e_s", "02_e_b", "03_en_s")
        for person in people:
            yield f"Data/{part}/real_part/CLKJ_BS{person:04d}/real.rssdk/color/0001.jpg"
            for code in codes:
                if person < 991 or code != "02_e_b":
                    yield f"Data/{part}/fake_part/CLKJ_BS{person:04d}/{code}.rssdk/color/0001.jpg"


def three_dmad() -> Iterator[str]:
    for person, session, recording in product(range(1, 18), range(1, 4), range(1, 6)):
        yield f"Data/{person:02d}_{session:02d}_{recording:02d}.hdf5"


SPECIES = {
    "oulu-npu": (oulu, {"bonafide": 990, "print": 1980, "replay": 1980}),
    "casia-fasd": (casia, {"bonafide": 150, "warp": 150, "cut": 150, "replay": 150}),
    "replay-attack": (replay, {"bonafide": 300, "print": 200, "photo": 400, "replay": 400}),
    "msu-mfsd": (msu, {"bonafide": 70, "print": 70, "replay": 140}),
    "casia-surf": (surf, {"bonafide": 1000, "cut": 2991}),
    "casia-surf-3dmask": (mask_3d, {"bonafide": 288, "mask_rigid": 858}),
    "3dmad": (three_dmad, {"bonafide": 170, "mask_rigid": 85}),
    "hkbu-mars-v2": (hkbu, {"bonafide": 504, "mask_rigid": 504}),
}


@pytest.mark.parametrize("kind", SPECIES)
def test_whole_copy_has_the_published_counts(kind: str) -> None:
    names, by_species = SPECIES[kind]
    scanner, places, species = SCANNERS[kind], dict[str, list[int]](), Counter[str]()
    for name in names():
        entry = parse_entry(kind, name)
        species[entry.species] += 1
        place = entry.extra.get("purpose") or entry.split or "all"
        counted = {place, "all"} & scanner.counts.keys()
        assert counted, place
        for key in counted:
            places.setdefault(key, [0, 0])[entry.species != "bonafide"] += 1
    assert {place: tuple(counts) for place, counts in places.items()} == scanner.counts
    assert species == by_species


def parse_entry(kind: str, name: str, labels: str = "") -> Entry:
    entry = read_name(kind, name, labels)
    assert isinstance(entry, Entry), (name, entry)
    return entry


@pytest.mark.parametrize(
    ("device", "camera", "medium", "species"),
    [
        ("mobile", "mobile", "photo", "photo"),
        ("mobile", "mobile", "video", "replay"),
        ("print", "highdef", "photo", "print"),
    ],
)
def test_content_of_a_display_decides_between_photo_and_replay(
    device: str, camera: str, medium: str, species: str
) -> None:
    name = f"test/attack/hand/attack_{device}_client031_session01_{camera}_{medium}_adverse.mov"
    assert parse_entry("replay-attack", name).species == species


def test_the_high_quality_replay_of_casia_is_an_attack() -> None:
    entry = Entry("replay", "23", "test", {"clip": "HR_4", "quality": "high"})
    assert parse_entry("casia-fasd", "test_release/3/HR_4.avi") == entry


def read_name(kind: str, file: str, labels: str = "") -> Entry | str | None:
    match = match_name(SCANNERS[kind], file, ImportOptions(enroll=True, labels=labels))
    return match and match[2]


@pytest.mark.parametrize("name", ["Train/live/003/003-1-2-1-1.mov", "Test/spoof/153/153-1-1-1-1.mov"])
def test_siw_name_with_contradicting_type_is_unknown(name: str) -> None:
    assert read_name("siw", name) is None


@pytest.mark.parametrize(
    ("kind", "name"), [("siw", "Train/live/003/004-1-1-1-1.mov"), ("hkbu-mars-v2", "real/03/07_06_9.avi")]
)
def test_video_in_another_persons_folder_is_left_out(kind: str, name: str) -> None:
    assert read_name(kind, name) == "videos in another person's folder"


def test_every_person_of_rose_youtu_is_in_one_part() -> None:
    parts = {
        n: read_name("rose-youtu", f"{n}/G_T_HS_g_A_{n}_1.mp4") for n in (*range(2, 8), *range(9, 19), *range(20, 24))
    }
    splits = [one.split for one in parts.values() if isinstance(one, Entry)]
    assert splits == ["train"] * 10 + ["test"] * 10


def test_kinds_of_attacks_of_siw_mv2_have_species() -> None:
    name = "Spoof/Any/{}_1.mov"
    entries = {
        attack: read_name("siw-mv2", name.format(attack))
        for attack in SCANNERS["siw-mv2"].names[1].grammar.fields["attack"].split("|")
    }
    assert len(entries) == 14
    assert all(isinstance(one, Entry) and one.species != "bonafide" and not one.subject for one in entries.values())
    assert read_name("siw-mv2", "Spoof/Paper/Live_3.mov") is None
    assert read_name("siw-mv2", "Live/Paper_3.mov") is None
