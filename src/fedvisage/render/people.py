"""People: the shape and appearance of a head from a seed, and the conditions of each presentation.

A person is a row of *traits*, plain numbers with a name and a unit. Lengths are in head units: 1 is half the width of
an average head (about 70 mm). Most traits depend on two hidden ones, masculinity and age.

Conditions describe one presentation: pose, expression, light, surroundings. A video has one draw of conditions
(``draw_conditions``); its frames are small movements around it (``add_movements``).
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from fedvisage.base.streams import numpy_rng

# Conditions of a presentation.

PLAIN, GRADIENT, ROOM, CLUTTER, OUTDOOR = range(5)


@dataclass(frozen=True)
class Conditions:
    """A batch of B presentations. Directions are in camera axes: x right, y down, z from the face to the camera.

    Attributes:
        yaw: B, radians; positive turns the nose to the right in the image.
        pitch: B, radians; positive lifts the chin.
        roll: B, radians; positive turns the head clockwise in the image.
        mouth_open: B in [0, 1].
        smile: B in [-0.3, 1].
        blink: B in [0, 1]; 1 = eyes closed.
        brow_raise: B in [-1, 1].
        gaze: B×2 in [-1, 1]; direction of the eyes, right and down, relative to the head.
        scale: B; width of the face as a share of the frame's width.
        centre: B×2 in [0, 1]; position in the frame (x, y) of the point between eyes and mouth.
        key: B×3, unit vector from the face towards the key light.
        key_strength: B; irradiance of the key light on a surface that faces it.
        key_kelvin: B; colour temperature of the key light relative to a white of 6500 K.
        key_softness: B in [0, 1]; 0 = bare bulb or sun, 1 = window or overcast sky.
        fill: B×3, unit vector towards a second, weaker and soft light.
        fill_strength: B.
        ambient_strength: B; irradiance from all directions.
        ambient_kelvin: B; colour temperature of ambient and fill light.
        background: B integers, one of PLAIN, GRADIENT, ROOM, CLUTTER, OUTDOOR.
        background_level: B; mean reflectance times irradiance of the background.
        glasses: B; 1 = wears glasses, 0 = does not.
        seeds: one seed per presentation, for the clothes and the background.

    """

    yaw: Tensor
    pitch: Tensor
    roll: Tensor
    mouth_open: Tensor
    smile: Tensor
    blink: Tensor
    brow_raise: Tensor
    gaze: Tensor
    scale: Tensor
    centre: Tensor
    key: Tensor
    key_strength: Tensor
    key_kelvin: Tensor
    key_softness: Tensor
    fill: Tensor
    fill_strength: Tensor
    ambient_strength: Tensor
    ambient_kelvin: Tensor
    background: Tensor
    background_level: Tensor
    glasses: Tensor
    seeds: tuple[int, ...]

    def __len__(self) -> int:
        """Return the number of presentations."""
        return len(self.seeds)

    def select(self, rows: Sequence[int]) -> "Conditions":
        """Return these rows as a new batch; a row may be repeated (several frames of one video)."""
        chosen = {f.name: getattr(self, f.name)[list(rows)] for f in fields(self) if f.name != "seeds"}
        return Conditions(**chosen, seeds=tuple(self.seeds[row] for row in rows))


@dataclass(frozen=True)
class LightRange:
    """The light of a place; every pair is a range from which a video draws uniformly."""

    key_strength: tuple[float, float] = (0.4, 1.0)
    ambient_strength: tuple[float, float] = (0.3, 0.6)
    fill_strength: tuple[float, float] = (0.0, 0.3)
    azimuth: float = 1.0
    """Largest angle of the key light to the left or right, radians."""
    elevation: tuple[float, float] = (0.1, 0.9)
    softness: tuple[float, float] = (0.2, 1.0)
    key_kelvin: tuple[float, float] = (4000.0, 6800.0)
    ambient_kelvin: tuple[float, float] = (4500.0, 7500.0)


def draw_conditions(
    seeds: Sequence[int],
    *,
    yaw_max: float = 0.35,
    pitch_max: float = 0.2,
    roll_max: float = 0.1,
    light: LightRange | None = None,
    backgrounds: Sequence[int] = (PLAIN, GRADIENT, ROOM, CLUTTER, OUTDOOR),
    expression: float = 1.0,
    glasses: float = 0.2,
) -> Conditions:
    """Draw the conditions of one video for each seed.

    ``yaw_max``, ``pitch_max`` and ``roll_max`` are the largest turn, nod and tilt of the head in radians; the renderer
    is made for turns up to 0.52, 30°. ``expression`` is the liveliness of the faces, 0 for neutral ones; ``glasses`` is
    the share of videos with glasses.
    """
    place = light or LightRange()
    rows = []
    for seed in seeds:
        rng = numpy_rng(seed, "conditions")
        rows.append(
            _draw_pose(rng, yaw_max, pitch_max, roll_max, expression)
            | _draw_light(rng, place)
            | {
                "background": int(rng.choice(list(backgrounds))),
                "background_level": float(np.exp(rng.uniform(math.log(0.06), math.log(0.45)))),
                "glasses": float(rng.random() < glasses),
            }
        )
    return Conditions(**{name: torch.tensor([row[name] for row in rows]) for name in rows[0]}, seeds=tuple(seeds))


def _draw_pose(
    rng: np.random.Generator, yaw_max: float, pitch_max: float, roll_max: float, expression: float
) -> dict[str, object]:
    """Draw head pose, framing and expression; poses are more often near the front than at the limit."""
    yaw, pitch, roll = np.clip(rng.normal(0.0, 0.5, 3), -1.0, 1.0) * (yaw_max, pitch_max, roll_max)
    return {
        "yaw": float(yaw),
        "pitch": float(pitch),
        "roll": float(roll),
        "mouth_open": expression * float(np.clip(rng.normal(-0.1, 0.25), 0.0, 0.8)),
        "smile": expression * float(np.clip(rng.normal(0.15, 0.35), -0.3, 1.0)),
        "blink": expression * float(np.clip(rng.normal(0.05, 0.1), 0.0, 0.5)),
        "brow_raise": expression * float(np.clip(rng.normal(0.0, 0.4), -1.0, 1.0)),
        "gaze": np.clip(rng.normal(0.0, 0.3, 2), -1.0, 1.0).tolist(),
        "scale": float(rng.uniform(0.50, 0.58)),
        "centre": np.add((0.5, 0.59), rng.normal(0.0, 0.012, 2)).tolist(),
    }


def _draw_light(rng: np.random.Generator, place: LightRange) -> dict[str, object]:
    """Draw the lights of one video."""
    azimuth = rng.uniform(-place.azimuth, place.azimuth)
    return {
        "key": _direction(azimuth, rng.uniform(*place.elevation)),
        "key_strength": rng.uniform(*place.key_strength),
        "key_kelvin": rng.uniform(*place.key_kelvin),
        "key_softness": rng.uniform(*place.softness),
        "fill": _direction(-math.copysign(rng.uniform(0.4, 1.1), azimuth), rng.uniform(-0.1, 0.5)),
        "fill_strength": rng.uniform(*place.fill_strength),
        "ambient_strength": rng.uniform(*place.ambient_strength),
        "ambient_kelvin": rng.uniform(*place.ambient_kelvin),
    }


def _direction(azimuth: float, elevation: float) -> list[float]:
    """Return the unit vector towards a light, from its angle to the right and its angle upwards."""
    return [math.sin(azimuth) * math.cos(elevation), -math.sin(elevation), math.cos(azimuth) * math.cos(elevation)]


def add_movements(conditions: Conditions, seeds: Sequence[int]) -> Conditions:
    """Return the conditions of one frame per row: the video's own, with the small motion of a person holding still.

    ``seeds`` has one seed per frame. Light, clothes, glasses and background are those of the video.
    """
    draws = np.stack([numpy_rng(seed, "motion").standard_normal(11) for seed in seeds])
    step = torch.tensor(draws, dtype=torch.float32)
    blinking = (step[:, 7] > 1.8).float() * 0.9
    return replace(
        conditions,
        yaw=conditions.yaw + 0.03 * step[:, 0],
        pitch=conditions.pitch + 0.025 * step[:, 1],
        roll=conditions.roll + 0.015 * step[:, 2],
        centre=conditions.centre + 0.008 * step[:, 3:5],
        scale=conditions.scale * (1 + 0.012 * step[:, 5]),
        mouth_open=(conditions.mouth_open + 0.05 * step[:, 6]).clamp(0, 1),
        blink=torch.maximum(conditions.blink, blinking),
        gaze=(conditions.gaze + 0.15 * step[:, 8:10]).clamp(-1, 1),
        smile=(conditions.smile + 0.05 * step[:, 10]).clamp(-0.3, 1),
    )


@dataclass(frozen=True)
class Trait:
    """The distribution of one number over people: mean, spread, effects of masculinity and age, and limits."""

    mean: float
    spread: float
    masculine: float = 0.0
    old: float = 0.0
    low: float = -math.inf
    high: float = math.inf


TRAITS: dict[str, Trait] = {
    # Outline of the head.
    "head_width": Trait(1.0, 0.045, 0.02),
    "head_top": Trait(1.62, 0.05),
    "chin": Trait(1.60, 0.07, 0.05),
    "jaw_power": Trait(2.5, 0.22, 0.25, 0.0, 1.9, 3.4),
    "jaw_taper": Trait(0.27, 0.05, -0.04, 0.0, 0.12, 0.40),
    "roundness": Trait(0.50, 0.06, 0.0, 0.0, 0.34, 0.66),
    "forehead_slope": Trait(0.24, 0.05, 0.03, 0.0, 0.1, 0.4),
    # Brow, eyes.
    "brow_ridge": Trait(0.06, 0.02, 0.035, 0.0, 0.0, 0.14),
    "brow_height": Trait(-0.30, 0.035, 0.03, 0.0, -0.42, -0.20),
    "brow_tilt": Trait(0.005, 0.035, 0.008, -0.015, -0.09, 0.09),
    "brow_arch": Trait(0.07, 0.025, -0.02, 0.0, 0.0, 0.14),
    "brow_length": Trait(0.27, 0.025, 0.01, 0.0, 0.2, 0.34),
    "brow_thickness": Trait(0.058, 0.012, 0.012, 0.0, 0.03, 0.09),
    "brow_density": Trait(0.8, 0.1, 0.08, -0.05, 0.45, 1.0),
    "eye_spacing": Trait(0.455, 0.022, 0.0, 0.0, 0.40, 0.52),
    "eye_width": Trait(0.205, 0.013, 0.0, -0.006, 0.17, 0.24),
    "eye_opening": Trait(0.077, 0.013, -0.006, -0.008, 0.045, 0.11),
    "eye_tilt": Trait(0.02, 0.018, -0.005, -0.01, -0.02, 0.07),
    "eye_lift": Trait(0.0, 0.012),
    "lid_crease": Trait(0.6, 0.3, 0.0, 0.1, 0.0, 1.0),
    "socket_depth": Trait(0.13, 0.03, 0.015, 0.02, 0.05, 0.22),
    "eye_bags": Trait(0.02, 0.012, 0.0, 0.02, 0.0, 0.08),
    # Nose.
    "nose_length": Trait(0.56, 0.04, 0.015, 0.015, 0.46, 0.68),
    "nose_width": Trait(0.165, 0.02, 0.012, 0.004, 0.12, 0.23),
    "nose_height": Trait(0.28, 0.035, 0.025, 0.005, 0.18, 0.40),
    "nose_bridge": Trait(0.13, 0.035, 0.02, 0.0, 0.04, 0.22),
    "nose_bridge_width": Trait(0.10, 0.013, 0.004, 0.0, 0.07, 0.14),
    "nose_tip": Trait(0.115, 0.016, 0.005, 0.0, 0.08, 0.16),
    "nose_bend": Trait(0.0, 0.03, 0.01, 0.0, -0.06, 0.08),
    "nostril": Trait(0.055, 0.01, 0.004, 0.0, 0.03, 0.08),
    # Mouth, cheeks, chin.
    "mouth_height": Trait(1.03, 0.04, 0.02, 0.01, 0.93, 1.14),
    "mouth_width": Trait(0.37, 0.035, 0.015, 0.005, 0.29, 0.47),
    "lip_upper": Trait(0.075, 0.018, -0.012, -0.015, 0.03, 0.13),
    "lip_lower": Trait(0.105, 0.02, -0.012, -0.012, 0.05, 0.16),
    "cupid_bow": Trait(0.3, 0.12, 0.0, -0.04, 0.0, 0.6),
    "mouth_curve": Trait(0.012, 0.018, 0.0, -0.012, -0.05, 0.05),
    "muzzle": Trait(0.10, 0.025, 0.0, 0.0, 0.03, 0.18),
    "cheekbones": Trait(0.07, 0.025, 0.0, 0.0, 0.0, 0.14),
    "cheek_hollow": Trait(0.03, 0.03, 0.01, 0.015, -0.05, 0.10),
    "folds": Trait(0.02, 0.012, 0.0, 0.025, 0.0, 0.08),
    "chin_forward": Trait(0.13, 0.035, 0.03, 0.0, 0.04, 0.24),
    "chin_width": Trait(0.20, 0.03, 0.02, 0.0, 0.13, 0.28),
    "chin_cleft": Trait(0.0, 0.012, 0.006, 0.0, 0.0, 0.04),
    "ear_size": Trait(0.23, 0.025, 0.015, 0.015, 0.17, 0.31),
    "ear_out": Trait(0.075, 0.025, 0.01, 0.0, 0.02, 0.14),
    "neck_width": Trait(0.60, 0.04, 0.08, 0.0, 0.48, 0.80),
    # Skin.
    "melanin": Trait(0.38, 0.27, 0.02, 0.0, 0.0, 1.0),
    "redness": Trait(0.0, 0.5, 0.1, 0.15, -1.0, 1.4),
    "yellowness": Trait(0.0, 0.5, 0.0, 0.0, -1.2, 1.2),
    "blotches": Trait(0.5, 0.25, 0.05, 0.25, 0.05, 1.3),
    "freckles": Trait(0.0, 0.35, 0.0, 0.1, 0.0, 1.2),
    "pores": Trait(0.5, 0.2, 0.1, 0.2, 0.1, 1.2),
    "wrinkles": Trait(0.1, 0.1, 0.0, 0.4, 0.0, 1.2),
    "oil": Trait(0.5, 0.25, 0.1, -0.1, 0.05, 1.2),
    "dark_circles": Trait(0.25, 0.2, 0.0, 0.12, 0.0, 0.9),
    "lip_colour": Trait(0.5, 0.3, -0.35, -0.08, 0.0, 1.2),
    "moles": Trait(0.5, 0.35, 0.0, 0.1, 0.0, 1.2),
    # Hair and eyes.
    "stubble": Trait(-0.2, 0.35, 0.5, 0.0, 0.0, 1.0),
    "beard": Trait(-1.0, 0.7, 0.6, 0.1, 0.0, 1.0),
    "hair_line": Trait(-0.98, 0.09, 0.0, -0.05, -1.2, -0.72),
    "hair_recession": Trait(0.0, 0.12, 0.12, 0.12, 0.0, 0.7),
    "hair_bald": Trait(-1.6, 0.8, 0.6, 0.4, 0.0, 1.0),
    "hair_volume": Trait(0.11, 0.04, -0.015, -0.02, 0.03, 0.22),
    "hair_length": Trait(0.05, 0.6, -0.85, -0.2, 0.0, 1.6),
    "hair_fringe": Trait(-0.5, 0.6, -0.2, -0.2, 0.0, 1.0),
    "hair_parting": Trait(0.0, 0.4, 0.0, 0.0, -0.8, 0.8),
    "hair_waves": Trait(0.4, 0.3, 0.0, 0.0, 0.0, 1.0),
    "hair_dark": Trait(0.72, 0.22, 0.03, 0.0, 0.1, 1.0),
    "hair_red": Trait(0.35, 0.25, 0.0, 0.0, 0.0, 1.0),
    "hair_grey": Trait(-0.25, 0.25, 0.03, 0.5, 0.0, 1.0),
    "iris_dark": Trait(0.65, 0.3, 0.0, 0.0, 0.0, 1.0),
    "iris_blue": Trait(0.4, 0.3, 0.0, 0.0, 0.0, 1.0),
    "sclera": Trait(0.44, 0.04, 0.0, -0.03, 0.32, 0.54),
    "asymmetry": Trait(0.0, 0.012),
}

# Average differences of the four groups, in units of each trait's own scale. The groups simulate sites that enrol
# different populations; in shape, people within a group differ more than the groups do.
GROUPS: tuple[dict[str, float], ...] = (
    {"melanin": -0.28, "nose_height": 0.02, "iris_dark": -0.25, "hair_dark": -0.2, "freckles": 0.15},
    {
        "melanin": -0.14,
        "nose_bridge": -0.04,
        "lid_crease": -0.5,
        "eye_opening": -0.012,
        "hair_dark": 0.2,
        "iris_dark": 0.25,
        "yellowness": 0.4,
        "cheekbones": 0.03,
        "hair_waves": -0.3,
    },
    {
        "melanin": 0.15,
        "hair_dark": 0.2,
        "iris_dark": 0.25,
        "brow_density": 0.1,
        "dark_circles": 0.2,
        "eye_width": 0.006,
    },
    {
        "melanin": 0.45,
        "nose_width": 0.03,
        "nose_bridge": -0.03,
        "lip_upper": 0.03,
        "lip_lower": 0.025,
        "hair_dark": 0.25,
        "iris_dark": 0.3,
        "hair_length": -0.3,
    },
)

YOUNGEST, OLDEST = -1.0, 1.6
"""The range of people's ages, in the unit of the traits' effect of age."""

TONES, TONE_EDGES = ("light", "medium", "dark"), (0.25, 0.5)
"""Skin tones, and the melanin that separates them: without a group, about a third of people has each."""
AGES = ("young", "middle", "old")
"""Thirds of the range of ages."""

_NAMES = tuple(TRAITS)
_COLUMN = {name: column for column, name in enumerate(_NAMES)}


@dataclass(frozen=True)
class PersonBatch:
    """A batch of B persons.

    Attributes:
        traits: B×T, one column for each name in ``TRAITS``.
        seeds: B, the person's own seed, which determines marks such as moles and the course of the hair.

    """

    traits: Tensor
    seeds: tuple[int, ...]

    def __len__(self) -> int:
        """Return the number of persons."""
        return len(self.seeds)

    def __getitem__(self, name: str) -> Tensor:
        """Return one trait as a column, B×1, which broadcasts with a row of positions."""
        return self.traits[:, _COLUMN[name], None]

    def select(self, rows: Sequence[int]) -> "PersonBatch":
        """Return these rows as a new batch; a row may be repeated (several frames of one person)."""
        return PersonBatch(self.traits[list(rows)], tuple(self.seeds[row] for row in rows))


def draw_people(seeds: Sequence[int], group: int | Sequence[int] | None = None) -> PersonBatch:
    """Draw one person for each 63-bit seed; the same seed gives the same person, whatever else is in the batch.

    ``group`` is the person's population, 0 to 3 (one for all, or one per person), or None.
    """
    groups: Sequence[int | None] = [group] * len(seeds) if group is None or isinstance(group, int) else group
    rows = [_draw_person(seed, number)[1] for seed, number in zip(seeds, groups, strict=True)]
    return PersonBatch(torch.tensor(rows, dtype=torch.float32).reshape(len(seeds), len(_NAMES)), tuple(seeds))


def _draw_person(seed: int, group: int | None) -> tuple[float, list[float]]:
    """Return the age of a person, and one value per trait."""
    rng = numpy_rng(seed, "person")
    masculine = rng.choice([-1.0, 1.0]) + rng.normal(0.0, 0.35)
    old = rng.uniform(YOUNGEST, OLDEST)
    leaning = {} if group is None else GROUPS[group]
    row = []
    for name, trait in TRAITS.items():
        mean = trait.mean + trait.masculine * masculine + trait.old * old + leaning.get(name, 0.0)
        value = mean + trait.spread * rng.standard_normal()
        row.append(min(max(value, trait.low), trait.high))
    return old, row


def describe_person(seed: int, group: int | None = None) -> dict[str, str]:
    """Return a person's skin tone and age as words, for the columns of a set."""
    old, row = _draw_person(seed, group)
    tone = TONES[bisect_right(TONE_EDGES, row[_COLUMN["melanin"]])]
    third = (OLDEST - YOUNGEST) / 3
    return {"tone": tone, "age": AGES[bisect_right((YOUNGEST + third, OLDEST - third), old)]}


def average_person() -> PersonBatch:
    """Return the person with all traits at their means."""
    row = [min(max(trait.mean, trait.low), trait.high) for trait in TRAITS.values()]
    return PersonBatch(torch.tensor([row]), (0,))
