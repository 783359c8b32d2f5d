"""MSU-MFSD: 35 clients, recorded by a phone and a laptop; prints, and videos on a tablet and a phone.

Wen, Han and Jain, "Face spoof detection with image distortion analysis", IEEE TIFS 2015. The training clients are
known, and two lists name them, too. Some of the phone's videos are upside down, depending on the software that reads
them: see `Scanner.turned`.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from fedvisage.base.errors import UserError
from fedvisage.datasets.dataset import OTHERS, Clip, Entry, Grammar, Item, Name, Text
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.lists import BoxFiles
from fedvisage.datasets.pad.scanner import Scanner
from fedvisage.datasets.tree import Tree

TRAIN = "02 03 05 06 07 08 09 11 12 21 22 34 53 54 55"
TEST = "01 13 14 23 24 26 28 29 30 32 33 35 36 37 39 42 48 49 50 51"
LISTS = {"train_sub_list.txt": "train", "test_sub_list.txt": "test"}
SPECIES = {"ipad_video": "replay", "iphone_video": "replay", "printed_photo": "print"}
_COMMON = {"client": "[0-9]{3}", "camera": "android|laptop", "scene": "[0-9]{2}"}

REAL = Grammar("real/real_client{client}_{camera}_SD_scene{scene}", **_COMMON)
ATTACK = Grammar("attack/attack_client{client}_{camera}_SD_{medium}_scene{scene}", medium="|".join(SPECIES), **_COMMON)


def _parse_real(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    return Entry("bonafide", fields["client"], _split(fields["client"]), {"device": fields["camera"]})


def _parse_attack(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    extra = {"device": fields["camera"], "medium": fields["medium"]}
    return Entry(SPECIES[fields["medium"]], fields["client"], _split(fields["client"]), extra)


def _split(client: str) -> str | None:
    """Return the part of a client; names have three digits, lists two."""
    number = f"{int(client):02d}"
    return "train" if number in TRAIN.split() else "test" if number in TEST.split() else None


def check_lists(tree: Tree, _: Sequence[Item]) -> None:
    """Compare the lists of clients with the known ones; a list that differs belongs to another copy, or was changed."""
    for file in tree.files:
        part = LISTS.get(PurePosixPath(file).name)
        for number, line in tree.lines(file) if part else ():
            if not line.isdecimal() or _split(line) != part:
                message = f"line {number}: {line[:20]!r} is not among the clients of the {part} part"
                raise UserError(str(tree.path(file)), message)


def _further(number: int) -> tuple[Clip, ...]:
    client = f"client0{TRAIN.split()[number + 2]}_laptop_SD"
    attacks = ((medium, species) for medium, species in SPECIES.items() if medium != "iphone_video")
    return (
        Clip(f"scene01/real/real_{client}_scene01.mov", OTHERS + number),
        *(
            Clip(f"scene01/attack/attack_{client}_{medium}_scene01.mov", OTHERS + number, species)
            for medium, species in attacks
        ),
    )


SCANNER = Scanner(
    kind="msu-mfsd",
    title="MSU-MFSD",
    page="https://biometrics.cse.msu.edu/Publications/Databases/MSUMobileFaceSpoofing/index.htm",
    owner="the authors: D. Wen, H. Han and A. K. Jain, Biometrics Research Group, Michigan State University",
    expects="""\
[scene01/]real/real_client001_android_SD_scene01.mp4     android .mp4, laptop .mov; beside each a .face
[scene01/]attack/attack_client001_laptop_SD_{ipad_video,iphone_video,printed_photo}_scene01.mov
train_sub_list.txt  test_sub_list.txt                    compared where they are there""",
    names=(Name(REAL, _parse_real), Name(ATTACK, _parse_attack)),
    columns=("device", "medium"),
    counts={"train": (30, 90), "test": (40, 120)},
    beside=("*.face", "*_sub_list.txt"),
    boxes=BoxFiles(("{name}.face", "{file}.face"), "corners"),
    check=check_lists,
    turned=True,
    further=_further,
    example=(
        Clip("scene01/real/real_client002_android_SD_scene01.mp4", 1),
        Clip("scene01/attack/attack_client002_laptop_SD_printed_photo_scene01.mov", 1, "print"),
        Clip("scene01/real/real_client003_android_SD_scene01.mp4", 2, turned=True),
        Clip("scene01/attack/attack_client003_android_SD_ipad_video_scene01.mp4", 2, "replay"),
        Clip("scene01/real/real_client001_laptop_SD_scene01.mov", 3),
        Clip("scene01/attack/attack_client001_android_SD_iphone_video_scene01.mp4", 3, "replay"),
        Clip("scene01/real/real_client013_android_SD_scene01.mp4", 4),
        Text("train_sub_list.txt", "02\r\n03"),
        Text("test_sub_list.txt", "01\r\n13"),
    ),
)
