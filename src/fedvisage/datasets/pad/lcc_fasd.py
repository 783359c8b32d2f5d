"""LCC-FASD: images of people collected from many sources, and of displays that show such people.

Timoshenko et al., "Large crowdcollected facial anti-spoofing dataset", CSIT 2019. A name is the devices, a person, a
session and the frame's number. Persons may recur across parts; without this information they count as different.
"""

from collections.abc import Mapping

from fedvisage.datasets.dataset import Clip, Entry, Grammar, Name
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.scanner import Scanner

SPLITS = {"training": "train", "development": "dev", "evaluation": "test"}
IMAGE = Grammar(
    "LCC_FASD_{part}/{class}/{devices}_id{person}_s{session}_{frame}",
    part="|".join(SPLITS),
    devices=r"[\w.-]+",
    person="[0-9]+",
    session="[0-9]+",
    frame="[0-9]{1,9}",
    **{"class": "real|spoof"},
)


def _parse_name(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    species = "bonafide" if fields["class"] == "real" else "screen"
    video = f"{fields['devices']}_id{fields['person']}_s{fields['session']}"
    return Entry(
        species,
        fields["person"],
        SPLITS[fields["part"]],
        {"devices": fields["devices"], "session": fields["session"]},
        part=fields["part"],
        video=video,
        frame=int(fields["frame"]),
    )


SCANNER = Scanner(
    kind="lcc-fasd",
    title="LCC-FASD",
    page="https://csit.am/2019/proceedings/PRIP/PRIP3.pdf",
    expects="""\
LCC_FASD_{training,development,evaluation}/real/AGL752VM_id147_s0_120.png    devices_person_session_frame
LCC_FASD_{training,development,evaluation}/spoof/FT720P_G780_REDMI4X_id0_s0_15.png""",
    names=(Name(IMAGE, _parse_name, "image"),),
    columns=("devices", "session"),
    counts={"train": (1223, 7076), "dev": (405, 2543), "test": (314, 7266)},
    example=(
        Clip("LCC_FASD_training/real/AGL752VM_id147_s0_120.png", 1),
        Clip("LCC_FASD_training/spoof/AGL752VM_REDMI4X_id147_s0_15.png", 1, "screen"),
        Clip("LCC_FASD_training/spoof/AGL752VM_REDMI4X_id147_s0_30.png", 1, "screen"),
        Clip("LCC_FASD_development/real/FT720P_id0_s1_15.png", 2),
        Clip("LCC_FASD_development/spoof/FT720P_G780_REDMI4X_id0_s0_15.png", 2, "screen"),
        Clip("LCC_FASD_evaluation/real/G780_id0_s0_45.png", 3),
        Clip("LCC_FASD_evaluation/spoof/G780_REDMI4X_id0_s0_45.png", 3, "screen"),
    ),
)
