"""Rose-Youtu: 20 people, recorded by five phones; prints, replays on two displays, and masks of paper.

Li et al., "Unsupervised domain adaptation for face anti-spoofing", IEEE TIFS 2018. The prefix of a video's name is its
content: ``G`` a person, ``Ps`` and ``Pq`` a still and a quivering print, ``Vl`` and ``Vm`` a video on two displays,
``Mc``, ``Mf``, ``Mu`` and ``Ml`` a cut, a full, an upper and a lower mask of paper. The first ten people are for
training.
"""

from collections.abc import Mapping

from fedvisage.datasets.dataset import Clip, Entry, Grammar, Name
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.scanner import Scanner

SPECIES = {"G": "bonafide", "P": "print", "V": "replay", "M": "mask_paper"}
TRAIN, TEST = "2 3 4 5 6 7 9 10 11 12", "13 14 15 16 17 18 20 21 22 23"
VIDEO = Grammar(
    "{attack}_{speech}_{phone}_{glasses}_{background}_{subject}_{index}",
    attack="G|Ps|Pq|Vl|Vm|Mc|Mf|Mu|Ml",
    speech="T|NT",
    phone="HS|HW|IP|5s|ZTE",
    glasses="g|wg",
    background="[A-Z]",
    subject="[1-9][0-9]?",
    index="[0-9]+",
)


def _parse_name(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    person = fields["subject"]
    split = "train" if person in TRAIN.split() else "test" if person in TEST.split() else None
    extra = {name: fields[name] for name in ("attack", "speech", "phone", "glasses")}
    return Entry(SPECIES[fields["attack"][0]], person, split, extra)


SCANNER = Scanner(
    kind="rose-youtu",
    title="Rose-Youtu",
    page="https://rose1.ntu.edu.sg/dataset/faceLivenessDetection/",
    expects="""\
[{train,test}/]2/G_NT_5s_g_E_2_1.mp4    attack_speech_phone_glasses_background_subject_index""",
    names=(Name(VIDEO, _parse_name),),
    columns=("attack", "speech", "phone", "glasses"),
    counts={"all": (897, 2600)},
    example=(
        Clip("2/G_NT_5s_g_E_2_1.mp4", 1),
        Clip("2/Ps_NT_HW_wg_E_2_4.mp4", 1, "print"),
        Clip("3/G_T_ZTE_wg_A_3_12.mp4", 2),
        Clip("3/Mu_T_IP_g_A_3_44.mp4", 2, "mask_paper"),
        Clip("13/G_T_HS_wg_B_13_2.mp4", 3),
        Clip("13/Pq_T_HS_wg_E_13_7.mp4", 3, "print"),
        Clip("13/Vm_NT_5s_wg_E_13_70.mp4", 3, "replay"),
    ),
)
