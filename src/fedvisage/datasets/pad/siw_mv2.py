"""SiW-Mv2: 14 kinds of attacks, from prints to masks, make-up and objects that cover a part of the face.

Guo et al., "Multi-domain learning for updating face anti-spoofing models", ECCV 2022. A name is the kind and a number.
Persons are unknown: each video counts as its own person. Folders differ between copies; the name decides, and the
folder ``Live`` or ``Spoof`` must match.
"""

from collections.abc import Mapping

from fedvisage.datasets.dataset import Clip, Entry, Grammar, Name
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.scanner import Scanner

SPECIES = {
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
LIVE = Grammar("Live/{folder}Live_{number}", folder="(?:(?:Train|Test)/)?", number="[0-9]+")
SPOOF = Grammar(
    "Spoof/{folder}/{attack}_{number}", folder="[A-Za-z]+(?:[_/][A-Za-z]+)?", attack="|".join(SPECIES), number="[0-9]+"
)


def _parse_live(_: Mapping[str, str], __: ImportOptions) -> Entry:
    return Entry("bonafide", "")


def _parse_spoof(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    return Entry(SPECIES[fields["attack"]], "", extra={"attack": fields["attack"]})


SCANNER = Scanner(
    kind="siw-mv2",
    title="SiW-Mv2",
    page="https://github.com/CHELSEA234/Multi-domain-learning-FAS",
    expects="""\
Live/[{Train,Test}/]Live_12.mov
Spoof/Paper/Paper_20.mov  Spoof/Mask_HalfMask/Mask_Half_3.mov  Spoof/Partial_Eye/Partial_Eye_7.mov …""",
    names=(Name(LIVE, _parse_live), Name(SPOOF, _parse_spoof)),
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
