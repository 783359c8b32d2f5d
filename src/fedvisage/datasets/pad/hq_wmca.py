"""HQ-WMCA: 51 people, recorded by many cameras; ten kinds of attacks, from prints to tattoos and make-up.

Mostaani et al., "The high-quality wide multi-channel attack (HQ-WMCA) database", 2020. The name of a file is site,
session, client, presenter, type, its kind, instrument and trial; the type decides the class. Only the colour stream is
read. Lists of protocols, and with them the parts of the files, are ignored.
"""

from collections.abc import Mapping

from fedvisage.datasets.dataset import Clip, Entry, Grammar, Name
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.scanner import Scanner

SPECIES = {
    "00": "bonafide",
    "01": "glasses",
    "02": "mask_head",
    "03": "print",
    "04": "replay",
    "05": "mask_rigid",
    "06": "mask_flexible",
    "07": "mask_paper",
    "09": "tattoo",
    "10": "makeup",
}
FILE = Grammar(
    "{date}/{site}_{session}_{client}_{presenter}_{type}_{sub}_{instrument}-{trial}",
    date="[0-9]{2}[.][0-9]{2}[.][0-9]{2}",
    site="[0-9]",
    session="[0-9]{2}",
    client="[0-9]{4}",
    presenter="[0-9]{4}",
    type="|".join(SPECIES),
    sub="[0-9]{2}",
    instrument="[0-9]{3}",
    trial="[0-9a-f]+",
)


def _parse_name(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    extra = {name: fields[name] for name in ("site", "session", "presenter", "instrument")}
    return Entry(SPECIES[fields["type"]], fields["client"], extra=extra)


SCANNER = Scanner(
    kind="hq-wmca",
    title="HQ-WMCA",
    page="https://www.idiap.ch/en/scientific-research/data/hq-wmca",
    expects="""\
19.09.19/1_01_0001_0000_00_00_000-5d63a1f2.h5
         site_session_client_presenter_type_kind_instrument-trial; type 00 is bona fide""",
    names=(Name(FILE, _parse_name, "arrays"),),
    columns=("site", "session", "presenter", "instrument"),
    counts={"all": (555, 2017)},
    beside=("*.csv",),
    example=(
        Clip("face/19.09.19/1_01_0001_0000_00_00_000-5d63a1f2.h5", 1, layout="stream/color"),
        Clip("face/19.09.19/1_01_0001_0005_06_01_033-5d63a2b0.h5", 1, "mask_flexible", layout="stream/color"),
        Clip("face/20.09.19/1_02_0014_0000_00_00_000-5d64a111.h5", 2, layout="stream/color"),
        Clip("face/20.09.19/1_02_0014_0014_09_00_101-5d64a2c3.h5", 2, "tattoo", layout="stream/color"),
    ),
)
