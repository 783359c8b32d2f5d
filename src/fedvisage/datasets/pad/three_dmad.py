"""3DMAD: 17 people, recorded by a Kinect in three sessions; in the third, masks of their faces are worn.

Erdogmus and Marcel, "Spoofing in 2D face recognition with 3D masks and anti-spoofing with Kinect", BTAS 2013. The name
of a file is subject, session and recording. Only the colour frames of a file are read, not its depth and eye positions.
"""

from collections.abc import Mapping

from fedvisage.datasets.dataset import Clip, Entry, Grammar, Name
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.scanner import Scanner

FILE = Grammar("{subject}_{session}_{recording}", subject="0[1-9]|1[0-7]", session="0[1-3]", recording="0[1-5]")
WITH_MASKS = "03"


def _parse_name(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    species = "mask_rigid" if fields["session"] == WITH_MASKS else "bonafide"
    return Entry(species, fields["subject"], extra={"session": fields["session"]})


SCANNER = Scanner(
    kind="3dmad",
    title="3DMAD",
    page="https://www.idiap.ch/en/scientific-research/data/3dmad",
    expects="""\
01_01_01.hdf5 … 17_03_05.hdf5    subject_session_recording; Color_Data in each; session 03 has the masks""",
    names=(Name(FILE, _parse_name, "arrays"),),
    columns=("session",),
    counts={"all": (170, 85)},
    example=(
        Clip("Data/01_01_01.hdf5", 1),
        Clip("Data/01_03_01.hdf5", 1, "mask_rigid"),
        Clip("Data/12_02_05.hdf5", 2),
        Clip("Data/12_03_02.hdf5", 2, "mask_rigid"),
    ),
)
