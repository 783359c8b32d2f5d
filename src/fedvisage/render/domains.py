"""Rendered domains: the cameras, places, instruments and habits of each simulated dataset.

Each domain imitates a public dataset, after the papers' Table I and the datasets' own descriptions. All domains share
the physics of re-capture, so some cues transfer between them; each has its own resolution, compression, light and way
of holding media, so other cues do not.
"""

from dataclasses import dataclass, field, replace

from fedvisage.base.errors import UserError
from fedvisage.render.camera import Camera
from fedvisage.render.masks import PAPER, PLASTER, RESIN, SILICONE
from fedvisage.render.media import Holding
from fedvisage.render.noise import Range
from fedvisage.render.people import CLUTTER, GRADIENT, OUTDOOR, PLAIN, ROOM, LightRange
from fedvisage.render.prints import Printer
from fedvisage.render.screens import Display

SPECIES = ("print", "cut", "replay", "mask")


@dataclass(frozen=True)
class RecordingPlace:
    """The light and the kinds of background of a recording place."""

    light: LightRange = field(default_factory=LightRange)
    backgrounds: tuple[int, ...] = (PLAIN, GRADIENT, ROOM, CLUTTER)


@dataclass(frozen=True)
class Attack:
    """One kind of attack: its species, and the instrument of flat attacks or the materials of masks."""

    species: str
    instrument: Printer | Display | None = None
    materials: tuple[int, ...] = (RESIN,)


@dataclass(frozen=True)
class Domain:
    """A simulated dataset."""

    name: str
    title: str
    subjects: int  # default number; the largest datasets are scaled down
    videos: int  # default number of bona fide videos per subject
    ratio: float  # attack videos per bona fide video
    cameras: tuple[Camera, ...]
    attacks: tuple[Attack, ...]
    photographer: Camera  # takes the photographs that attackers show
    place: RecordingPlace
    attack_cameras: tuple[Camera, ...] = ()  # cameras in the sessions of attacks, if their settings differ
    attack_place: RecordingPlace | None = None  # where attacks are presented, if elsewhere
    yaw: float = 0.2  # largest turn of the head in radians
    cutout: bool = False  # background removed (black), as CASIA-SURF is distributed


def sessions(cameras: tuple[Camera, ...], stops: float, warmth: float, noise: float = 1.0) -> tuple[Camera, ...]:
    """Return cameras with the settings of other sessions: exposure, white balance and gain are shifted."""
    return tuple(
        replace(
            camera,
            exposure=_move_range(camera.exposure, stops),
            warmth=_move_range(camera.warmth, warmth),
            noise=(camera.noise[0] * noise, camera.noise[1] * noise),
        )
        for camera in cameras
    )


def _move_range(span: Range, by: float) -> Range:
    return (span[0] + by, span[1] + by)


GOOD_PHOTOGRAPHER = Camera("reflex", (500, 900), blur=(0.3, 0.5), noise=(0.001, 0.003), quality=(88, 97))
PLAIN_PHOTOGRAPHER = Camera("compact", (150, 400), noise=(0.003, 0.008), quality=(75, 92))

INDOOR = LightRange(softness=(0.4, 1.0))
LAMPS = LightRange(
    key_strength=(0.5, 1.3), ambient_strength=(0.15, 0.5), softness=(0.1, 0.7), key_kelvin=(3200.0, 5500.0)
)
WINDOW = LightRange(key_strength=(0.5, 1.2), azimuth=1.3, key_kelvin=(5200.0, 7500.0))
STUDIO = LightRange(
    key_strength=(0.6, 0.9), ambient_strength=(0.4, 0.6), azimuth=0.5, softness=(0.6, 1.0), key_kelvin=(5200.0, 6500.0)
)

_OULU_CAMERAS = tuple(
    Camera(f"phone {number}", (350, 520), warmth=(low, low + 0.06), noise=(0.004, 0.012), quality=(78, 92))
    for number, low in enumerate((-0.08, -0.04, -0.01, 0.0, 0.02, 0.04), start=1)
)
OULU = Domain(
    name="O",
    title="OULU-NPU",
    subjects=55,
    videos=2,
    ratio=4,
    cameras=_OULU_CAMERAS,
    attack_cameras=sessions(_OULU_CAMERAS, -0.3, 0.12, 2.0),
    attacks=(
        Attack("print", Printer("photo printer 1", (360, 560), gloss=(0.0, 0.15), purity=(0.3, 0.7))),
        Attack("print", Printer("photo printer 2", (300, 460), white=(0.9, 0.88, 0.82), purity=(0.0, 0.4))),
        Attack("replay", Display("Dell 1905FP", (300, 460), leak=(0.01, 0.03), blue=(0.05, 0.15))),
        Attack("replay", Display("Macbook Retina", (420, 640), leak=(0.004, 0.012), glare=(0.0, 0.7))),
    ),
    photographer=GOOD_PHOTOGRAPHER,
    place=RecordingPlace(LAMPS, (PLAIN, GRADIENT, ROOM)),
)

_IPAD = Display("iPad", (150, 500), leak=(0.008, 0.03), mirror=(0.02, 0.07))
_WARPED = Printer(
    "copper paper", (320, 520), gloss=(0.02, 0.25), holding=Holding(shown=(0.7, 1.0), bend=(0.3, 0.8), tilt=0.08)
)
_FLAT_CUT = Printer(
    "copper paper, cut", (320, 520), gloss=(0.0, 0.2), holding=Holding(shown=(0.7, 1.0), bend=(0.0, 0.25))
)
_CASIA_CAMERAS = (
    Camera("old USB", (130, 180), blur=(0.6, 1.0), noise=(0.01, 0.02), saturation=(0.7, 0.95), quality=(55, 80)),
    Camera("new USB", (170, 240), blur=(0.35, 0.6), noise=(0.006, 0.012), quality=(65, 88)),
    Camera("NEX-5", (480, 700), noise=(0.002, 0.005), quality=(80, 95), contrast=(0.2, 0.5)),
)
CASIA = Domain(
    name="C",
    title="CASIA-MFSD",
    subjects=50,
    videos=3,
    ratio=3,
    cameras=_CASIA_CAMERAS,
    attack_cameras=sessions(_CASIA_CAMERAS, 0.2, -0.10, 1.6),
    attacks=(Attack("print", _WARPED), Attack("cut", _FLAT_CUT), Attack("replay", _IPAD)),
    photographer=GOOD_PHOTOGRAPHER,
    place=RecordingPlace(INDOOR, (ROOM, CLUTTER, OUTDOOR)),
    attack_place=RecordingPlace(WINDOW, (ROOM, CLUTTER, OUTDOOR)),
)

_WEBCAM = Camera("MacBook 320×240", (95, 125), blur=(0.35, 0.6), noise=(0.008, 0.018), quality=(60, 82))
_FIXED = Holding(tilt=0.03, turn=0.01, shake=0.001)
_HAND = Holding(shown=(0.75, 1.0), tilt=0.08, turn=0.05, shake=0.012)
_IDIAP_CAMERAS = (_WEBCAM,)
IDIAP = Domain(
    name="I",
    title="Idiap Replay-Attack",
    subjects=50,
    videos=2,
    ratio=5,
    cameras=_IDIAP_CAMERAS,
    attack_cameras=sessions(_IDIAP_CAMERAS, 0.28, 0.08, 0.6),
    attacks=(
        Attack("print", Printer("laser printer, fixed", (130, 260), (0.6, 1.0), purity=(0.0, 0.5), holding=_FIXED)),
        Attack("print", Printer("laser printer, hand", (130, 260), (0.6, 1.0), purity=(0.0, 0.5), holding=_HAND)),
        Attack("replay", Display("iPhone 3GS", (70, 130), gamut=(0.2, 0.45), holding=_FIXED)),
        Attack("replay", Display("iPhone 3GS", (70, 130), gamut=(0.2, 0.45), holding=_HAND)),
        Attack("replay", Display("iPad", (110, 220), holding=_FIXED)),
        Attack("replay", Display("iPad", (110, 220), holding=_HAND)),
    ),
    photographer=PLAIN_PHOTOGRAPHER,
    place=RecordingPlace(LAMPS, (PLAIN, ROOM, CLUTTER)),
)

_MSU_CAMERAS = (
    Camera("MacBook Air 640×480", (180, 240), warmth=(-0.1, 0.0), noise=(0.006, 0.014), quality=(70, 88)),
    Camera("Nexus 5 720×480", (200, 280), sharpening=(0.4, 0.9), contrast=(0.2, 0.5), quality=(70, 88)),
)
MSU = Domain(
    name="M",
    title="MSU-MFSD",
    subjects=35,
    videos=2,
    ratio=3,
    cameras=_MSU_CAMERAS,
    attack_cameras=sessions(_MSU_CAMERAS, -0.32, -0.08, 0.6),
    attacks=(
        Attack("print", Printer("HP colour laser, A3", (420, 620), purity=(0.2, 0.6), gloss=(0.0, 0.1))),
        Attack("replay", Display("iPad Air", (300, 480), leak=(0.004, 0.015), glare=(0.0, 0.6))),
        Attack("replay", Display("iPhone 5S", (170, 280), leak=(0.004, 0.015), holding=Holding(shown=(0.7, 0.95)))),
    ),
    photographer=GOOD_PHOTOGRAPHER,
    place=RecordingPlace(INDOOR, (ROOM, CLUTTER)),
)

_SIW_CAMERAS = (
    Camera("Canon T6", (400, 620), noise=(0.002, 0.006), contrast=(0.2, 0.5), quality=(82, 95)),
    Camera("Logitech C920", (320, 480), sharpening=(0.3, 0.8), noise=(0.004, 0.012), quality=(70, 90)),
)
SIW = Domain(
    name="S",
    title="SiW",
    subjects=165,
    videos=3,
    ratio=2.5,
    cameras=_SIW_CAMERAS,
    attacks=(
        Attack("print", Printer("high resolution", (500, 700), gloss=(0.0, 0.4), holding=Holding(bend=(-0.3, 0.3)))),
        Attack("print", Printer("low resolution", (200, 360), holding=Holding(bend=(-0.3, 0.3)))),
        Attack("replay", Display("Dell 1905FP", (300, 460))),
        Attack("replay", Display("iPad Pro", (450, 700), leak=(0.001, 0.004))),
        Attack("replay", Display("iPhone 7", (300, 480), holding=Holding(shown=(0.75, 1.0)))),
        Attack("replay", Display("Galaxy S8", (400, 600), leak=(0.0, 0.001), holding=Holding(shown=(0.75, 1.0)))),
        Attack("replay", Display("Asus MB168B", (300, 480), gamut=(0.1, 0.4), uneven=(0.05, 0.3))),
    ),
    photographer=GOOD_PHOTOGRAPHER,
    place=RecordingPlace(LightRange(azimuth=1.4), (PLAIN, ROOM, CLUTTER, OUTDOOR)),
    yaw=0.45,
)

_KINECT = (Camera("Kinect 640×480", (100, 140), noise=(0.008, 0.016), quality=(88, 97)),)
MASK_3DMAD = Domain(
    name="3",
    title="3DMAD",
    subjects=17,
    videos=4,
    ratio=0.5,
    cameras=_KINECT,
    attacks=(Attack("mask"),),
    photographer=GOOD_PHOTOGRAPHER,
    place=RecordingPlace(STUDIO, (PLAIN, GRADIENT)),
    yaw=0.15,
)

_HKBU_CAMERAS = (
    Camera("webcam", (180, 260), noise=(0.006, 0.014), quality=(70, 88)),
    Camera("phone", (300, 480), sharpening=(0.3, 0.8), quality=(78, 92)),
    Camera("system camera", (450, 700), noise=(0.002, 0.006), contrast=(0.2, 0.5), quality=(85, 96)),
)
MASK_HKBU = Domain(
    name="H",
    title="HKBU-MARsV2",
    subjects=12,
    videos=6,
    ratio=1,
    cameras=_HKBU_CAMERAS,
    attacks=(Attack("mask", materials=(RESIN, SILICONE)),),
    photographer=GOOD_PHOTOGRAPHER,
    place=RecordingPlace(
        LightRange(key_strength=(0.2, 1.3), azimuth=1.4, key_kelvin=(3000.0, 7500.0)), (ROOM, CLUTTER)
    ),
)

_WMCA_CAMERAS = (Camera("RealSense SR300", (260, 360), noise=(0.005, 0.012), warmth=(-0.08, 0.08), quality=(85, 96)),)
WMCA = Domain(
    name="W",
    title="WMCA",
    subjects=72,
    videos=3,
    ratio=3.5,
    cameras=_WMCA_CAMERAS,
    attack_cameras=sessions(_WMCA_CAMERAS, -0.1, 0.03),
    attacks=(
        Attack("print", Printer("office laser", (200, 360), gloss=(0.0, 0.1), holding=Holding(bend=(-0.2, 0.2)))),
        Attack("replay", Display("tablet", (220, 420), glare=(0.0, 0.7))),
        Attack("mask", materials=(PAPER, RESIN)),
        Attack("mask", materials=(SILICONE,)),
    ),
    photographer=PLAIN_PHOTOGRAPHER,
    place=RecordingPlace(LAMPS, (PLAIN, GRADIENT, ROOM, CLUTTER)),
)

_CLOTH = Printer(
    "cloth", (160, 260), grain=(0.04, 0.1), white=(0.8, 0.79, 0.76), gloss=(0.0, 0.0), holding=Holding(bend=(-0.8, 0.8))
)
_CEFA_CAMERAS = (Camera("RealSense", (200, 300), noise=(0.005, 0.012), quality=(80, 94)),)
CEFA = Domain(
    name="E",
    title="CASIA-CeFA",
    subjects=160,
    videos=2,
    ratio=3,
    cameras=_CEFA_CAMERAS,
    attacks=(
        Attack("print", Printer("photo paper", (350, 560), gloss=(0.0, 0.4))),
        Attack("print", _CLOTH),
        Attack("replay", Display("monitor", (180, 340), leak=(0.002, 0.01))),
        Attack("mask", materials=(RESIN, SILICONE)),
    ),
    photographer=PLAIN_PHOTOGRAPHER,
    place=RecordingPlace(LightRange(), (PLAIN, ROOM, CLUTTER, OUTDOOR)),
)

_SURF_CAMERAS = (Camera("RealSense", (150, 260), noise=(0.005, 0.012), quality=(80, 94)),)
SURF = Domain(
    name="F",
    title="CASIA-SURF",
    subjects=150,
    videos=2,
    ratio=2,
    cameras=_SURF_CAMERAS,
    attacks=(
        Attack("cut", Printer("A4, flat", (200, 420), holding=Holding(bend=(0.0, 0.1)))),
        Attack("cut", Printer("A4, curved", (200, 420), holding=Holding(bend=(0.4, 0.9)))),
        Attack("print", Printer("A4, curved", (200, 420), holding=Holding(bend=(0.4, 0.9)))),
    ),
    photographer=PLAIN_PHOTOGRAPHER,
    place=RecordingPlace(INDOOR, (PLAIN, GRADIENT)),
    cutout=True,
)

_ALL_CAMERAS = (
    *OULU.cameras[:3],
    *CASIA.cameras,
    *MSU.cameras,
    *SIW.cameras,
    Camera("webcam", (100, 220), noise=(0.006, 0.02), quality=(50, 85), warmth=(-0.12, 0.12)),
)
AUXILIARY = Domain(
    name="A",
    title="auxiliary, after CelebA-Spoof",
    subjects=300,
    videos=1,
    ratio=2,
    cameras=_ALL_CAMERAS,
    attacks=(
        *OULU.attacks,
        *CASIA.attacks,
        *MSU.attacks,
        *SIW.attacks,
        Attack("print", _CLOTH),
        Attack("mask", materials=(PAPER, RESIN)),
        Attack("mask", materials=(SILICONE, PLASTER)),
    ),
    photographer=PLAIN_PHOTOGRAPHER,
    place=RecordingPlace(LightRange(key_strength=(0.2, 1.3), azimuth=1.4), (PLAIN, GRADIENT, ROOM, CLUTTER, OUTDOOR)),
    yaw=0.4,
)

DOMAINS = {
    domain.name: domain for domain in (OULU, CASIA, IDIAP, MSU, SIW, MASK_3DMAD, MASK_HKBU, WMCA, CEFA, SURF, AUXILIARY)
}


def find_domain(name: str) -> Domain:
    """Return the domain with this one-letter name."""
    if name not in DOMAINS:
        titles = ", ".join(f"{domain.name} ({domain.title})" for domain in DOMAINS.values())
        raise UserError("synth", f"unknown domain {name!r}; choose one of {titles}")
    return DOMAINS[name]
