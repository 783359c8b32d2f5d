"""OULU-NPU: 55 people, recorded by six phones in three sessions; two printers and two displays.

Boulkenafet et al., "OULU-NPU: A mobile face presentation attack database with real-world variations", FG 2017. The name
of a video is phone, session, subject and file; file 1 is bona fide, 2 and 3 are prints, 4 and 5 replays. The dataset
includes lists of four protocols; only the sign of their labels is used, and compared with the names.
"""

from collections.abc import Mapping

from fedvisage.datasets.dataset import OTHERS, Clip, Entry, Grammar, Name, Text
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.lists import LabelLists, label_and_name
from fedvisage.datasets.pad.scanner import Scanner

VIDEO = Grammar(
    "{part}_files/{phone}_{session}_{subject}_{file}",
    part="Train|Dev|Test",
    phone="[1-6]",
    session="[1-3]",
    subject="[0-9]{2}",
    file="[1-5]",
)
SPECIES = {"1": "bonafide", "2": "print", "3": "print", "4": "replay", "5": "replay"}


def _parse_name(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    extra = {name: fields[name] for name in ("phone", "session", "file")}
    return Entry(SPECIES[fields["file"]], fields["subject"], fields["part"].lower(), extra)


def _further(number: int) -> tuple[Clip, ...]:
    return tuple(
        Clip(f"Train_files/1_1_{number + 3:02d}_{file}.avi", OTHERS + number, species)
        for file, species in SPECIES.items()
        if file in "124"
    )


SCANNER = Scanner(
    kind="oulu-npu",
    title="OULU-NPU",
    page="https://sites.google.com/site/oulunpudatabase/",
    expects="""\
Train_files/1_1_01_1.avi  Dev_files/…  Test_files/…      phone_session_subject_file
Protocols/Protocol_1/{Train,Dev,Test}.txt … Protocol_4/  compared with the names where they are there""",
    names=(Name(VIDEO, _parse_name),),
    columns=("phone", "session", "file"),
    counts={"train": (360, 1440), "dev": (270, 1080), "test": (360, 1440)},
    beside=("*_files/*.txt", "*protocol*/*.txt"),
    lists=LabelLists(
        r"Protocols/Protocol_[1-4]/(?:Train|Dev|Test)(?:_[1-6])?\.txt",
        label_and_name,
        lambda label: not label.startswith("-"),
    ),
    further=_further,
    example=(
        Clip("Train_files/1_1_01_1.avi", 1),
        Clip("Train_files/1_1_01_2.avi", 1, "print"),
        Clip("Train_files/2_1_02_1.avi", 2),
        Clip("Train_files/2_1_02_4.avi", 2, "replay"),
        Clip("Dev_files/1_1_21_1.avi", 3),
        Clip("Dev_files/1_1_21_3.avi", 3, "print"),
        Clip("Test_files/1_3_36_1.avi", 4),
        Clip("Test_files/1_3_36_5.avi", 4, "replay"),
        Text("Protocols/Protocol_1/Train.txt", "+1,1_1_01_1\n-1,1_1_01_2\n+1,2_1_02_1\n-2,2_1_02_4\n"),
        Text("Protocols/Protocol_1/Dev.txt", "+1,1_1_21_1\n-1,1_1_21_3\n"),
        Text("Protocols/Protocol_1/Test.txt", "+1,1_3_36_1\n-2,1_3_36_5\n"),
    ),
)
