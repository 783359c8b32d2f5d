"""CASIA-FASD: 50 people in three qualities; bent photographs, photographs with the eyes cut out, and tablets.

Zhang et al., "A face antispoofing database with diverse attacks", ICB 2012. Clips 1, 2 and HR_1 are bona fide, 3, 4 and
HR_2 bent photographs, 5, 6 and HR_3 cut ones, 7, 8 and HR_4 replays. Subject numbers of the test part start at 1 again,
so 20 is added.

The lists released with FedSIS for sites with one kind of attack label HR_4, a replay, as bona fide. ``--labels
fedsis-released`` reproduces this to match their figures; the set records it.
"""

from collections.abc import Mapping
from dataclasses import replace

from fedvisage.datasets.dataset import OTHERS, Clip, Entry, Grammar, Listing, Name
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.lists import BoxFiles
from fedvisage.datasets.pad.scanner import Scanner, scan_by_name
from fedvisage.datasets.tree import Tree

VIDEO = Grammar("{part}_release/{subject}/{clip}", part="train|test", subject="[1-9][0-9]?", clip="[1-8]|HR_[1-4]")
SPECIES = ("bonafide", "warp", "cut", "replay")
FIRST_OF_TEST = 20

MISTAKEN = "HR_4"
COUNTS = {"train": (60, 180), "test": (90, 270)}


def _parse_name(fields: Mapping[str, str], options: ImportOptions) -> Entry:
    clip, part = fields["clip"], fields["part"]
    high = clip.startswith("HR_")
    number = int(clip.removeprefix("HR_")) - 1
    species = SPECIES[number if high else number // 2]
    if options.released and clip == MISTAKEN:
        species = SPECIES[0]
    quality = "high" if high else ("normal", "low")[number % 2]
    subject = int(fields["subject"]) + (FIRST_OF_TEST if part == "test" else 0)
    return Entry(species, str(subject), part, {"clip": clip, "quality": quality})


def _scan(scanner: Scanner, tree: Tree, options: ImportOptions) -> Listing:
    """Scan by names; with the labels of the released lists, note the number of affected videos."""
    listing = scan_by_name(scanner, tree, options)
    if not options.released:
        return listing
    mistaken = sum(item.extra["clip"] == MISTAKEN for item in listing.items)
    note = (
        f"{mistaken} replays, the clips {MISTAKEN}, count as bona fide, as in the lists released with FedSIS: a mistake"
    )
    # Each person has one HR_4 clip: 3 bona fide clips become 4, and 9 attacks become 8.
    moved = {
        part: (bona_fide + bona_fide // 3, attacks - attacks // 9) for part, (bona_fide, attacks) in COUNTS.items()
    }
    return replace(listing, notes=(*listing.notes, note), expected=moved)


def _further(number: int) -> tuple[Clip, ...]:
    return tuple(
        Clip(f"train_release/{number + 3}/{clip}.avi", OTHERS + number, species)
        for clip, species in zip("1357", SPECIES, strict=True)
    )


SCANNER = Scanner(
    kind="casia-fasd",
    title="CASIA-FASD",
    page="http://www.cbsr.ia.ac.cn/english/FASDB_Agreement/Agreement.pdf",
    owner="the authors: Z. Zhang and others, Institute of Automation, Chinese Academy of Sciences (ICB 2012)",
    expects="""\
train_release/1/{1,2,3,4,5,6,7,8,HR_1,HR_2,HR_3,HR_4}.avi … train_release/20/
test_release/1/ … test_release/30/""",
    names=(Name(VIDEO, _parse_name),),
    columns=("clip", "quality"),
    counts=COUNTS,
    released=True,
    scan=_scan,
    beside=("*.face",),
    boxes=BoxFiles(("face-locations/{name}.face", "{name}.face"), "sides"),
    further=_further,
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
