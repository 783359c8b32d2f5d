"""What a domain is: cameras, places, instruments and habits that stand for one dataset."""

from dataclasses import dataclass, field, replace

from fedvisage.faces.synthetic.camera import Camera
from fedvisage.faces.synthetic.conditions import CLUTTER, GRADIENT, PLAIN, ROOM, LightRange
from fedvisage.faces.synthetic.draws import Range
from fedvisage.faces.synthetic.mask import RESIN
from fedvisage.faces.synthetic.printing import Printer
from fedvisage.faces.synthetic.replay import Display

SPECIES = ("print", "cut", "replay", "mask")


@dataclass(frozen=True)
class Place:
    """Where people sit: the light and the kinds of background."""

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
    """A dataset's stand-in."""

    name: str
    title: str
    subjects: int  # by default; the largest datasets are scaled down
    videos: int  # bona fide videos a subject, by default
    ratio: float  # attack videos a bona fide video
    cameras: tuple[Camera, ...]
    attack_cameras: tuple[Camera, ...]  # the same cameras, in the sessions in which attacks were recorded
    attacks: tuple[Attack, ...]
    photographer: Camera  # took the photographs that attackers show
    place: Place = field(default_factory=Place)
    attack_place: Place = field(default_factory=Place)  # where attacks are presented
    yaw: float = 0.2  # largest turn of the head in radians
    cutout: bool = False  # background removed (black), as CASIA-SURF is distributed


def sessions(cameras: tuple[Camera, ...], stops: float, warmth: float, noise: float = 1.0) -> tuple[Camera, ...]:
    """Return cameras as they are in other sessions: exposed otherwise, white balance off, more or less gain."""
    return tuple(
        replace(
            camera,
            exposure=_moved(camera.exposure, stops),
            warmth=_moved(camera.warmth, warmth),
            noise=(camera.noise[0] * noise, camera.noise[1] * noise),
        )
        for camera in cameras
    )


def _moved(span: Range, by: float) -> Range:
    return (span[0] + by, span[1] + by)
