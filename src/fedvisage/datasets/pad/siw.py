"""SiW: 165 people, recorded by two cameras; prints, and replays on four displays.

Liu, Jourabloo and Liu, "Learning deep models for face anti-spoofing: binary or auxiliary supervision", CVPR 2018. The
name of a video is subject, sensor, type, medium and session; type 1 is bona fide, 2 a print, 3 a replay, and the folder
must name the same. Sixteen videos end in ``.m.mov``. The dataset's boxes are ignored.
"""

from collections.abc import Mapping

from fedvisage.datasets.dataset import Clip, Entry, Grammar, Name
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.scanner import Scanner

_COMMON = {"part": "Train|Test", "folder": "[0-9]{3}", "subject": "[0-9]{3}", "sensor": "[12]", "session": "[0-9]"}
LIVE = Grammar(
    "{part}/live/{folder}/{subject}-{sensor}-1-{medium}-{session}{mark}", medium="[0-9]", mark="(?:[.]m)?", **_COMMON
)
SPOOF = Grammar(
    "{part}/spoof/{folder}/{subject}-{sensor}-{type}-{medium}-{session}{mark}",
    type="[23]",
    medium="[0-9]",
    mark="(?:[.]m)?",
    **_COMMON,
)
SPECIES = {"2": "print", "3": "replay"}


def _parse_name(fields: Mapping[str, str], _: ImportOptions) -> Entry | str:
    if fields["folder"] != fields["subject"]:
        return "videos in another person's folder"
    extra = {name: fields[name] for name in ("sensor", "medium", "session")}
    species = SPECIES[fields["type"]] if "type" in fields else "bonafide"
    return Entry(species, fields["subject"], fields["part"].lower(), extra)


SCANNER = Scanner(
    kind="siw",
    title="SiW",
    page="http://cvlab.cse.msu.edu/siw-spoof-in-the-wild-database.html",
    expects="""\
{Train,Test}/live/003/003-1-1-1-1.mov    subject-sensor-type-medium-session; type 1 live
{Train,Test}/spoof/003/003-1-2-1-1.mov   type 2 print, 3 replay""",
    names=(Name(LIVE, _parse_name), Name(SPOOF, _parse_name)),
    columns=("sensor", "medium", "session"),
    counts={"train": (714, 1703), "test": (599, 1462)},
    beside=("*.face",),
    example=(
        Clip("Train/live/003/003-1-1-1-1.mov", 1),
        Clip("Train/spoof/003/003-1-3-2-1.mov", 1, "replay"),
        Clip("Train/live/005/005-2-1-2-2.mp4", 2),
        Clip("Train/spoof/005/005-1-2-1-1.mov", 2, "print"),
        Clip("Test/live/153/153-1-1-1-1.m.mov", 3),
        Clip("Test/spoof/153/153-2-3-4-2.mov", 3, "replay"),
    ),
)
