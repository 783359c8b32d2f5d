"""Conditions: how a person presents the face this time (pose, expression, light, surroundings).

A video has one draw of conditions (``draw_conditions``); its frames are small movements around it (``move``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from fedvisage.streams import numpy_rng

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
        gaze: B×2 in [-1, 1]; where the eyes look, right and down, relative to the head.
        scale: B; width of the face as a share of the frame's width.
        centre: B×2 in [0, 1]; where the point between eyes and mouth lies in the frame (x, y).
        key: B×3, unit vector from the face towards the key light.
        key_strength: B; irradiance of the key light on a surface that faces it.
        key_kelvin: B; colour temperature of the key light relative to a white of 6500 K.
        key_softness: B in [0, 1]; 0 = bare bulb or sun, 1 = window or overcast sky.
        fill: B×3, unit vector towards a second, weaker and soft light.
        fill_strength: B.
        ambient_strength: B; irradiance from all around.
        ambient_kelvin: B; colour temperature of ambient and fill light.
        background: B integers, one of PLAIN, GRADIENT, ROOM, CLUTTER, OUTDOOR.
        background_level: B; mean reflectance times irradiance of the background.
        glasses: B; 1 = wears glasses, 0 = does not.
        seeds: one seed a presentation, for the clothes and the background.

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
        """Return how many presentations there are."""
        return len(self.seeds)

    def select(self, rows: Sequence[int]) -> "Conditions":
        """Return these rows as a new batch; a row may be named more than once (several frames of one video)."""
        chosen = {f.name: getattr(self, f.name)[list(rows)] for f in fields(self) if f.name != "seeds"}
        return Conditions(**chosen, seeds=tuple(self.seeds[row] for row in rows))


@dataclass(frozen=True)
class LightRange:
    """The light that a place offers; every pair is a range from which a video draws uniformly."""

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

    Args:
        seeds: a seed a video.
        yaw_max: largest turn of the head, radians (the renderer is made for up to 0.52, 30°).
        pitch_max: largest nod, radians.
        roll_max: largest tilt, radians.
        light: the light of the place.
        backgrounds: the kinds of background to choose from.
        expression: how lively the faces are; 0 = neutral.
        glasses: share of videos with glasses.

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


def move(conditions: Conditions, seeds: Sequence[int], amount: float = 1.0) -> Conditions:
    """Return the conditions of one frame per row: the video's own, with the small motion of somebody who holds still.

    ``seeds`` has one seed a frame. Light, clothes, glasses and background stay as they are in the video.
    """
    draws = np.stack([numpy_rng(seed, "motion").standard_normal(11) for seed in seeds]) * amount
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
