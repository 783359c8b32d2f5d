"""Idiap Replay-Attack: 50 clients and a webcam in two lights; prints, and photographs and videos on two displays.

Chingovska, Anjos and Marcel, "On the effectiveness of local binary patterns in face anti-spoofing", BIOSIG 2012. The
content of a display decides the species: a photograph (``photo``) or a video (``replay``). The enrolment videos are
left out unless ``--enroll`` is set.
"""

from collections.abc import Iterator, Mapping

from fedvisage.data.rows import ENROL, PURPOSE
from fedvisage.datasets.dataset import OTHERS, Clip, Entry, Grammar, Name
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.lists import BoxFiles
from fedvisage.datasets.pad.scanner import Scanner

SETS = {"train": "train", "devel": "dev", "test": "test"}
_COMMON = {
    "set": "(?:replayattack-)?(?:train|devel|test)",
    "client": "[0-9]{3}",
    "session": "[0-9]{2}",
    "light": "adverse|controlled",
}

REAL = Grammar("{set}/real/client{client}_session{session}_webcam_authenticate_{light}_{take}", take="[12]", **_COMMON)
ATTACK = Grammar(
    "{set}/{folder}/{support}/attack_{device}_client{client}_session{session}_{camera}_{medium}_{light}",
    folder="attack|attk",
    support="fixed|hand",
    device="print|mobile|highdef",
    camera="highdef|mobile",
    medium="photo|video",
    **_COMMON,
)
ENROLMENT = Grammar("enroll/{set}/client{client}_session{session}_webcam_enroll_{light}_{take}", take="1", **_COMMON)


def _parse_real(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    return Entry("bonafide", fields["client"], _split(fields), _extra(fields))


def _parse_attack(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    species = "replay" if fields["medium"] == "video" else "photo"
    species = "print" if fields["device"] == "print" else species
    more = {"device": fields["device"], "support": fields["support"]}
    return Entry(species, fields["client"], _split(fields), _extra(fields) | more)


def _parse_enrolment(fields: Mapping[str, str], options: ImportOptions) -> Entry | str:
    if not options.enroll:
        return "enrolment videos (add them with --enroll)"
    return Entry("bonafide", fields["client"], _split(fields), _extra(fields) | {PURPOSE: ENROL})


def _split(fields: Mapping[str, str]) -> str:
    """Return the part; the archives unpack into folders such as replayattack-train."""
    return SETS[fields["set"].removeprefix("replayattack-")]


def _extra(fields: Mapping[str, str]) -> dict[str, str]:
    return {"session": fields["session"], "light": fields["light"]}


def _further(number: int) -> tuple[Clip, ...]:
    client, light = f"client{number + 101}_session01", "controlled"
    return (
        Clip(f"train/real/{client}_webcam_authenticate_{light}_1.mov", OTHERS + number),
        Clip(f"train/attack/fixed/attack_print_{client}_highdef_photo_{light}.mov", OTHERS + number, "print"),
        Clip(f"train/attack/fixed/attack_mobile_{client}_mobile_photo_{light}.mov", OTHERS + number, "photo"),
        Clip(f"train/attack/fixed/attack_highdef_{client}_highdef_video_{light}.mov", OTHERS + number, "replay"),
    )


SIDE = 224
"""Size in pixels of a rendered face with its surroundings, in frames as large as the dataset's."""


def crowd(people: int) -> Iterator[Clip]:
    """Yield clips of a test part with one enrolment, two bona fide attempts and three attacks per client."""
    for number in range(1, people + 1):
        client = f"client{number:03d}_session01"
        places = {
            f"enroll/test/{client}_webcam_enroll_controlled_1": "bonafide",
            f"test/real/{client}_webcam_authenticate_controlled_1": "bonafide",
            f"test/real/{client}_webcam_authenticate_adverse_1": "bonafide",
            f"test/attack/fixed/attack_print_{client}_highdef_photo_controlled": "print",
            f"test/attack/hand/attack_mobile_{client}_mobile_photo_adverse": "photo",
            f"test/attack/hand/attack_highdef_{client}_highdef_video_controlled": "replay",
        }
        for place, species in places.items():
            yield Clip(f"{place}.mov", number, species, take=place, side=SIDE)


SCANNER = Scanner(
    kind="replay-attack",
    title="Replay-Attack",
    page="https://www.idiap.ch/en/scientific-research/data/replayattack",
    expects="""\
{train,devel,test}/real/client001_session01_webcam_authenticate_adverse_1.mov
{train,devel,test}/attack/{fixed,hand}/attack_print_client001_session01_highdef_photo_adverse.mov
enroll/{train,devel,test}/…, face-locations/…            where they are there""",
    names=(Name(REAL, _parse_real), Name(ATTACK, _parse_attack), Name(ENROLMENT, _parse_enrolment)),
    columns=("session", "light", "device", "support", PURPOSE),
    counts={"train": (60, 300), "dev": (60, 300), "test": (80, 400), ENROL: (100, 0)},
    beside=("*.face", "*protocol/*"),
    boxes=BoxFiles(("face-locations/{name}.face",), "sides"),
    enrolment=True,
    further=_further,
    crowd=crowd,
    example=(
        Clip("train/real/client001_session01_webcam_authenticate_adverse_1.mov", 1),
        Clip("train/attack/hand/attack_mobile_client001_session01_mobile_photo_adverse.mov", 1, "photo"),
        Clip("train/real/client002_session01_webcam_authenticate_controlled_2.mov", 2),
        Clip("train/attack/fixed/attack_print_client002_session01_highdef_photo_controlled.mov", 2, "print"),
        Clip("devel/real/client003_session01_webcam_authenticate_adverse_1.mov", 3),
        Clip("devel/attack/hand/attack_highdef_client003_session01_highdef_photo_adverse.mov", 3, "photo"),
        Clip("test/real/client009_session01_webcam_authenticate_controlled_1.mov", 4),
        Clip("test/attack/fixed/attack_highdef_client009_session01_highdef_video_controlled.mov", 4, "replay"),
        Clip("enroll/train/client001_session01_webcam_enroll_adverse_1.mov", 1),
    ),
)
