"""CASIA-FASD: 50 people in three qualities; bent photographs, photographs with the eyes cut out, and tablets.

Zhang et al., "A face antispoofing database with diverse attacks", ICB 2012. Clips 1, 2 and HR_1 are bona fide, 3, 4
and HR_2 bent photographs, 5, 6 and HR_3 cut ones, 7, 8 and HR_4 replays. Subjects of the test part count from 1
again: 20 is added.
"""

from collections.abc import Mapping

from fedvisage.datasets.scanners.boxes import BoxFiles
from fedvisage.datasets.scanners.example import Clip
from fedvisage.datasets.scanners.grammar import Grammar
from fedvisage.datasets.scanners.item import Choices, Sighting
from fedvisage.datasets.scanners.scanner import Name, Scanner

VIDEO = Grammar("{part}_release/{subject}/{clip}", part="train|test", subject="[1-9][0-9]?", clip="[1-8]|HR_[1-4]")
SPECIES = ("bonafide", "warp", "cut", "replay")
FIRST_OF_TEST = 20


def _read(fields: Mapping[str, str], _: Choices) -> Sighting:
    clip, part = fields["clip"], fields["part"]
    high = clip.startswith("HR_")
    number = int(clip.removeprefix("HR_")) - 1
    species = SPECIES[number if high else number // 2]
    quality = "high" if high else ("normal", "low")[number % 2]
    subject = int(fields["subject"]) + (FIRST_OF_TEST if part == "test" else 0)
    return Sighting(species, str(subject), part, {"clip": clip, "quality": quality})


SCANNER = Scanner(
    kind="casia-fasd",
    title="CASIA-FASD",
    page="http://www.cbsr.ia.ac.cn/english/FASDB_Agreement/Agreement.pdf",
    expects="""\
train_release/1/{1,2,3,4,5,6,7,8,HR_1,HR_2,HR_3,HR_4}.avi … train_release/20/
test_release/1/ … test_release/30/""",
    names=(Name(VIDEO, _read),),
    columns=("clip", "quality"),
    counts={"train": (60, 180), "test": (90, 270)},
    beside=("*.face",),
    boxes=BoxFiles(("face-locations/{name}.face", "{name}.face"), "sides"),
    example=(
        Clip("train_release/1/1.avi", 1),
        Clip("train_release/1/HR_1.avi", 1),
        Clip("train_release/1/3.avi", 1, "warp"),
        Clip("train_release/1/5.avi", 1, "cut"),
        Clip("train_release/1/7.avi", 1, "replay"),
        Clip("train_release/1/HR_4.avi", 1, "replay"),
        Clip("train_release/2/2.avi", 2),
        Clip("train_release/2/8.avi", 2, "replay"),
        Clip("test_release/1/1.avi", 3),
        Clip("test_release/1/7.avi", 3, "replay"),
    ),
)
