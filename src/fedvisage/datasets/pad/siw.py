"""SiW and SiW-Mv2.

SiW: 165 people, recorded by two cameras; prints, and replays on four displays. Liu, Jourabloo and Liu, "Learning deep
models for face anti-spoofing: binary or auxiliary supervision", CVPR 2018. The name of a video is subject, sensor,
type, medium and session; type 1 is bona fide, 2 a print, 3 a replay, and the folder must name the same. Sixteen videos
end in ``.m.mov``. The dataset's boxes are ignored.

SiW-Mv2: 14 kinds of attacks, from prints to masks, make-up and objects that cover a part of the face. Guo et al.,
"Multi-domain learning for updating face anti-spoofing models", ECCV 2022. A name is the kind and a number. Persons are
unknown: each video counts as its own person. Folders differ between copies; the name decides, and the folder ``Live``
or ``Spoof`` must match.
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

ATTACKS = {
    "Paper": "print",
    "Replay": "replay",
    "Mask_Half": "mask_rigid",
    "Mask_Trans": "mask_rigid",
    "Mask_Paper": "mask_paper",
    "Mask_Silicone": "mask_flexible",
    "Mask_Mann": "mask_head",
    "Makeup_Co": "makeup",
    "Makeup_Im": "makeup",
    "Makeup_Ob": "makeup",
    "Partial_Funnyeye": "glasses",
    "Partial_Paperglass": "glasses",
    "Partial_Eye": "mask_partial",
    "Partial_Mouth": "mask_partial",
}
LIVE_MV2 = Grammar("Live/{folder}Live_{number}", folder="(?:(?:Train|Test)/)?", number="[0-9]+")
SPOOF_MV2 = Grammar(
    "Spoof/{folder}/{attack}_{number}", folder="[A-Za-z]+(?:[_/][A-Za-z]+)?", attack="|".join(ATTACKS), number="[0-9]+"
)


def _parse_mv2_spoof(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    return Entry(ATTACKS[fields["attack"]], "", extra={"attack": fields["attack"]})


SCANNER_MV2 = Scanner(
    kind="siw-mv2",
    title="SiW-Mv2",
    page="https://github.com/CHELSEA234/Multi-domain-learning-FAS",
    expects="""\
Live/[{Train,Test}/]Live_12.mov
Spoof/Paper/Paper_20.mov  Spoof/Mask_HalfMask/Mask_Half_3.mov  Spoof/Partial_Eye/Partial_Eye_7.mov …""",
    names=(Name(LIVE_MV2, lambda _, __: Entry("bonafide", "")), Name(SPOOF_MV2, _parse_mv2_spoof)),
    columns=("attack",),
    counts={"all": (785, 915)},
    example=(
        Clip("Live/Live_7.mov", 1),
        Clip("Live/Test/Live_658.mov", 2),
        Clip("Spoof/Paper/Paper_20.mov", 3, "print"),
        Clip("Spoof/Mask_HalfMask/Mask_Half_3.mov", 4, "mask_rigid"),
        Clip("Spoof/Partial/FunnyeyeGlasses/Partial_Funnyeye_179.mov", 5, "glasses"),
        Clip("Spoof/Silicone/Mask_Silicone_2.mp4", 6, "mask_flexible"),
        Clip("Spoof/Makeup_Obfuscation/Makeup_Ob_1.mov", 7, "makeup"),
    ),
)
